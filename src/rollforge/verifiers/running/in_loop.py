"""Calls in the event loop's own thread: async verifiers with a timeout, sync ones unprotected."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Never, TypeVar

from rollforge.errors import Failure, UsageError
from rollforge.records import Response, Task, Verdict, from_json, to_json
from rollforge.runtime.prints import Prints
from rollforge.verifiers import VERIFIERS
from rollforge.verifiers.base import Verifier
from rollforge.verifiers.running.calling import (
    LATE,
    EngineState,
    LiveVerifier,
    failure_message,
    is_awaitable,
    verifier_failure,
)

T = TypeVar("T")

GRACE = 3.0
"""Seconds that an async verifier has to end after cancellation."""


class LoopEngine:
    """Calls the verifier in the event loop's thread."""

    def __init__(self, verifier: Verifier, timeout: float, prints: Prints | None = None) -> None:
        """Args: prints: catches what the verifier prints; None for one that prints nothing."""
        self._verifier = verifier
        self._prints = prints
        self._timeout = timeout
        self._is_trusted = VERIFIERS.is_ours(verifier.function)
        self._live: LiveVerifier | None = None
        self._running = 0

    def state(self) -> EngineState:
        """Number of calls in progress."""
        return EngineState(busy=self._running)

    def drop_waiting(self) -> None:
        """Do nothing: calls never wait here."""

    async def start(self) -> None:
        try:
            with self._caught():
                self._live = LiveVerifier(self._verifier)
                await self._live.start()
        except Exception as error:  # the boundary to the user's code
            message = failure_message(error, self._verifier)
            raise UsageError(
                f"the verifier {self._verifier.name} could not start: {message}",
                hint="mend the cause and run the same command again",
            ) from error

    async def run(self, task: Task, responses: list[Response]) -> tuple[float, list[Verdict]]:
        if self._live is None:
            raise RuntimeError("the judge has not been started")
        started = time.perf_counter()
        self._running += 1
        try:
            if not self._is_trusted:
                task, responses = self._own(_copies, task, responses)
            with self._caught():
                value = self._own(self._live.called, task, responses)
                work = asyncio.create_task(_outcome(value)) if is_awaitable(value) else None
            if work is not None:
                value = await self._in_time(work)
            verdicts = self._own(self._live.verdicts, value, len(responses))
        finally:
            self._running -= 1
        return time.perf_counter() - started, verdicts

    def _own(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call user code; any exception counts as a failure, SystemExit included."""
        try:
            return call(*arguments)
        except (Failure, KeyboardInterrupt):
            raise
        except BaseException as error:  # a verifier is user code, and may even exit
            raise verifier_failure(failure_message(error, self._verifier)) from error

    def _caught(self) -> contextlib.AbstractContextManager[None]:
        return self._prints.caught() if self._prints is not None else contextlib.nullcontext()

    async def _in_time(self, work: asyncio.Task[Callable[[], Any]]) -> Any:
        """The awaited result, within the timeout. A separate task distinguishes the verifier's cancellation from ours."""
        started = time.perf_counter()
        try:
            await asyncio.wait([work], timeout=self._timeout)
            is_late = not work.done() or time.perf_counter() - started >= self._timeout
        finally:
            if not work.done():
                await _end(work)
        if is_late:
            raise verifier_failure(f"{LATE} {self._timeout:g} s")
        return self._own(work.result())

    async def close(self) -> None:
        if self._live is not None:
            with contextlib.suppress(Exception), self._caught():  # a failing tear-down changes no verdict
                await self._live.close()
        if self._prints is not None:
            self._prints.close()


def _copies(task: Task, responses: list[Response]) -> tuple[Task, list[Response]]:
    """Copies of the arguments, as a worker would get, so that a verifier cannot modify shared objects."""
    return Task(from_json(to_json(task)), task.index), [
        Response(from_json(bytes(response.encoded))) for response in responses
    ]


async def _outcome(value: Awaitable[Any]) -> Callable[[], Any]:
    """A callable that returns or raises the result, since a BaseException leaving a task would end the event loop."""
    try:
        result = await value
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  (the boundary to the user's code)
        return partial(_reraise, error)
    return lambda: result


def _reraise(error: BaseException) -> Never:
    raise error


async def _end(work: asyncio.Task[Any]) -> None:
    """Cancel a task. One that ignores cancellation is abandoned, and the closing loop does not wait for it."""
    work.cancel()
    try:
        await asyncio.wait([work], timeout=GRACE)
    finally:
        if not work.done():
            asyncio._unregister_task(work)
            # Destroying the task would run it once more, and it could ignore that too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(work))
