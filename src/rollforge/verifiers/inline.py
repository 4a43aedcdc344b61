"""This module calls a verifier in the event loop's own thread: async ones with a timeout, sync ones unprotected."""

from __future__ import annotations

import asyncio
import contextlib
import time

from rollforge.errors import Failure, UsageError
from rollforge.records import Response, Task, Verdict
from rollforge.verifiers.base import Verifier
from rollforge.verifiers.calling import LiveVerifier, failure_message, is_awaitable, verifier_failure


class LoopEngine:
    """Calls the verifier in the event loop's thread."""

    def __init__(self, verifier: Verifier, timeout: float) -> None:
        self._verifier = verifier
        self._timeout = timeout
        self._live: LiveVerifier | None = None
        self.running = 0

    async def start(self) -> None:
        try:
            self._live = LiveVerifier(self._verifier)
            await self._live.start()
        except Exception as error:  # the boundary to the user's code
            message = failure_message(error, self._verifier)
            raise UsageError(f"the verifier {self._verifier.name} could not start: {message}") from error

    async def run(self, task: Task, responses: list[Response]) -> tuple[float, list[Verdict]]:
        if self._live is None:
            raise RuntimeError("the judge has not been started")
        started = time.perf_counter()
        self.running += 1
        try:
            value = self._live.called(task, responses)
            if is_awaitable(value):
                async with asyncio.timeout(self._timeout):
                    value = await value
            verdicts = self._live.verdicts(value, len(responses))
        except Failure:
            raise
        except TimeoutError as error:
            message = f"no verdict within {self._timeout:g} s"
            took_all = time.perf_counter() - started >= self._timeout
            raise verifier_failure(message if took_all else failure_message(error, self._verifier)) from error
        except (Exception, SystemExit) as error:  # the boundary to the user's code
            raise verifier_failure(failure_message(error, self._verifier)) from error
        finally:
            self.running -= 1
        return time.perf_counter() - started, verdicts

    async def close(self) -> None:
        if self._live is not None:
            with contextlib.suppress(Exception):  # the verdicts are given; a failing tear-down changes none
                await self._live.close()
