"""One run as the viewer reads it: rows by filter and order, one rollout in pieces, groups, suspicion.

Every method is synchronous and runs on the server's one query thread. A filter or an order typed by a person goes through
the index's own checks, so that it can read the run and nothing else.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rollforge.conversations.turns import Turn, read_row, turns_of
from rollforge.errors import UsageError
from rollforge.index import Index, open_index
from rollforge.records import JsonFields
from rollforge.steps.show import SUSPICION
from rollforge.store import RunFiles
from rollforge.visible import visible

Rows = NDArray[np.int32]

PIECE = 64 << 10
"""Characters of one piece of text; a reader asks for the next."""

MOST_ROWS = 500
"""Rows of one page of a list."""

ORDERS_KEPT = 6
"""Filtered and sorted row lists kept: 4 MB each for a million rollouts."""

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
    """A stretch of a list."""

    total: int
    start: int
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    """The row number first, then the columns asked for."""
    command: str
    """The command line that gives the same rows."""


class TurnHead(Struct, frozen=True, kw_only=True):
    """One turn of a rollout: its first piece, and how long it is."""

    kind: str
    title: str
    text: str
    chars: int


class Opened(Struct, frozen=True, kw_only=True):
    """One rollout for the reader."""

    row: int
    facts: JsonFields
    why: Sequence[str]
    """What is suspicious about it."""
    turns: Sequence[TurnHead]
    task: JsonFields
    """The task's own fields."""
    verdicts: Sequence[JsonFields]
    siblings: Sequence[Sequence[Any]]
    """(row, sample, reward) of the rollouts of the same task."""
    raw_bytes: int
    tokens: Sequence[Any] = ()
    """(text, logprob) per token where they were captured, at most `MOST_TOKENS`."""


class SuspiciousRow(Struct, frozen=True, kw_only=True):
    """A rollout worth reading, and why."""

    row: int
    task: int
    rollout: int
    reward: float | None
    score: int
    why: Sequence[str]


MOST_TOKENS = 4000


class Book:
    """A run that is open for reading."""

    def __init__(self, path: str, *, verifier: str | None = None) -> None:
        self.path, self.verifier = path, verifier
        self._orders: OrderedDict[tuple[str, str], Rows] = OrderedDict()
        self._kept: NDArray[np.int32] | None = None
        self.index: Index = open_index(path, verifier=verifier)
        self.files: RunFiles = self.index.runs[0]
        self.name = self.files.name
        self._state = self.state()

    def state(self) -> str:
        """Changes when a file of the run does: sizes and times, without reading anything."""
        found = (
            path.stat()
            for path in (self.files.rollouts, self.files.verdicts, self.files.failures)
            if path.exists()
        )
        return "-".join(f"{one.st_size}.{one.st_mtime_ns}" for one in found)

    def refresh(self) -> None:
        """Take in what was appended since the run was opened; the index is extended, not built anew."""
        now = self.state()
        if now == self._state:
            return
        opened = open_index(self.path, verifier=self.verifier)
        self.index.close()
        self.index, self._state, self._kept = opened, now, None
        self._orders.clear()

    def close(self) -> None:
        """Let go of the files."""
        self.index.close()

    def interrupt(self) -> None:
        """End the query that is running; called from another thread when its deadline has passed."""
        self.index.interrupt()

    # Lists

    def columns(self) -> list[str]:
        """Columns that a list can show, the usual ones first."""
        known = self.index.columns("rollouts")
        first = [name for name in FIRST_COLUMNS if name in known]
        return first + [
            name for name in known if name not in first and name not in ("row", "offset", "length", "file")
        ]

    def order(self, where: str = "", sort: str = "") -> Rows:
        """The row numbers that a filter keeps, in the order asked for; remembered."""
        key = where, sort
        if key not in self._orders:
            condition = f" WHERE {self.index.checked(where)}" if where else ""
            by = f"{self.index.checked_order(sort)}, row" if sort else "row"
            found = self.index.select(
                f"SELECT row FROM rollouts{condition} ORDER BY {by}", label=_label(where, sort)
            )
            self._orders[key] = np.asarray(found.column(0).to_numpy(zero_copy_only=False), dtype=np.int32)
            while len(self._orders) > ORDERS_KEPT:
                self._orders.popitem(last=False)
        self._orders.move_to_end(key)
        return self._orders[key]

    def page(self, columns: Sequence[str], where: str, sort: str, start: int, count: int) -> Page:
        """Part of a list."""
        known = set(self.columns())
        chosen = [name for name in columns if name in known] or [
            name for name in FIRST_COLUMNS if name in known
        ]
        order = self.order(where, sort)
        wanted = order[max(0, start) : max(0, start) + min(count, MOST_ROWS)]
        words = ["rollforge show", self.name]
        words += ["--where", repr(where)] if where else []
        words += ["--sort", repr(sort)] if sort else []
        return Page(
            total=len(order),
            start=start,
            columns=chosen,
            rows=self._read_columns(wanted, chosen),
            command=" ".join(words),
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

    def place(self, row: int, where: str, sort: str) -> int | None:
        """Where a row stands in a list."""
        found = np.flatnonzero(self.order(where, sort) == row)
        return int(found[0]) if len(found) else None

    # Suspicion

    def suspicious(self, start: int, count: int) -> tuple[int, list[SuspiciousRow]]:
        """Rollouts that deserve a look, most suspicious first: (how many, a stretch of them)."""
        kept = self._suspicion()
        chosen = kept[max(0, start) : max(0, start) + min(count, MOST_ROWS)]
        found = self._read_columns(chosen[:, 0], ("task", "rollout", "reward"))
        facts = {one[0]: one[1:] for one in found}
        reasons = list(SUSPICION)
        return len(kept), [
            SuspiciousRow(
                row=row,
                task=facts[row][0],
                rollout=facts[row][1],
                reward=facts[row][2],
                score=score,
                why=[reason for place, reason in enumerate(reasons) if bits >> place & 1],
            )
            for row, score, bits in chosen.tolist()
            if row in facts
        ]

    def _suspicion(self) -> NDArray[np.int32]:
        """(row, score, reasons as bits), most suspicious first; kept beside the index until the run changes."""
        if self._kept is None:
            path = self.files.index / f"suspicion-{self.index.digest}.npy"
            self._kept = _load(path) if path.is_file() else self._score(path)
        return self._kept

    def _score(self, path: Path) -> NDArray[np.int32]:
        tests = list(SUSPICION.values())
        score = " + ".join(f"{weight} * CAST(coalesce({test}, false) AS INT)" for weight, test in tests)
        bits = " + ".join(
            f"{1 << place} * CAST(coalesce({test}, false) AS INT)" for place, (_, test) in enumerate(tests)
        )
        table = self.index.select(
            f"SELECT row, {score} AS score, {bits} AS bits FROM ("
            "SELECT r.*, s.task IS NOT NULL AS same_answer_other_reward FROM rollouts r LEFT JOIN ("
            "SELECT task, answer_hash FROM rollouts WHERE reward IS NOT NULL AND answer_hash IS NOT NULL "
            "GROUP BY task, answer_hash HAVING max(reward) > min(reward)) s "
            "ON r.task = s.task AND r.answer_hash = s.answer_hash AND r.reward IS NOT NULL"
            ") WHERE score > 0 ORDER BY score DESC, row"
        )
        columns = [
            np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int32) for column in table.columns
        ]
        found = np.stack(columns, axis=1) if table.num_rows else np.zeros((0, 3), dtype=np.int32)
        for old in path.parent.glob("suspicion-*.npy"):
            old.unlink(missing_ok=True)
        np.save(path, found, allow_pickle=False)
        return found

    # One rollout

    def open(self, row: int) -> Opened:
        """A rollout with the first piece of each turn."""
        line = self._line(row)
        table = self.index.select(f"SELECT * FROM rollouts WHERE row = {row}").to_pylist()
        if not table:
            raise UsageError(f"there is no rollout in row {row}")
        facts = {name: plain(value) for name, value in table[0].items() if value is not None}
        task = int(facts["task"])
        fields = dict(self.index.task_rows([task])).get(task, {})
        siblings = self.index.select(
            f"SELECT row, rollout, reward FROM rollouts WHERE task = {task} ORDER BY rollout, row"
        )
        decoded = read_row(line)
        return Opened(
            row=row,
            facts={
                name: visible(value) if isinstance(value, str) else value for name, value in facts.items()
            },
            why=self._why(row),
            turns=[head_of(turn) for turn in turns_of(decoded)],
            task={
                visible(str(name)): _short(value)
                for name, value in fields.items()
                if name != "responses_create_params"
            },
            verdicts=self._verdicts(task, int(facts["rollout"])),
            siblings=[[plain(value) for value in one.values()] for one in siblings.to_pylist()],
            raw_bytes=len(line),
            tokens=_tokens(decoded),
        )

    def piece(self, row: int, turn: int, start: int) -> str:
        """A further piece of a turn's text."""
        turns = turns_of(read_row(self._line(row)))
        if not 0 <= turn < len(turns):
            raise UsageError(f"rollout {row} has no turn {turn}")
        return visible(turns[turn].text[max(0, start) : max(0, start) + PIECE])

    def raw(self, row: int, start: int) -> str:
        """A piece of the line as it is in the file."""
        data = self._line(row)[max(0, start) : max(0, start) + PIECE]
        return visible(data.decode("utf-8", "replace"))

    def _line(self, row: int) -> bytes:
        return next(iter(self.index.read([row])))

    def _why(self, row: int) -> list[str]:
        kept = self._suspicion()
        found = kept[kept[:, 0] == row]
        bits = int(found[0, 2]) if len(found) else 0
        return [reason for place, reason in enumerate(SUSPICION) if bits >> place & 1]

    def _verdicts(self, task: int, rollout: int) -> list[JsonFields]:
        """What each verifier said, newest last; numbers and short texts only."""
        found = self.index.verdicts_of(task, rollout)
        return [
            {visible(str(name)): _short(value) for name, value in one.items() if value is not None}
            for one in found
        ]

    # Groups

    def groups(self, sort: str, start: int, count: int) -> tuple[int, list[JsonFields]]:
        """Tasks with their samples' rewards: (how many, a stretch of them)."""
        by = {
            "hardest": "mean, task",
            "easiest": "mean DESC, task",
            "mixed": "abs(mean - middle), task",
            "contradictions": "contradictions DESC, task",
            "task": "task",
        }.get(sort, "task")
        order = self.index.select(
            "WITH g AS (SELECT task, answer_hash, avg(reward) AS mean, count(*) AS n, max(reward) > min(reward) AS differs "
            "FROM rollouts GROUP BY task, answer_hash), middle AS (SELECT (min(reward) + max(reward)) / 2 AS middle FROM rollouts) "
            "SELECT task, sum(mean * n) / sum(CASE WHEN mean IS NULL THEN 0 ELSE n END) AS mean, any_value(middle) AS middle, "
            "sum(CAST(coalesce(differs, false) AS INT)) AS contradictions FROM g, middle GROUP BY task "
            f"ORDER BY {by} LIMIT {min(count, MOST_ROWS)} OFFSET {max(0, start)}"
        ).to_pylist()
        total = int(self.index.select("SELECT count(DISTINCT task) AS n FROM rollouts").to_pylist()[0]["n"])
        tasks = [int(one["task"]) for one in order]
        samples: dict[int, list[list[Any]]] = {task: [] for task in tasks}
        if tasks:
            names = ", ".join(map(str, tasks))
            rows = self.index.select(
                f"SELECT task, row, rollout, reward FROM rollouts WHERE task IN ({names}) ORDER BY task, rollout, row"
            )
            for one in rows.to_pylist():
                samples[one["task"]].append([one["row"], one["rollout"], plain(one["reward"])])
        return total, [
            {
                "task": int(one["task"]),
                "mean": plain(one["mean"]),
                "contradictions": int(one["contradictions"] or 0),
                "samples": samples[int(one["task"])],
            }
            for one in order
        ]


def _label(where: str, sort: str) -> str:
    given = {"filter": where, "sort": sort}
    return " ".join(f"{name} {text!r}" for name, text in given.items() if text) or "rollouts"


def _load(path: Path) -> NDArray[np.int32]:
    return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]


def head_of(turn: Turn) -> TurnHead:
    """A turn with its first piece of text."""
    return TurnHead(
        kind=turn.kind, title=visible(turn.title), text=visible(turn.text[:PIECE]), chars=len(turn.text)
    )


def plain(value: Any) -> Any:
    """A value that JSON can hold: no NaN, no Decimal, text made visible."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return float(value)
    return visible(value[:4096]) if isinstance(value, str) else value


def _short(value: Any) -> Any:
    """A field of a task or verdict, at most a few kilobytes of it."""
    if isinstance(value, str | int | float | bool) or value is None:
        return plain(value)
    text = msgspec.json.encode(value).decode()
    return visible(text if len(text) <= 4096 else f"{text[:4096]}… ({len(text):,} characters)")


def _tokens(row: JsonFields) -> list[list[Any]]:
    """The sampled tokens with their logprobs, where the rollout kept them."""
    response = row.get("response")
    found: list[list[Any]] = []
    for item in response.get("output") or [] if isinstance(response, dict) else []:
        for part in (
            item.get("content") or []
            if isinstance(item, dict) and isinstance(item.get("content"), list)
            else []
        ):
            for token in part.get("logprobs") or [] if isinstance(part, dict) else []:
                if isinstance(token, dict) and len(found) < MOST_TOKENS:
                    found.append([visible(str(token.get("token", ""))), plain(token.get("logprob"))])
    return found
