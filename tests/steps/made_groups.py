"""Groups of rollouts without an index."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollforge.index import ByTask


def grouped(*sizes: int) -> Any:
    """Rollouts of tasks with these numbers of samples, without an index."""
    made: Any = object.__new__(ByTask)
    made.order = np.arange(sum(sizes))
    made.sizes = np.array(sizes)
    made.starts = np.cumsum([0, *sizes[:-1]])
    made.tasks = np.arange(len(sizes))
    made.task = np.repeat(made.tasks, sizes)
    return made
