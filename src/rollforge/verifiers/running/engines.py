"""Call engines: workers that start with the first call, and the event loop for cheap tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from rollforge.records import Response, Task
from rollforge.verifiers.running.calling import EngineState
from rollforge.verifiers.running.in_loop import LoopEngine
from rollforge.verifiers.running.worker_line import CallOutcome
from rollforge.verifiers.running.worker_pool import WorkerPool


class PoolOnDemand:
    """A pool that starts with its first call."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._starting: asyncio.Task[None] | None = None

    async def run(self, task: Task, responses: list[Response]) -> CallOutcome:
        if self._starting is None:
            self._starting = asyncio.create_task(self._pool.start())
        await asyncio.shield(self._starting)  # other calls await it too
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

    def state(self) -> EngineState:
        """The pool's state, with calls in the loop counted as busy."""
        state = self._pool.state()
        return msgspec.structs.replace(state, busy=state.busy + self._loop.state().busy, is_forked=False)

    async def start(self) -> None:
        await self._loop.start()

    def run(self, task: Task, responses: list[Response]) -> Coroutine[Any, Any, CallOutcome]:
        """Run one call and return its outcome; raises `Failure` if there is none."""
        engine = self._loop if self._is_cheap_for(task) else self._on_demand
        return engine.run(task, responses)

    def drop_waiting(self) -> None:
        """Cancel calls that no worker has started."""
        self._pool.drop_waiting()

    async def close(self) -> None:
        await self._loop.close()
        await self._on_demand.close()
