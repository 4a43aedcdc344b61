"""This module keeps worker processes for the few calls that need them: they start with the first one.

A cheap verifier judges in the event loop, except tasks that it says are not cheap (a regular expression of the row's may backtrack for
ever, and nothing in our own process could end it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from rollforge.records import Response, Task
from rollforge.verifiers.inline import LoopEngine
from rollforge.verifiers.line import Outcome
from rollforge.verifiers.workers import WorkerPool


class PoolOnDemand:
    """A pool that starts when it is first asked."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._starting: asyncio.Task[None] | None = None

    async def run(self, task: Task, responses: list[Response]) -> Outcome:
        if self._starting is None:
            self._starting = asyncio.create_task(self._pool.start())
        await asyncio.shield(self._starting)  # others wait for it too
        return await self._pool.run(task, responses)

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.wait([self._starting])
            await self._pool.close()


class MixedEngine:
    """Calls a cheap verifier in the event loop, and in workers for tasks that are not cheap."""

    def __init__(self, loop: LoopEngine, pool: WorkerPool, is_cheap_for: Callable[[Task], bool]) -> None:
        self._loop = loop
        self._pool = pool
        self._on_demand = PoolOnDemand(pool)
        self._is_cheap_for = is_cheap_for

    @property
    def queued(self) -> int:
        return self._pool.queued

    @property
    def busy(self) -> int:
        return self._pool.busy + self._loop.running

    @property
    def size(self) -> int:
        return self._pool.size

    @property
    def replaced(self) -> int:
        return self._pool.replaced

    async def start(self) -> None:
        await self._loop.start()

    def run(self, task: Task, responses: list[Response]) -> Coroutine[Any, Any, Outcome]:
        """The outcome of one call; raises `Failure` when there is none."""
        engine = self._loop if self._is_cheap_for(task) else self._on_demand
        return engine.run(task, responses)

    def drop_waiting(self) -> None:
        """Take back what no worker has been given yet."""
        self._pool.drop_waiting()

    async def close(self) -> None:
        await self._loop.close()
        await self._on_demand.close()
