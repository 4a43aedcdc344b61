"""This module loads runs as the columns that recipes read, and knows where each rollout came from.

Every run is its own index: rows of two runs with the same task and rollout numbers are two rollouts, never one replacing the other.
Rollouts share a group when they have the same task and the same prompt; with `apart`, also the same run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rollforge.errors import UsageError
from rollforge.index import Index, open_index
from rollforge.recipes.base import Candidates, Ints, Mask, group_stats, scrambled
from rollforge.steps.prepare.settings import Settings

_AT_ONCE = 8192
_TEXTS = ("agent", "verifier")
_FLAGS = ("truncated", "empty", "error_text")


@dataclass
class Names:
    """A column of texts, most of them equal."""

    codes: Ints
    """-1 for none."""
    names: list[str]

    def __getitem__(self, position: int) -> str | None:
        code = int(self.codes[position])
        return self.names[code] if code >= 0 else None


@dataclass
class Pool:
    """The rollouts of all runs."""

    indexes: list[Index]
    candidates: Candidates
    run: Ints
    task: Ints
    """-1 where a row has no task number."""
    rollout: Ints
    prompt: Ints
    """Hash of the prompt: what splits and prompt duplicates go by."""
    agents: Names
    verifiers: Names
    failed: int
    """Failed attempts on record; they are no rollouts and in no count of them."""

    def read(self, positions: Ints) -> Iterator[bytes]:
        """The lines of these rollouts, in the order asked; places are looked up a few thousand at a time."""
        for start in range(0, len(positions), _AT_ONCE):
            some = positions[start : start + _AT_ONCE]
            runs, rows = self.run[some], self.candidates.row[some]
            streams = {
                int(run): self.indexes[run].read(rows[runs == run].tolist()) for run in np.unique(runs)
            }
            if len(streams) == 1:
                yield from streams.popitem()[1]
            else:
                for run in runs:
                    yield next(streams[int(run)])

    def close(self) -> None:
        """Let go of the runs' files; the columns stay."""
        while self.indexes:
            self.indexes.pop().close()


def load_pool(runs: Sequence[str | Path], settings: Settings) -> Pool:
    """The runs as columns, with the user's conditions as flags."""
    indexes = [open_index(run, verifier=settings.verifier) for run in runs]
    parts, texts = zip(*(_columns(index, settings) for index in indexes), strict=True)
    joined = (
        parts[0] if len(parts) == 1 else {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    )
    sizes = [len(part["row"]) for part in parts]
    del parts
    run = np.repeat(np.arange(len(sizes)), sizes)
    if not len(run):
        raise UsageError(
            f"{', '.join(map(str, runs))}: no rollouts", hint="collect some: rollforge collect --help"
        )
    flags = {
        name: joined[name] for name in (*_FLAGS, "where", "chosen_where", "rejected_where") if name in joined
    }
    candidates = Candidates(
        row=joined["row"],
        group=_groups(joined, run, settings),
        reward=joined["reward"],
        answer=_answers(joined),
        chars=joined["answer_chars"],
        flags=flags,
    )
    pool = Pool(
        indexes=indexes,
        candidates=candidates,
        run=run,
        task=joined["task"],
        rollout=joined["rollout"],
        prompt=joined["prompt_hash"],
        agents=_joined_names([index_part["agent"] for index_part in texts]),
        verifiers=_joined_names([index_part["verifier"] for index_part in texts]),
        failed=sum(_count_failures(index) for index in indexes),
    )
    unusable = _length_limits(candidates, settings)
    pool.candidates = replace(candidates, unusable=unusable)
    if settings.balance not in (None, "label"):
        pool.candidates = replace(pool.candidates, balance=_balance_classes(pool, settings))
    return pool


def _joined_names(parts: Sequence[Names]) -> Names:
    """The same names of several runs under one number."""
    names = sorted({name for part in parts for name in part.names})
    place = {name: number for number, name in enumerate(names)}
    codes = []
    for part in parts:
        renumbered = np.array([place[name] for name in part.names] + [-1], dtype=np.int64)
        codes.append(renumbered[part.codes])
    return Names(np.concatenate(codes), names)


_NUMBERS = {
    "row": "row",
    "task": "coalesce(task, -1)",
    "rollout": "coalesce(rollout, -1)",
    "prompt_hash": "coalesce(prompt_hash, 0)",
    "answer_hash": "coalesce(answer_hash, 0)",
    "has_answer": "answer_hash IS NOT NULL",
    "answer_chars": "coalesce(answer_chars, 0)",
    "tool_calls": "coalesce(tool_calls, 0)",
    "reward": "coalesce(reward, 'nan'::DOUBLE)",
    "truncated": "coalesce(is_truncated, false)",
    "empty": "coalesce(is_empty, false)",
    "error_text": "coalesce(error_text, false)",
}


def _columns(index: Index, settings: Settings) -> tuple[dict[str, np.ndarray], dict[str, Names]]:
    """The run's columns as plain numpy, and its texts as numbers; nulls are filled where the numbers are made."""
    cursor = index.connection()
    names: dict[str, list[str]] = {}
    for text in _TEXTS:
        distinct = f"SELECT DISTINCT {text} FROM rollouts WHERE {text} IS NOT NULL ORDER BY 1"
        names[text] = [str(name) for (name,) in cursor.execute(distinct).fetchall()]
    wanted = [f"{value} AS {name}" for name, value in _NUMBERS.items()]
    wanted += [f"coalesce(list_position(?, {text}), 0) - 1 AS {text}" for text in _TEXTS]
    sql = f"SELECT {', '.join(wanted)} FROM rollouts ORDER BY row"
    raw = cursor.execute(sql, [names[text] or [""] for text in _TEXTS]).fetchnumpy()
    found = {name: np.asarray(raw[name]) for name in _NUMBERS}
    found |= {
        name: column.astype(np.int64, copy=False)
        for name, column in found.items()
        if column.dtype.kind in "iu"
    }
    for flag in ("where", "chosen_where", "rejected_where"):
        condition = getattr(settings, flag)
        if condition is not None:
            rows = np.asarray(index.table(["row"], where=condition).column("row").to_numpy(), dtype=np.int64)
            found[flag] = np.isin(found["row"], rows)
    return found, {text: Names(np.asarray(raw[text]).astype(np.int64), names[text]) for text in _TEXTS}


def _groups(columns: dict[str, np.ndarray], run: Ints, settings: Settings) -> Ints:
    """Group numbers in the order in which groups first appear."""
    key = scrambled(columns["task"], 1) ^ scrambled(columns["prompt_hash"], 2)
    if settings.apart:
        key ^= scrambled(run, 3)
    _, first, codes = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[codes])


def _answers(columns: dict[str, np.ndarray]) -> Ints:
    """Equal numbers for answers known to be equal. An answer with tool calls is equal to none: its hash covers the text alone."""
    known = columns["has_answer"] & (columns["tool_calls"] == 0)
    alone = scrambled(np.arange(len(known)), 4).astype(np.int64)
    return np.where(known, columns["answer_hash"], alone)


def _length_limits(candidates: Candidates, settings: Settings) -> dict[str, Mask]:
    found: dict[str, Mask] = {}
    if settings.min_chars is not None:
        found["answer too short"] = candidates.chars < settings.min_chars
    if settings.max_chars is not None:
        found["answer too long"] = candidates.chars > settings.max_chars
    return found


def _count_failures(index: Index) -> int:
    found = index.connection().execute("SELECT count(*) FROM failures").fetchone()
    return int(found[0]) if found else 0


def _balance_classes(pool: Pool, settings: Settings) -> Ints:
    """A class per rollout: thirds of the difficulty, or the values of a column or a task's field."""
    candidates, field = pool.candidates, settings.balance
    if field == "difficulty":
        rate = group_stats(candidates, settings.recipe_options()).pass_rate[candidates.group]
        return np.digitize(np.nan_to_num(rate), (1 / 3, 2 / 3)).astype(np.int64)
    values = [value for index in pool.indexes for value in _field_values(index, str(field))]
    names = sorted({repr(value) for value in values})
    if len(names) < 2 and all(value is None for value in values):
        raise UsageError(
            f"--balance {field}: neither a column of the run nor a field of its tasks",
            hint="balance by difficulty, or by a column: rollforge query RUN 'select * from rollouts limit 1'",
        )
    code = {name: number for number, name in enumerate(names)}
    return np.array([code[repr(value)] for value in values], dtype=np.int64)


def _field_values(index: Index, field: str) -> list[object]:
    if field in index.columns():
        return list(index.table([field]).column(field).to_pylist())
    tasks = index.table(["task"]).column("task").to_pylist()
    known = {
        task: row.get(field) for task, row in index.task_rows(sorted({t for t in tasks if t is not None}))
    }
    return [known.get(task) for task in tasks]
