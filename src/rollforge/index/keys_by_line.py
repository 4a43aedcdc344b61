"""The (task, rollout) key of every line in a run's rollouts, for code that reads the text."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

import numpy as np

from rollforge.index import parts
from rollforge.index.arrow import ints
from rollforge.index.cache import IndexCache
from rollforge.index.identity import resolve
from rollforge.index.indexed_parts import indexed_parts
from rollforge.index.state import IndexedFiles
from rollforge.statistics.stats import Ints
from rollforge.store import RunFiles


class LineKeys(NamedTuple):
    """The (task, rollout) key of every row of a file, by line."""

    line: Ints
    task: Ints
    rollout: Ints

    @property
    def last(self) -> int:
        """Number of the last line that is a row."""
        return int(self.line[-1]) if len(self.line) else 0

    def get(self, line: int) -> tuple[int, int] | None:
        """The (task, rollout) key of the row in this line, counted from 1; None if there is no row."""
        position = int(np.searchsorted(self.line, line))
        if position == len(self.line) or self.line[position] != line:
            return None
        return int(self.task[position]), int(self.rollout[position])


def line_keys(files: RunFiles) -> LineKeys:
    """Keys of all rollout rows in the current file, including overruled ones.

    Needed by code that reads the text of rows without keys: if it numbered rows itself, its keys could differ from the index's,
    and a verdict could be attached to the wrong answer.
    """
    indexed = IndexedFiles()
    with ExitStack() as held:
        for kind, part in indexed_parts(files):
            if kind in ("rollouts", "tasks"):
                cache = IndexCache(part.path, kind, part.index, part.length)
                index = cache.update()
                held.callback(index.release)
                indexed.add(kind, 0, part.path, cache.folder, index.state)
        rollouts = indexed.by_kind["rollouts"]
        keys = resolve(parts.rollout_keys(rollouts), parts.task_keys(indexed.by_kind["tasks"]))
        line = ints(parts.read_ints(rollouts, "line").column(0))
    return LineKeys(line, keys.local_task, keys.local_rollout)
