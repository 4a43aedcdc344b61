"""This module tells the (task, rollout) of a line, for those who read the text of a run whose rows do not all say it themselves.

Numbers of rows without any depend on the rows around them. Whoever gives such a row a number of its own making will one day mean
another row than the index does, and a verdict will stand beside an answer that it is not about.
"""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from rollforge.index import parts
from rollforge.index.arrays import ints
from rollforge.index.cache import Cache
from rollforge.index.keys import Ints, resolve
from rollforge.index.tables import Source
from rollforge.store import RunFiles


class LineKeys(NamedTuple):
    """The numbers of every row of a file, by the line it stands in."""

    line: Ints
    task: Ints
    rollout: Ints

    @property
    def last(self) -> int:
        """The last line that holds a row."""
        return int(self.line[-1]) if len(self.line) else 0

    def get(self, line: int) -> tuple[int, int] | None:
        """The (task, rollout) of the row in this line, counted from 1; None when there is none."""
        place = int(np.searchsorted(self.line, line))
        if place == len(self.line) or self.line[place] != line:
            return None
        return int(self.task[place]), int(self.rollout[place])


def line_keys(files: RunFiles) -> LineKeys:
    """The keys of a run's rollouts as the file is now, also of those that a later row overrules."""
    cache = Cache(files.rollouts, "rollouts", files.index)
    with closing(cache.open()) as opened:
        sources = [Source(0, files.rollouts, cache.folder, opened.state, 0, opened.tables)]
        keys = resolve(parts.keys(sources))
        lines = parts.read_columns(sources, {"line": ("line", pa.int64())})
    return LineKeys(ints(lines.column("line")), keys.local_task, keys.local_rollout)
