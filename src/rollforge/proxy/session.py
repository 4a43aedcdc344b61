"""One rollout at the proxy: its secret, its calls and their results.

A repeated request (same body or `Idempotency-Key`) gets the same answer and counts as one call. Every finished call is on disk
before the program gets its answer. After `close`, calls are refused.
"""

from __future__ import annotations

import asyncio
import bisect
import secrets
import time
from collections import Counter
from typing import Protocol

from rollforge.endpoint import MAX_RESPONSE_BYTES, Model
from rollforge.endpoint.client import Outage
from rollforge.errors import FATAL, Failure
from rollforge.json_shapes import ParamsJson, items_in
from rollforge.proxy.asking import AnyApi, RequestJson, allowed_params, hidden
from rollforge.proxy.calls import CallOrigin, RecordedCall, call_line, share_items

COMPARED = 16
"""Number of earlier calls whose items a new line is compared with."""

MOST_CALLS = 10_000
"""Most calls in one rollout; a program that sends more is caught in a loop."""


CALLS_SHARE = 8
"""Most bytes that the calls of one rollout may hold, in multiples of `max_response_bytes`.

Prompts repeat and count once; the token ids of a prompt come anew with every answer.
"""


class CallJournal(Protocol):
    """Storage of finished calls, such as `store.DurableFile`."""

    def append(self, line: bytes) -> asyncio.Future[None]:
        """Append a line; the future is done when it is on disk."""


class SessionClosed(Exception):
    """The rollout has ended: this call came too late."""


class RolloutFull(Exception):
    """The calls of the rollout hold as many bytes as they may."""


class ProgramSession:
    """The calls of one attempt at a rollout."""

    def __init__(
        self,
        *,
        model: Model,
        journal: CallJournal,
        imposed: ParamsJson,
        task: int,
        sample: int,
        max_calls: int = MOST_CALLS,
        max_bytes: int = CALLS_SHARE * MAX_RESPONSE_BYTES,
    ) -> None:
        self.secret = secrets.token_hex(16)
        self.origin = CallOrigin(secrets.token_hex(8), task, sample)
        self.calls: list[RecordedCall] = []
        """Every finished call, by number."""
        self.late = 0
        """Number of calls that came after the end."""
        self.left_out: Counter[str] = Counter()
        """Tools offered by the program that no model server can run."""
        self.fatal: asyncio.Future[Failure] = asyncio.get_running_loop().create_future()
        """A failure that no further call can repair; whoever runs the program waits for this future."""
        self._model = model
        self._journal = journal
        self._imposed = imposed
        self._max_calls = max_calls
        self._max_bytes = max_bytes
        self._bytes = 0  # of requests in flight, and of what each finished call adds to the earlier ones
        self._asked: dict[str, asyncio.Task[RecordedCall]] = {}
        self._repeats: Counter[str] = Counter()
        self._count = 0
        self._is_closed = False

    @property
    def key(self) -> str:
        """The API key for the program."""
        return f"rf-{self.secret}"

    @property
    def has_asked(self) -> bool:
        """Whether the program made any call, finished or not."""
        return self._count > 0

    @property
    def failure(self) -> Failure | None:
        """The failure of the last call, if it failed."""
        return self.calls[-1].failure if self.calls else None

    def hold(self, size: int) -> None:
        """Count bytes of a request that is being read or answered; raises `RolloutFull` where the rollout may hold no more."""
        self._bytes += size
        if self._bytes > self._max_bytes:
            raise RolloutFull(
                f"the calls of this rollout hold more than {self._max_bytes:,} bytes, which is the limit "
                f"({CALLS_SHARE} times --max-response-bytes)"
            )

    def give_back(self, size: int) -> None:
        """A request of so many bytes is no longer in memory."""
        self._bytes -= size

    async def ask(self, api: AnyApi, body: RequestJson, identity: str) -> RecordedCall:
        """The call for a request: a new one, or the earlier one with this identity; raises `ValueError` for an invalid request.

        Args:
            identity: Equal for requests that are the same.
        """
        if self._is_closed:
            self.late += 1
            raise SessionClosed
        earlier_call = self._asked.get(identity)
        if earlier_call is not None and not (
            earlier_call.done() and (earlier_call.cancelled() or earlier_call.result().failure)
        ):
            call = await asyncio.shield(earlier_call)
            call.repeats += 1
            return call
        if self._count >= self._max_calls:
            raise ValueError(f"the rollout has made {self._max_calls:,} calls, which is the limit")
        params, left_out = allowed_params(self._continued(api.to_params(body)), self._imposed)
        self.left_out.update(left_out)
        call = RecordedCall(
            number=self._count,
            api=api.name,
            is_streamed=bool(body.get("stream")),
            params=params,
            started=time.time(),
        )
        self._count += 1
        task = asyncio.get_running_loop().create_task(self._make(call))
        self._asked[identity] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Refuse further calls and drop those in flight."""
        self._is_closed = True
        running = [task for task in self._asked.values() if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._asked.clear()
        self.fatal.cancel()

    async def _make(self, call: RecordedCall) -> RecordedCall:
        """Send a call to the model and record the result."""
        begun = time.monotonic()
        try:
            answer = await self._model.respond(call.params, self.origin.sample)
            call.response, call.endpoint = answer.response, answer.endpoint
            call.requests, call.upstream, call.wasted = answer.requests, answer.api, answer.wasted
        except Failure as failure:
            call.failure, call.requests = failure, failure.requests
        finally:
            self._model.release_large()
        call.seconds = time.monotonic() - begun
        earlier = self.calls[-COMPARED:]
        share_items(call, earlier)
        line = call_line(self.origin, call, earlier)
        self._bytes += len(line)
        await self._journal.append(line)
        bisect.insort(self.calls, call, key=lambda one: one.number)
        if call.failure is not None and _is_hopeless(call.failure) and not self.fatal.done():
            self.fatal.set_result(call.failure)
        return call

    def _continued(self, params: ParamsJson) -> ParamsJson:
        """Params with the complete conversation, if the program referred to an earlier response instead."""
        name = params.pop("previous_response_id", None)
        if not name:
            return params
        for call in self.calls:
            if call.response is not None and call.response.get("id") == name:
                before = items_in(call.params.get("input"))
                return {**params, "input": [*before, *hidden(call.response)["output"], *params["input"]]}
        raise ValueError(f"previous_response_id {name!r} is no response of this rollout")


def _is_hopeless(failure: Failure) -> bool:
    """Whether the program should be stopped at once: the server is gone, or refuses every rollout."""
    return failure.kind in FATAL or isinstance(failure, Outage)
