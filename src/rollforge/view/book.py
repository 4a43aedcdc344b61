"""Read access of the viewer to one run: filtered and sorted rows, single rollouts in pieces, groups, suspicion.

Every method is synchronous and runs on the server's one query thread. Filters and orders typed by users pass the index's checks,
so they can only read the run.
"""

from __future__ import annotations

import hashlib
import shlex
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rollforge.conversations.turns import Turn, turns_of
from rollforge.errors import UsageError
from rollforge.index import Index, ints, open_index
from rollforge.json_shapes import RowJson
from rollforge.records import PARAMS_KEY
from rollforge.review.labels import label_queue
from rollforge.store import RunFiles
from rollforge.store.reading import read_row
from rollforge.store.rollout_parts import parts_of
from rollforge.text_safety.visible import visible
from rollforge.view.groups import TaskGroups, read_groups
from rollforge.view.opened import (
    PIECE,
    Opened,
    advantage_of,
    heads_of,
    image_of,
    images_of,
    inline_verdict,
    later_verdict,
    plain,
    shown_fields,
    tokens_of,
)
from rollforge.view.suspects import Suspects

Rows = NDArray[np.int32]

MOST_ROWS = 500
"""Most rows per page of a list."""

ORDERS_KEPT = 6
"""Number of cached row lists, each up to 4 MB for a million rollouts."""

FIRST_COLUMNS = (
    "task",
    "rollout",
    "reward",
    "answer_chars",
    "output_tokens",
    "turns",
    "finish_reason",
    "seconds",
)


class Page(Struct, frozen=True, kw_only=True):
    """A part of a list."""

    total: int
    start: int
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """Rows, each with its row number first, then the requested columns."""
    command: str
    """The command line that prints the same rows."""


class SuspiciousRow(Struct, frozen=True, kw_only=True):
    """A suspicious rollout with its reasons."""

    row: int
    task: int
    rollout: int
    reward: float | None
    score: int
    why: Sequence[str]


class Group(Struct, frozen=True, kw_only=True):
    """The rollouts of one task."""

    task: int
    mean: float | None
    contradictions: int
    samples: Sequence[tuple[int, int, float | None]]
    """(row, sample, reward)"""
    twins: Sequence[int] | None = None
    """Rows of two samples with the same answer and different rewards, the better one first."""


class Book:
    """An open run."""

    def __init__(self, path: str, *, verifier: str | None = None) -> None:
        self.path, self.verifier = path, verifier
        self._orders: OrderedDict[tuple[str, str], Rows] = OrderedDict()
        self._tasks: TaskGroups | None = None
        self._long: tuple[int, list[Turn]] | None = None
        self.index: Index = _open(path, verifier)
        self.files: RunFiles = self.index.runs[0]
        self.name = self.files.name
        self.suspects = Suspects(self.index, self.files, lambda: self.tasks.twins)
        self._state = self.state()

    def state(self) -> str:
        """Value that changes when a file of the run or of its shards changes, from sizes and times only."""
        parts = parts_of(self.files)
        sizes = [
            f"{part.size()}.{part.path.stat().st_mtime_ns}"
            for part in (*parts.rollouts, *parts.verdicts, *parts.failures)
        ]
        # The files of hundreds of shards would make a long tag.
        return "-".join(sizes) if len(sizes) <= 3 else hashlib.sha256("-".join(sizes).encode()).hexdigest()

    def refresh(self) -> None:
        """Extend the index by rows appended since the run was opened."""
        now = self.state()
        if now == self._state:
            return
        opened = _open(self.path, self.verifier)
        self.index.close()
        self.index, self._state = opened, now
        self.suspects = Suspects(opened, self.files, lambda: self.tasks.twins)
        self._orders.clear()
        self._tasks = self._long = None

    def close(self) -> None:
        """Close the run's files."""
        self.index.close()

    def interrupt(self) -> None:
        """Cancel the running query; called from another thread when its deadline has passed."""
        self.index.interrupt()

    # Lists

    def columns(self) -> list[str]:
        """Columns available in lists, the most common first."""
        index_columns = self.index.columns("rollouts")
        first = [name for name in FIRST_COLUMNS if name in index_columns]
        return first + [
            name
            for name in index_columns
            if name not in first and name not in ("row", "offset", "length", "file")
        ]

    def order(self, where: str = "", sort: str = "") -> Rows:
        """Row numbers selected by a filter, in the requested order; cached."""
        key = where, sort
        if not where and not sort and not self.index.duplicate_count:
            return np.arange(len(self.index), dtype=np.int32)
        if key not in self._orders:
            condition = f" WHERE {self.index.checked(where)}" if where else ""
            by = f"{self.index.checked_order(sort)}, row" if sort else "row"
            ordered = self.index.select(
                f"SELECT row FROM rollouts{condition} ORDER BY {by}", label=_label(where, sort)
            )
            self._orders[key] = ints(ordered.column(0)).astype(np.int32)
            while len(self._orders) > ORDERS_KEPT:
                self._orders.popitem(last=False)
        self._orders.move_to_end(key)
        return self._orders[key]

    def page(self, columns: Sequence[str], where: str, sort: str, start: int, count: int) -> Page:
        """A part of a list."""
        offered_columns = set(self.columns())
        chosen = [name for name in columns if name in offered_columns] or [
            name for name in FIRST_COLUMNS if name in offered_columns
        ]
        order = self.order(where, sort)
        wanted = order[max(0, start) : max(0, start) + min(count, MOST_ROWS)]
        words = ["rollforge", "show", self.name, "--limit", str(max(1, len(order)))]
        words += ["--where", where] if where else []
        words += ["--sort", sort] if sort else []
        words += ["--verifier", self.verifier] if self.verifier else []
        return Page(
            total=len(order),
            start=start,
            columns=chosen,
            rows=self._read_columns(wanted, chosen),
            command=shlex.join(words),
        )

    def _read_columns(self, rows: Rows, columns: Sequence[str]) -> list[list[Any]]:
        if not len(rows):
            return []
        names = ", ".join(f'"{name}"' for name in columns)
        numbers = ", ".join(map(str, rows.tolist()))
        table = self.index.select(
            f"SELECT row, {names} FROM rollouts WHERE row BETWEEN {rows.min()} AND {rows.max()} AND row IN ({numbers})"
        )
        by_row = {
            one[0]: [plain(value) for value in one]
            for one in zip(*(column.to_pylist() for column in table.columns), strict=True)
        }
        return [by_row[row] for row in rows.tolist() if row in by_row]

    def position(self, row: int, where: str, sort: str) -> int | None:
        """The position of a row in a list."""
        positions = np.flatnonzero(self.order(where, sort) == row)
        return int(positions[0]) if len(positions) else None

    # Suspicion

    def suspicious(self, start: int, count: int) -> tuple[int, list[SuspiciousRow]]:
        """Suspicious rollouts, most suspicious first: (total, a part of them)."""
        table = self.suspects.table()
        chosen = table[max(0, start) : max(0, start) + min(count, MOST_ROWS)]
        facts = {one[0]: one[1:] for one in self._read_columns(chosen[:, 0], ("task", "rollout", "reward"))}
        return len(table), [
            SuspiciousRow(
                row=row,
                task=facts[row][0],
                rollout=facts[row][1],
                reward=facts[row][2],
                score=score,
                why=self.suspects.reasons(row, bits),
            )
            for row, score, bits in chosen.tolist()
            if row in facts
        ]

    def queue(
        self, kind: str, *, seed: int, done: Collection[tuple[int, int]], count: int
    ) -> list[tuple[int, int, int]]:
        """The next rollouts to label as (row, task, rollout); for the suspicious queue, in the order of the suspicious list."""
        if kind != "suspicious":
            return label_queue(self.index, kind, seed=seed, done=done, count=count)
        entries: list[tuple[int, int, int]] = []
        start, total = 0, 1
        while start < total and len(entries) < count:
            total, rows = self.suspicious(start, MOST_ROWS)
            entries += [
                (one.row, one.task, one.rollout)
                for one in rows
                if one.reward is not None and (one.task, one.rollout) not in done
            ]
            start += MOST_ROWS
        return entries[:count]

    # One rollout

    def open(self, row: int) -> Opened:
        """A rollout with the first piece of each turn."""
        table = self.index.select(f"SELECT * FROM rollouts WHERE row = {row}").to_pylist()
        if not table:
            raise UsageError(f"there is no rollout in row {row}")
        facts = {name: plain(value) for name, value in table[0].items() if value is not None}
        task = int(facts["task"])
        fields = dict(self.index.task_rows([task])).get(task, {})
        raw_bytes, decoded = self._decoded(row)
        siblings = self._read_columns(self.tasks.rows_of_task(task), ("rollout", "reward"))
        rewards = [reward for _, _, reward in siblings if reward is not None]
        return Opened(
            row=row,
            facts={
                name: visible(value) if isinstance(value, str) else value for name, value in facts.items()
            },
            why=self.suspects.why(row),
            turns=heads_of(self._read_turns(row, decoded)),
            task=shown_fields({name: value for name, value in fields.items() if name != PARAMS_KEY}),
            verdicts=[
                *inline_verdict(decoded),
                *map(later_verdict, self.index.verdicts_of(task, int(facts["rollout"]))),
            ],
            siblings=siblings,
            raw_bytes=raw_bytes,
            tokens=tokens_of(decoded),
            advantage=advantage_of(facts.get("reward"), rewards),
            images=images_of(decoded),
        )

    def image(self, row: int, number: int) -> tuple[str, bytes]:
        """One image of a rollout as (type, bytes)."""
        decoded = image_of(self._decoded(row)[1], number)
        if decoded is None:
            raise UsageError(f"rollout {row} has no image {number}")
        return decoded

    def piece(self, row: int, turn: int, start: int) -> str:
        """A later piece of a turn's text."""
        if self._long is None or self._long[0] != row:
            self._read_turns(row, self._decoded(row)[1])
        assert self._long is not None
        turns = self._long[1]
        if not 0 <= turn < len(turns):
            raise UsageError(f"rollout {row} has no turn {turn}")
        return visible(turns[turn].text[max(0, start) : max(0, start) + PIECE])

    def _read_turns(self, row: int, decoded: RowJson) -> list[Turn]:
        """Turns of a rollout, cached until another one is read, for its later pieces."""
        self._long = row, turns_of(decoded)
        return self._long[1]

    def raw(self, row: int, start: int) -> tuple[str, int]:
        """A piece of the unchanged line, and the offset of the next one."""
        begin = max(0, start)
        data = self.index.read_piece(row, begin, PIECE)
        if (
            len(data) == PIECE
        ):  # the end may be inside a character: at most three bytes wait for the next piece
            tail = next((back for back in range(1, 5) if data[-back] & 0xC0 != 0x80), 1)
            needed = {0xC0: 2, 0xD0: 2, 0xE0: 3, 0xF0: 4}.get(data[-tail] & 0xF0, 1)
            data = data[:-tail] if needed > tail else data
        return visible(data.decode("utf-8", "replace")), begin + len(data)

    def _decoded(self, row: int) -> tuple[int, RowJson]:
        """Length and contents of a rollout's line. The line itself is not kept, since it may be large."""
        self._long = None
        line = next(iter(self.index.read([row])))
        return len(line), read_row(line)

    # Groups

    def groups(self, sort: str, start: int, count: int) -> tuple[int, list[Group]]:
        """Tasks with their samples' rewards: (total, a part of them)."""
        chosen = self.tasks.sorted_by(sort)[max(0, start) : max(0, start) + min(count, MOST_ROWS)]
        return len(self.tasks), self._groups(chosen)

    def group(self, task: int, sort: str) -> tuple[int, Group]:
        """(position in the order, the task with its samples)."""
        positions = np.flatnonzero(self.tasks.task == task)
        if not len(positions):
            raise UsageError(f"there is no task {task}")
        position = np.flatnonzero(self.tasks.sorted_by(sort) == positions[0])
        return int(position[0]), self._groups(positions)[0]

    def _groups(self, chosen: NDArray[Any]) -> list[Group]:
        samples: dict[int, list[tuple[int, int, float | None, object]]] = {}
        rows = self._read_columns(self.tasks.rows_of(chosen), ("task", "rollout", "reward", "answer_hash"))
        for row, task, rollout, reward, answer in rows:
            samples.setdefault(task, []).append((row, rollout, reward, answer))
        return [
            Group(
                task=task,
                mean=plain(mean),
                contradictions=contradictions,
                samples=[one[:3] for one in samples[task]],
                twins=_twins(samples[task]) if contradictions else None,
            )
            for task, mean, contradictions in zip(
                self.tasks.task[chosen].tolist(),
                self.tasks.mean[chosen].tolist(),
                self.tasks.contradictions[chosen].tolist(),
                strict=True,
            )
        ]

    @property
    def tasks(self) -> TaskGroups:
        """Groups of the run, computed on first use and cached until the run grows."""
        if self._tasks is None:
            self._tasks = read_groups(self.index)
        return self._tasks


def _twins(samples: Sequence[tuple[int, int, float | None, object]]) -> list[int] | None:
    """Rows of two samples with the same answer and different rewards."""
    judged: dict[object, list[tuple[float, int]]] = {}
    for row, _, reward, answer in samples:
        if reward is not None:
            judged.setdefault(answer, []).append((reward, row))
    for alike in judged.values():
        best, worst = max(alike, key=lambda one: one[0]), min(alike, key=lambda one: one[0])
        if best[0] > worst[0]:
            return [best[1], worst[1]]
    return None


def _open(path: str, verifier: str | None) -> Index:
    index = open_index(path, verifier=verifier)
    index.is_small = True
    return index


def _label(where: str, sort: str) -> str:
    text_by_name = {"filter": where, "sort": sort}
    return " ".join(f"{name} {text!r}" for name, text in text_by_name.items() if text) or "rollouts"
