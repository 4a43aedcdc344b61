"""The observer protocol: callbacks for every finished rollout, every rollout given up and every settled task of a collection.

Callbacks run in the event loop's thread and return at once; slow work belongs into another thread. An observer may delay the
collection (`room`), but cannot change rollouts or end a run: after an exception, `GuardedObserver` stops calling it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollforge.errors import RollforgeError
from rollforge.json_shapes import RowJson

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Watches one collection."""

    def begin(
        self, run: str, tasks: NDArray[np.int64], owed: NDArray[np.int64], given_up: NDArray[np.int64]
    ) -> None:
        """Called at the start with the run's id, and task indices in dispatch order with their owed and already failed rollouts."""

    def finished(self, row: RowJson) -> None:
        """Called with the row of every rollout on disk."""

    def gave_up(self, task: int) -> None:
        """Called when a rollout of this task failed for good."""

    def settled(self, task: int) -> None:
        """Called when no more rollouts of this task will follow."""

    async def room(self) -> None:
        """Wait until the observer can accept more."""

    async def close(self) -> None:
        """Finish pending work."""

    def shortfall(self) -> str:
        """What the observer failed to deliver; empty on success. A shortfall makes the run incomplete."""


class GuardedObserver:
    """Calls an observer until it raises; the first exception becomes the shortfall and does not affect rollouts."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._error = ""

    def begin(
        self, run: str, tasks: NDArray[np.int64], owed: NDArray[np.int64], given_up: NDArray[np.int64]
    ) -> None:
        self._call(lambda: self._observer.begin(run, tasks, owed, given_up))

    def finished(self, row: RowJson) -> None:
        self._call(lambda: self._observer.finished(row))

    def gave_up(self, task: int) -> None:
        self._call(lambda: self._observer.gave_up(task))

    def settled(self, task: int) -> None:
        self._call(lambda: self._observer.settled(task))

    async def room(self) -> None:
        if not self._error:
            with self._guarded():
                await self._observer.room()

    async def close(self) -> None:
        with self._guarded():
            await self._observer.close()

    def shortfall(self) -> str:
        return self._error or self._observer.shortfall()

    def _call(self, notify: Callable[[], None]) -> None:
        if self._error:
            return
        with self._guarded(lets_through=RollforgeError):
            notify()

    @contextlib.contextmanager
    def _guarded(self, lets_through: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        try:
            yield
        except lets_through:
            raise
        except Exception as error:  # noqa: BLE001  (reporting may not take a run down)
            self._error = f"steps are no longer reported: {type(error).__name__}: {error}"
            logger.warning("%s (said once; resume the run to report them)", self._error)
