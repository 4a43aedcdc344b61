"""Runs async work from sync code and waits for it, whether or not this thread already runs an event loop.

The work runs in a separate thread with its own loop. The calling thread waits, draws progress and receives interrupts: Ctrl-C in
a script and a kernel interrupt in a notebook both raise KeyboardInterrupt here. The first one drains, the second aborts.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from rollforge.runtime.event_loop import run_async

T = TypeVar("T")

TICK_S = 0.25
"""Interval of progress updates."""


class WaitingWork(Generic[T]):
    """Async work that can be drained (finish rollouts in flight) or aborted (drop them)."""

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, T]],
        *,
        drain: Callable[[], None] = lambda: None,
        abort: Callable[[], None] = lambda: None,
        show: Callable[[], None] = lambda: None,
    ) -> None:
        self.start = start
        self.drain = drain
        self.abort = abort
        self.show = show
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = threading.Event()
        self._result: list[T] = []
        self._error: BaseException | None = None

    def wait(self) -> T:
        """Run the work in a separate thread and return its result.

        Raises:
            KeyboardInterrupt: interrupted twice; what is on disk can be resumed.
        """
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(self._run,), name="rollforge", daemon=True)
        thread.start()
        interrupts = 0
        while True:
            try:
                while not self._ended.wait(TICK_S):
                    self.show()
                break
            except KeyboardInterrupt:
                interrupts += 1
                if interrupts > 2:
                    raise
                self._call(self.drain if interrupts == 1 else self.abort)
        if interrupts > 1:
            raise KeyboardInterrupt
        if self._error is not None:
            raise self._error
        return self._result[0]

    async def run(self) -> T:
        """Run the work in the caller's event loop; cancelling drains, a second cancellation aborts."""
        work = asyncio.ensure_future(self.start())
        shown = asyncio.ensure_future(self._keep_showing())
        try:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                if work.done():
                    raise
                self.drain()
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                self.abort()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
            raise asyncio.CancelledError
        finally:
            shown.cancel()

    async def _keep_showing(self) -> None:
        while True:
            self.show()
            await asyncio.sleep(TICK_S)

    def _run(self) -> None:
        try:
            self._result.append(run_async(self._main()))
        except BaseException as error:  # noqa: BLE001  (it is raised again in the thread that waits)
            self._error = error
        finally:
            self._ended.set()

    async def _main(self) -> T:
        self._loop = asyncio.get_running_loop()
        return await self.start()

    def _call(self, action: Callable[[], None]) -> None:
        """Call a function in the work's own loop, where its state may be changed."""
        loop = self._loop
        if loop is None:
            action()
            return
        with contextlib.suppress(RuntimeError):  # the loop has just closed: the work has ended
            loop.call_soon_threadsafe(action)
