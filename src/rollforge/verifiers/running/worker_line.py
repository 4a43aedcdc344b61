"""The parent's end of one worker process: sends calls, receives answers, detects the end.

It only reports answers and the end to its owner, the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from typing import Protocol, cast

import msgspec

from rollforge.records import Verdict
from rollforge.store.reading import UNREADABLE
from rollforge.verifiers.running.spawner import WorkerHandle
from rollforge.verifiers.running.worker import HEADER, MAX_FRAME, Hello

CallOutcome = tuple[float, list[Verdict]]
"""Seconds inside the verifier, and its verdicts."""

WorkerAnswer = tuple[float, str | None, bool, list[Verdict] | None]
"""A worker's answer to one call: seconds, reason of a missing verdict, whether the worker exits now, verdicts."""

_decode_answer = msgspec.json.Decoder(WorkerAnswer).decode
_decode_greeting = msgspec.json.Decoder(Hello).decode


class Job:
    """One call of the verifier: the payload, and the future for its outcome."""

    __slots__ = ("future", "is_retry", "payload")

    def __init__(self, payload: bytes, future: asyncio.Future[CallOutcome]) -> None:
        self.payload = payload
        self.future = future
        self.is_retry = False


class LineOwner(Protocol):
    """Callbacks for the events of a line."""

    def feed(self, worker: WorkerLine) -> None:
        """Called when the worker has room for more calls."""

    def settle(self, job: Job, seconds: float, message: str | None, verdicts: list[Verdict] | None) -> None:
        """Called with the answer to one call."""

    def lost(self, worker: WorkerLine) -> None:
        """Called when the worker has ended."""


class WorkerLine(asyncio.Protocol):
    """The parent's end of one worker."""

    def __init__(self, owner: LineOwner, handle: WorkerHandle) -> None:
        self.owner = owner
        self.handle = handle
        self.jobs: deque[Job] = deque()
        self.answered = 0
        self.head_since = 0.0
        self.asked_where_at: float | None = None
        self.is_ready = False
        self.is_ended = False
        self.is_leaving = False
        self.end_reason: str | None = None
        self.timed_out_s: float | None = None
        """The limit after which the pool killed the worker because of a slow answer; None if it did not."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._pid_file: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(os, "pidfd_open"):
            # The line closes too, but not while a process that the verifier started still holds it open.
            with contextlib.suppress(OSError):  # it has ended already, and the line will close
                self._pid_file = os.pidfd_open(self.handle.pid)
                asyncio.get_running_loop().add_reader(self._pid_file, self._process_ended)

    def _process_ended(self) -> None:
        self._forget_pid_file()
        asyncio.get_running_loop().call_later(0.01, self.end, None)  # its last answer may still arrive

    def _forget_pid_file(self) -> None:
        if self._pid_file is not None:
            asyncio.get_running_loop().remove_reader(self._pid_file)
            os.close(self._pid_file)
            self._pid_file = None

    def send(self, job: Job, now: float) -> None:
        """Send one more call."""
        if not self.jobs:
            self.head_since = now
        self.jobs.append(job)
        self._unsent.append(job.payload)
        if len(self._unsent) == 1:  # calls given in the same turn of the loop share one write
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and not self.is_ended:
            self._transport.writelines(unsent)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= HEADER.size:
            (length,) = HEADER.unpack_from(buffer, start)
            end = start + HEADER.size + length
            if length > MAX_FRAME:
                self.end("the worker answered nonsense")
                return
            if len(buffer) < end:
                break
            body = bytes(buffer[start + HEADER.size : end])
            start = end
            if not self._take(body):
                self.end("the worker answered nonsense")
                return
        del buffer[:start]
        self.owner.feed(self)

    def _take(self, body: bytes) -> bool:
        """Process one frame; False if it is invalid, because the verifier wrote to our line."""
        try:
            if not self.is_ready:
                return self._greet(_decode_greeting(body))
            seconds, message, is_leaving, verdicts = _decode_answer(body)
        except UNREADABLE:
            return False
        if not self.jobs:
            return False
        job = self.jobs.popleft()
        self.answered += 1
        self.head_since = time.monotonic()
        self.asked_where_at = None
        self.is_leaving = is_leaving
        self.owner.settle(job, seconds, message, verdicts)
        if self.is_leaving:
            self.is_ready = False  # it ran out of memory and exits; the calls behind it are innocent
        return True

    def _greet(self, hello: Hello) -> bool:
        if hello.error is not None:
            self.end_reason = hello.error
            return True  # it closes the line itself
        self.is_ready = True
        if not self.ready.done():
            self.ready.set_result(None)
        return True

    def take_culprit(self) -> Job | None:
        """Remove and return the call that the worker was executing when it died; its other calls go to another worker."""
        position = self.handle.begun() - self.answered - 1
        if self.is_leaving or not 0 <= position < len(self.jobs):
            return None
        culprit = self.jobs[position]
        del self.jobs[position]
        return culprit

    def connection_lost(self, error: Exception | None) -> None:
        self.end(None)

    def end(self, reason: str | None) -> None:
        """Abandon the worker, for the pool to reap and replace."""
        if self.is_ended:
            return
        self.is_ended = True
        self._forget_pid_file()
        self.end_reason = reason or self.end_reason
        if self._transport is not None:
            self._transport.abort()
        self.owner.lost(self)

    def hang_up(self) -> None:
        """Close the line, so that the worker tears itself down."""
        self.is_ended = True
        self._forget_pid_file()
        if self._transport is not None:
            self._transport.close()
