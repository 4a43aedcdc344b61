"""This module says what may watch a collection: something told of every rollout, every task given up and every group settled.

An observer runs in the event loop's thread and returns at once; what it does with what it is told happens elsewhere. It may ask
for patience (`room`), nothing else: it cannot change a rollout or end a run.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollforge.records import JsonObject


class Observer(Protocol):
    """Watches one collection."""

    def begin(
        self, run: str, tasks: NDArray[np.int64], owed: NDArray[np.int64], given_up: NDArray[np.int64]
    ) -> None:
        """The run's id, and the task indices in the order of dispatch, with the rollouts each still owes and those given up before."""

    def finished(self, row: JsonObject) -> None:
        """A rollout is on disk, as this row."""

    def gave_up(self, task: int) -> None:
        """A rollout of this task failed for good."""

    def settled(self, task: int) -> None:
        """Nothing more of this task will come."""

    async def room(self) -> None:
        """Wait until more may come."""

    async def close(self) -> None:
        """Finish what was begun."""
