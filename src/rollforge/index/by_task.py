"""Columns of a run grouped by task, a few at a time.

Statistics over a million rollouts need only a few columns and the row order by task, so few arrays are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from rollforge.index import arrow
from rollforge.index.identity import packed_keys
from rollforge.index.index import Index
from rollforge.statistics.stats import Floats, Ints, distinct

BATCH_VALUES = 2_500_000
"""Values per read, and default size of the cache: 20 MB."""

SHARED_VALUES = 20_000_000
"""Cache size in values for several steps over one run: 160 MB."""


class ByTask:
    """The rollouts of a run (or those selected by an expression) ordered by (task, rollout)."""

    def __init__(self, index: Index, where: str | None = None, *, remembered: int = BATCH_VALUES) -> None:
        self.index = index
        self.where = where
        self._remembered = remembered
        self._kept: dict[str, Floats] = {}
        self._codes: dict[str, tuple[Ints, list[str | None]]] = {}
        self.order: Ints
        self.task: Ints
        """The task of each rollout."""
        self.order, self.task = _by_task(index, where)
        self._is_in_order = np.array_equal(self.order, np.arange(len(self.order)))
        is_first = np.ones(len(self.task), dtype=np.bool_)
        np.not_equal(self.task[1:], self.task[:-1], out=is_first[1:])
        self.starts: Ints = np.flatnonzero(is_first)
        """The position of each task's first rollout."""
        self.sizes: Ints = np.diff(self.starts, append=len(self.task))
        """Number of rollouts of each task."""
        self.tasks: Ints = self.task[self.starts]
        """Task numbers, ascending."""

    def __len__(self) -> int:
        return len(self.order)

    def columns(self, names: Sequence[str]) -> Iterator[tuple[str, pa.ChunkedArray]]:
        """The stored columns, ordered by (task, rollout)."""
        at_once = max(1, BATCH_VALUES // max(1, len(self)))
        for first in range(0, len(names), at_once):
            some = list(names[first : first + at_once])
            table = self.index.table(some, self.where)
            for name in some:
                yield name, table.column(name).take(arrow.arrow_array(self.order))

    def codes(self, name: str) -> tuple[Ints, list[str | None]]:
        """A text column as codes, ordered by (task, rollout), and the text of each code (None for missing)."""
        if name in self._codes:
            return self._codes[name]
        codes, words = arrow.codes(self.index.table([name], self.where, may_code=True).column(0))
        codes[codes < 0] = len(words)
        self._codes[name] = codes if self._is_in_order else codes[self.order], [*words, None]
        return self._codes[name]

    def hashes(self, name: str) -> Ints:
        """A column of hashes, ordered by (task, rollout); 0 for missing. Integers, because floats could not represent them."""
        hashes = arrow.ints(self.index.table([name], self.where).column(0))
        return hashes if self._is_in_order else hashes[self.order]

    def numbered(self, name: str) -> tuple[Ints, pa.Array]:
        """Any column as codes, equal where values are equal (0 for missing), and the values of codes 1, 2, …"""
        column = self.index.table([name], self.where, may_code=True).column(0)
        if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
            numbers, values = arrow.coded(column)
            numbers += 1
        else:
            is_whole = pa.types.is_integer(column.type)
            each = arrow.ints(column) if is_whole else arrow.floats(column)
            has_value = arrow.is_known(column) if is_whole else ~np.isnan(each)
            kinds = distinct(each[has_value])
            numbers = np.where(has_value, np.searchsorted(kinds, each) + 1, 0)
            values = arrow.arrow_array(kinds)
        return numbers if self._is_in_order else numbers[self.order], values

    def floats(self, names: Sequence[str]) -> Iterator[tuple[str, Floats]]:
        """Each number column as floats, NaN for missing, ordered by (task, rollout); read-only."""
        at_once = max(1, BATCH_VALUES // max(1, len(self)))
        for first in range(0, len(names), at_once):
            some = list(names[first : first + at_once])
            unread = [name for name in some if name not in self._kept]
            read = self.index.floats(unread, self.where) if unread else {}
            for name in some:
                column = self._kept.get(name)
                if column is None:
                    column = read[name]
                    column = column if self._is_in_order else column[self.order]
                    self._keep(name, column)
                yield name, column

    def keep(self, names: Sequence[str]) -> None:
        """Read these columns together into the cache, if they fit."""
        unread = [name for name in dict.fromkeys(names) if name not in self._kept]
        if unread and (len(self._kept) + len(unread)) * len(self) <= self._remembered:
            for name, column in self.index.floats(unread, self.where).items():
                self._keep(name, column if self._is_in_order else column[self.order])

    def _keep(self, name: str, column: Floats) -> None:
        """Cache a column while the cache has room: most runs are small, and most columns are needed again."""
        if (len(self._kept) + 1) * len(self) <= self._remembered:
            column.flags.writeable = False
            self._kept[name] = column

    def one(self, name: str) -> Floats:
        """A single number column."""
        return next(self.floats([name]))[1]

    def sums(self, values: Floats) -> tuple[Floats, Floats]:
        """Sum and number of non-missing values per task."""
        if not len(self):
            return np.zeros(0), np.zeros(0)
        has_value = ~np.isnan(values)
        if has_value.all():
            counts = self.sizes.astype(np.float64)
            is_constant = not values.strides[0] and values[0].is_integer() and abs(values[0]) < 2**20
            return values[0] * counts if is_constant else np.add.reduceat(values, self.starts), counts
        sums = np.add.reduceat(np.where(has_value, values, 0.0), self.starts)
        return sums, np.add.reduceat(has_value.astype(np.float64), self.starts)


class SharedGroups:
    """Shared cache of `ByTask` objects, so that several steps over one run read each column once."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._by_condition: dict[str | None, ByTask] = {}

    def get(self, where: str | None = None) -> ByTask:
        """`ByTask` for the rollouts that an expression selects."""
        if where not in self._by_condition:
            self._by_condition[where] = ByTask(self._index, where, remembered=SHARED_VALUES)
        return self._by_condition[where]


def _by_task(index: Index, where: str | None) -> tuple[Ints, Ints]:
    """Row order by (task, rollout), and the task of each rollout in that order."""
    keys = index.table(["task", "rollout"], where)
    task, rollout = arrow.ints(keys.column("task")), arrow.ints(keys.column("rollout"))
    del keys
    if len(task) and (key := packed_keys(task, rollout)) is not None:
        del rollout
        if (key[1:] >= key[:-1]).all():
            return np.arange(len(task)), task
        order = np.argsort(key, kind="stable")
    else:
        order = np.lexsort((rollout, task))
    return order, task[order]
