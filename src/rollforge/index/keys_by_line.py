"""The (task, rollout) of every line of a run's rollouts, for readers of the text."""

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
    """The (task, rollout) of every row of a file, by line."""

    line: Ints
    task: Ints
    rollout: Ints

    @property
    def last(self) -> int:
        """The last line that is a row."""
        return int(self.line[-1]) if len(self.line) else 0

    def get(self, line: int) -> tuple[int, int] | None:
        """The (task, rollout) of the row in this line, counted from 1; None when there is none."""
        position = int(np.searchsorted(self.line, line))
        if position == len(self.line) or self.line[position] != line:
            return None
        return int(self.task[position]), int(self.rollout[position])


def line_keys(files: RunFiles) -> LineKeys:
    """The keys of a run's rollouts as the file is now, also of rows that a later one overrules.

    Readers of the text need it where rows do not carry their keys. A number of their own making would differ from the index's,
    and a verdict would be attached to another answer.
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
