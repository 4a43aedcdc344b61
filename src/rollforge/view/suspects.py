"""Suspicious rollouts of a run, most suspicious first: by the tests of `suspicion` and the findings of `check`.

Both are cached beside the index under its digest, so that reopening is fast. An unreadable or unwritable cache file is ignored,
because the index folder may belong to another user.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from rollforge.index import Index, ints
from rollforge.review.suspicion import TWIN_COLUMN, bits_sql, reasons_in, score_sql, twin_test
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store import UNREADABLE, RunFiles, write_atomically
from rollforge.store.reading import read_whole

logger = logging.getLogger(__name__)

WEIGHTS = {"error": 6, "warning": 3, "note": 1}
"""Finding level → score added to rollouts that the finding names."""

MOST_TASKS = 200
"""Most tasks of a finding whose rollouts are marked; a finding with more concerns the run as a whole."""

Table = NDArray[np.int32]


class PointedLocation(Struct, kw_only=True):
    """Location in a finding: a rollout, a task, or (ignored here) a stretch of lines."""

    task: int | None = None
    rollout: int | None = None
    first_line: int | None = None


class PointingFinding(Struct, kw_only=True):
    """The fields of a finding that are read."""

    level: str
    id: str
    text: str
    where: Sequence[PointedLocation] = ()


class Pointed(Struct, frozen=True, kw_only=True):
    """Rollouts that one finding names."""

    reason: str
    weight: int
    rows: Sequence[int]


class Suspects:
    """The suspicious rollouts of an index."""

    def __init__(self, index: Index, files: RunFiles, twins: Callable[[], Table]) -> None:
        """`twins` returns the rows of samples whose answer got a different reward in the same task."""
        self._index = index
        self._twins = twins
        self._tests_path = files.index / f"suspicion-{index.digest}.npy"
        self._pointed_path = files.index / f"suspicion-{index.digest}.json"
        self._pointed: list[Pointed] = self._load_pointed()
        self._tested: Table | None = None
        self._merged: Table | None = None
        self._pointed_at: dict[int, list[str]] = {}

    @property
    def has_findings(self) -> bool:
        """Whether findings of `check` are included."""
        return self._pointed_path.is_file() or bool(self._pointed)

    def table(self) -> Table:
        """(row, score, tests as bits), most suspicious first."""
        if self._merged is None:
            if self._tested is None:
                self._tested = _load(self._tests_path) if self._tests_path.is_file() else self._test()
            self._merged = self._merge(self._tested)
        return self._merged

    def why(self, row: int) -> list[str]:
        """Reasons for one rollout in words; empty if it is not suspicious."""
        table = self.table()
        matches = table[table[:, 0] == row]
        return self.reasons(row, int(matches[0, 2])) if len(matches) else []

    def reasons(self, row: int, bits: int) -> list[str]:
        """Reasons for a row of `table` in words."""
        return [*self._pointed_at.get(row, ()), *reasons_in(bits)]

    def take_findings(self, findings: Sequence[PointingFinding]) -> None:
        """Include the rollouts that findings name."""
        self._pointed = [
            Pointed(reason=f"{one.id}: {one.text}", weight=WEIGHTS[one.level], rows=rows)
            for one in findings
            if one.level in WEIGHTS and (rows := self._rows(one))
        ]
        self._merged = None
        with suppress(OSError):
            write_atomically(self._pointed_path, msgspec.json.encode(self._pointed))

    def _rows(self, finding: PointingFinding) -> list[int]:
        """Rows of the rollouts that a finding names; all samples, if it names only tasks."""
        locations = [one for one in finding.where if one.task is not None and one.first_line is None]
        exact = {(one.task, one.rollout) for one in locations if one.rollout is not None}
        tasks = sorted({one.task for one in locations if one.task is not None and one.rollout is None})
        conditions = [f"(task = {task} AND rollout = {rollout})" for task, rollout in exact]
        if 0 < len(tasks) <= MOST_TASKS:
            conditions.append(f"task IN ({', '.join(map(str, tasks))})")
        if not conditions:
            return []
        rows = self._index.select(f"SELECT row FROM rollouts WHERE {' OR '.join(conditions)} ORDER BY row")
        return [int(row) for row in rows.column(0).to_pylist()]

    def _merge(self, tested: Table) -> Table:
        self._pointed_at = {}
        extra: dict[int, int] = {}
        for one in self._pointed:
            for row in one.rows:
                self._pointed_at.setdefault(row, []).append(one.reason)
                extra[row] = extra.get(row, 0) + one.weight
        if not extra:
            return tested
        rows = np.fromiter(extra, dtype=np.int32, count=len(extra))
        is_tested = np.isin(rows, tested[:, 0])
        both = np.concatenate(
            [
                tested,
                np.stack(
                    [rows[~is_tested], np.zeros_like(rows[~is_tested]), np.zeros_like(rows[~is_tested])], 1
                ),
            ]
        )
        order = np.argsort(both[:, 0], kind="stable")
        position = order[np.searchsorted(both[order, 0], rows)]
        both[position, 1] += np.fromiter(extra.values(), dtype=np.int32, count=len(extra))
        return both[np.lexsort((both[:, 0], -both[:, 1]))]

    def _test(self) -> Table:
        # Answers with two rewards come from arrays: a join over all answers takes many times the memory.
        table = self._index.select(
            f"SELECT row, {score_sql()} AS score, {bits_sql()} AS bits FROM "
            f"(SELECT *, false AS {TWIN_COLUMN} FROM rollouts) WHERE score > 0"
        )
        columns = [ints(column).astype(np.int32) for column in table.columns]  # to_numpy would import pandas
        twins = self._twins()
        rows = np.union1d(columns[0], twins).astype(np.int32)
        tests = np.zeros((len(rows), 3), dtype=np.int32)
        tests[:, 0] = rows
        tests[np.searchsorted(rows, columns[0]), 1:] = np.stack(columns[1:], axis=1)
        bit, weight = twin_test()
        tests[np.searchsorted(rows, twins), 1] += weight
        tests[np.searchsorted(rows, twins), 2] |= 1 << bit
        tests = tests[np.lexsort((tests[:, 0], -tests[:, 1]))]
        try:
            for old in self._tests_path.parent.glob("suspicion-*"):
                if self._index.digest not in old.name:
                    old.unlink(missing_ok=True)
            np.save(self._tests_path, tests, allow_pickle=False)
        except OSError as error:
            logger.info("suspicion is not kept: %s", error)
        return tests

    def _load_pointed(self) -> list[Pointed]:
        try:
            return decode_json(read_whole(self._pointed_path), list[Pointed])
        except (OSError, *UNREADABLE):
            return []


def _load(path: Path) -> Table:
    return np.load(path, allow_pickle=False)  # type: ignore[no-any-return]
