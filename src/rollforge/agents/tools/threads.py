"""Runs a blocking function in its own daemon thread, so that the event loop never waits for it.

A thread cannot be killed: it continues after the caller gives up, and as a daemon it does not keep the process alive. There is no
pool, because a few hanging tools would fill it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def call_in_thread(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Run the function in a daemon thread; return its result or raise its exception."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            future.set_exception(error)
        else:  # a future cannot hold it, or it would end the loop
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    def work() -> None:
        value, problem = None, None
        try:
            value = context.run(function, *args, **keywords)
        except BaseException as error:  # noqa: BLE001  (the boundary to the tool's code; raised again in the loop)
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop has ended: no caller waits
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=work, daemon=True, name=f"tool-{getattr(function, '__name__', 'call')}").start()
    return await future
