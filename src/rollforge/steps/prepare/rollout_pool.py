"""The rollouts of all runs as the columns that recipes read.

Every run has its own index: rows of two runs with the same task and rollout numbers are two rollouts. Rollouts form a group if
they have the same task and prompt; with `apart`, also the same run.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO

import msgspec
import numpy as np

from rollforge.errors import UsageError
from rollforge.index import (
    Index,
    byte_stream,
    codes,
    ints,
    is_compressed,
    open_index,
    read_spans,
    text_hashes,
)
from rollforge.recipes.base import Candidates, Ints, Mask, group_stats, rank_in_group, scrambled
from rollforge.recipes.recipe_columns import FLAGS, answer_codes, candidate_columns, rollout_keys
from rollforge.statistics.stats import distinct
from rollforge.steps.prepare.settings import Settings

_AT_ONCE = 8192


@dataclass
class TextColumn:
    """A dictionary-encoded column of texts."""

    codes: Ints
    """Code per row; -1 for null."""
    names: list[str]

    def take(self, positions: Ints) -> list[str | None]:
        """The texts at these positions."""
        return [self.names[code] if code >= 0 else None for code in self.codes[positions].tolist()]


class EvaluationOverlap(msgspec.Struct):
    """Result of decontamination against one file."""

    file: str
    prompts: int
    """Number of prompts read."""
    tasks: int
    """Number of the runs' tasks whose prompt overlaps one of them."""


@dataclass
class Pool:
    """The rollouts of all runs."""

    indexes: list[Index]
    candidates: Candidates
    run: Ints
    task: Ints
    """Task number; -1 for a row without one."""
    rollout: Ints
    line: Ints
    """Line in the run's file, from 1."""
    prompt: Ints
    """Hash of the prompt, for splits and duplicate prompts."""
    has_calls: Mask
    """Whether the answer has tool calls; then its hash is not used, since it covers only the text."""
    verifiers: TextColumn
    order: Ints
    """Per rollout, its position in the rows of all runs, run after run."""
    task_key: Ints
    """Task numbers from the rows; -1 for tasks that were numbered in line order."""
    sample: Ints
    """Sample number within the task: from the row, else by content."""
    failed: int
    """Recorded failed attempts; they are not rollouts."""
    rejected: int
    """Lines that are not rollouts."""
    overruled: int
    """Rows replaced by a later one with the same task, rollout and attempt."""
    evaluations: list[EvaluationOverlap] = field(default_factory=list)
    _unpacked: dict[int, IO[bytes]] = field(default_factory=dict)
    """Run → its temporary uncompressed file."""

    @cached_property
    def agents(self) -> TextColumn:
        """The agent of each rollout."""
        return _names(self.indexes, "agent", self.order)

    @cached_property
    def shared_tasks(self) -> frozenset[int]:
        """Task numbers that several groups share: different prompts, or separate runs."""
        _, first = np.unique(self.candidates.group, return_index=True)
        tasks, counts = np.unique(self.task_key[first], return_counts=True)
        return frozenset(tasks[counts > 1].tolist())

    def read(self, positions: Ints) -> Iterator[bytes]:
        """The lines of these rollouts, in the given order; offsets are looked up a few thousand at a time."""
        for start in range(0, len(positions), _AT_ONCE):
            some = positions[start : start + _AT_ONCE]
            runs = self.run[some]
            streams = {int(run): self._lines(int(run), some[runs == run]) for run in distinct(runs)}
            if len(streams) == 1:
                yield from streams.popitem()[1]
            else:
                for run in runs:
                    yield next(streams[int(run)])

    def _lines(self, run: int, positions: Ints) -> Iterator[bytes]:
        """Lines of one run. A compressed run is unpacked once if its lines are not requested in file order."""
        rows = self.candidates.row[positions]
        if not self._is_packed(run) or bool((np.diff(rows) >= 0).all()):
            return self.indexes[run].read(rows.tolist())
        offset, length = (column[positions].tolist() for column in self.spans)
        return read_spans(self.plain_file(run), list(zip(offset, length, strict=True)))

    def _is_packed(self, run: int) -> bool:
        return any(is_compressed(files.rollouts) for files in self.indexes[run].runs)

    def plain_file(self, run: int) -> Path:
        """The uncompressed rollouts file of a run; a temporary file if the run is compressed."""
        (files,) = self.indexes[run].runs
        if not is_compressed(files.rollouts):
            return files.rollouts
        if run not in self._unpacked:
            file = tempfile.NamedTemporaryFile(prefix="rollforge-")  # noqa: SIM115  (closed with the pool)
            with byte_stream(files.rollouts) as packed:
                shutil.copyfileobj(packed, file, 1 << 20)
            file.flush()
            self._unpacked[run] = file
        return Path(self._unpacked[run].name)

    def source_files(self) -> list[Path]:
        """The uncompressed files that contain the rollouts of all runs."""
        paths: list[Path] = []
        for run, index in enumerate(self.indexes):
            paths += [self.plain_file(run)] if self._is_packed(run) else index.rollout_files
        return paths

    @cached_property
    def source(self) -> Ints:
        """Index into `source_files` for each rollout."""
        source = np.zeros(len(self.run), dtype=np.int64)
        before = 0
        for run, index in enumerate(self.indexes):
            mine = self.run == run
            source[mine] = index.file_numbers(self.candidates.row[mine]) + before
            before += len(index.rollout_files)
        return source

    @cached_property
    def spans(self) -> tuple[Ints, Ints]:
        """Byte offset and length of each rollout's line in its file."""
        tables = [index.table(["offset", "length"]) for index in self.indexes]
        offset, length = (
            np.concatenate([ints(table.column(name)) for table in tables]) for name in ("offset", "length")
        )
        return offset[self.order], length[self.order]

    def task_ids(self, positions: Ints) -> list[str]:
        """Task names of these rollouts: the number, with the group if the number is missing or shared."""
        shared = self.shared_tasks
        tasks, groups = self.task_key[positions].tolist(), self.candidates.group[positions].tolist()
        return [
            f"group-{group}" if task < 0 else f"{task}-group-{group}" if task in shared else str(task)
            for task, group in zip(tasks, groups, strict=True)
        ]

    def close(self) -> None:
        """Close the runs' files; the columns remain usable."""
        while self.indexes:
            self.indexes.pop().close()
        while self._unpacked:
            self._unpacked.popitem()[1].close()


def load_pool(runs: Sequence[str | Path], settings: Settings, index: Index | None = None) -> Pool:
    """The runs as columns, with the user's conditions as flags.

    Args:
        index: the single run's index, if already open; the pool closes it.
    """
    if index is not None and len(runs) == len(index.runs) == 1:
        indexes = [index]
    else:
        indexes = [open_index(run, verifier=settings.verifier) for run in runs]
    parts = [_columns(each, settings) for each in indexes]
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
    has_keys = np.concatenate(
        [np.full(size, index.has_own_keys) for size, index in zip(sizes, indexes, strict=True)]
    )
    joined["task_key"] = np.where(has_keys, joined["task"], -1)
    joined["sample_key"] = np.where(has_keys, joined["rollout"], -1)
    order = canonical_order(joined, run, _line_hashes(indexes, joined, run))
    for name in joined:  # one at a time, so that no more than one column is there twice
        joined[name] = joined[name][order]
    run = run[order]
    flags = {
        name: joined[name] for name in (*FLAGS, "where", "chosen_where", "rejected_where") if name in joined
    }
    for name in ("chosen_where", "rejected_where"):
        if name in flags and not flags[name].any():
            raise UsageError(
                f"--{name.replace('_', '-')} {getattr(settings, name)!r} holds for no rollout",
                hint=f"see the columns: rollforge query {shlex.quote(str(runs[0]))} 'select * from rollouts limit 1'",
            )
    candidates = Candidates(
        row=joined["row"],
        group=_groups(joined, run, settings),
        reward=joined["reward"],
        answer=answer_codes(joined),
        chars=joined["answer_chars"],
        key=rollout_keys(joined),
        flags=flags,
    )
    pool = Pool(
        indexes=indexes,
        candidates=candidates,
        run=run,
        task=joined["task"],
        rollout=joined["rollout"],
        line=joined["line"],
        prompt=joined["prompt_hash"],
        has_calls=joined["tool_calls"] > 0,
        verifiers=_names(indexes, "verifier", order),
        order=order,
        task_key=joined["task_key"],
        sample=_samples(joined, candidates.group),
        failed=sum(_count_failures(index) for index in indexes),
        rejected=sum(index.rejected_lines for index in indexes),
        overruled=sum(index.duplicate_count for index in indexes),
    )
    unusable = _length_limits(candidates, settings)
    pool.candidates = replace(candidates, unusable=unusable)
    if settings.balance not in (None, "label"):
        pool.candidates = replace(pool.candidates, balance=_balance_classes(pool, settings))
    return pool


def _columns(index: Index, settings: Settings) -> dict[str, np.ndarray]:
    """The run's columns, and masks of the user's conditions."""
    columns = candidate_columns(index)
    for flag in ("where", "chosen_where", "rejected_where"):
        condition = getattr(settings, flag)
        if condition is not None:
            rows = ints(
                index.table(["row"], where=condition, flag=f"--{flag.replace('_', '-')}").column("row")
            )
            columns[flag] = np.isin(columns["row"], rows)
    return columns


def _names(indexes: Sequence[Index], column: str, order: Ints) -> TextColumn:
    """A text column of all runs, dictionary-encoded."""
    coded = [codes(index.table([column], may_code=True).column(column)) for index in indexes]
    names = sorted({name for _, texts in coded for name in texts})
    code_by_name = {name: number for number, name in enumerate(names)}
    numbers = [np.array([*(code_by_name[name] for name in texts), -1])[each] for each, texts in coded]
    return TextColumn(np.concatenate(numbers)[order], names)


def canonical_order(columns: dict[str, np.ndarray], run: Ints, line_hash: Ints) -> Ints:
    """Positions sorted by task, sample and content, so that results do not depend on line order, nor on file order if keys
    differ.
    """
    return np.lexsort(
        (
            *(columns["row"], run, line_hash),
            *(columns["reward"], columns["answer_chars"], columns["answer_hash"]),
            *(columns["sample_key"], columns["prompt_hash"], columns["task_key"]),
        )
    )


def _line_hashes(indexes: Sequence[Index], columns: dict[str, np.ndarray], run: Ints) -> Ints:
    """Hashes of lines without numbers that share prompt and answer with another, and so differ in reasoning or tool calls; else
    0.
    """
    hashes = np.zeros(len(run), dtype=np.int64)
    bare = np.flatnonzero(columns["sample_key"] < 0)
    if not len(bare):
        return hashes
    identity = scrambled(columns["prompt_hash"][bare], 1) ^ scrambled(columns["answer_hash"][bare], 2)
    _, numbers, counts = np.unique(identity, return_inverse=True, return_counts=True)
    alike = bare[counts[numbers] > 1]
    for number in np.unique(run[alike]):
        mine = alike[run[alike] == number]
        mine = mine[np.argsort(columns["row"][mine], kind="stable")]
        lines = indexes[int(number)].read(columns["row"][mine].tolist())
        hashes[mine] = text_hashes(lines)
    return hashes


def _samples(columns: dict[str, np.ndarray], group: Ints) -> Ints:
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = rank_in_group(group[order])
    return np.where(columns["sample_key"] >= 0, columns["sample_key"], rank)


def _groups(columns: dict[str, np.ndarray], run: Ints, settings: Settings) -> Ints:
    """Group numbers in canonical order."""
    key = scrambled(columns["task"], 1) ^ scrambled(columns["prompt_hash"], 2)
    if settings.apart:
        key ^= scrambled(run, 3)
    _, first, codes = np.unique(key, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[codes])


def _length_limits(candidates: Candidates, settings: Settings) -> dict[str, Mask]:
    ruled_out: dict[str, Mask] = {}
    if settings.min_chars is not None:
        ruled_out["answer too short"] = candidates.chars < settings.min_chars
    if settings.max_chars is not None:
        ruled_out["answer too long"] = candidates.chars > settings.max_chars
    return ruled_out


def _count_failures(index: Index) -> int:
    """Number of attempts without a rollout. Failed verdicts in the same file are excluded, because their rollouts exist."""
    if not any(files.failures.is_file() for files in index.runs):
        return 0
    counted = (
        index.connection()
        .execute("SELECT count(*) FROM failures WHERE boundary IS DISTINCT FROM 'verifier'")
        .fetchone()
    )
    return int(counted[0]) if counted else 0


def _balance_classes(pool: Pool, settings: Settings) -> Ints:
    """A balance class per rollout: thirds of difficulty, or values of a column or a task field."""
    candidates, name = pool.candidates, settings.balance
    if name == "difficulty":
        rate = group_stats(candidates, settings.recipe_options()).pass_rate[candidates.group]
        return np.digitize(np.nan_to_num(rate), (1 / 3, 2 / 3)).astype(np.int64)
    values = [value for index in pool.indexes for value in _field_values(index, str(name))]
    values = [values[position] for position in pool.order]
    names = sorted({repr(value) for value in values})
    if len(names) < 2 and all(value is None for value in values):
        run = shlex.quote(pool.indexes[0].runs[0].name)
        raise UsageError(
            f"--balance {name}: neither a column of the run nor a field of its tasks",
            hint=f"balance by difficulty, or by a column: rollforge query {run} 'select * from rollouts limit 1'",
        )
    code = {name: number for number, name in enumerate(names)}
    return np.array([code[repr(value)] for value in values], dtype=np.int64)


def _field_values(index: Index, field: str) -> list[object]:
    if field in index.columns():
        return list(index.table([field]).column(field).to_pylist())
    tasks = index.table(["task"]).column("task").to_pylist()
    value_by_task = {
        task: row.get(field) for task, row in index.task_rows(sorted({t for t in tasks if t is not None}))
    }
    return [value_by_task.get(task) for task in tasks]
