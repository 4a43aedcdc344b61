"""This module is the parent's side of one worker process: it sends verdicts to be given, reads answers, and notices the end.

It decides nothing: its owner, the pool, is told of every answer and of the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from typing import Protocol, cast

import msgspec

from rollforge.records import JsonObject, Verdict
from rollforge.store.reading import UNREADABLE
from rollforge.verifiers.process import HEADER, MAX_FRAME
from rollforge.verifiers.spawner import WorkerHandle

Outcome = tuple[float, list[Verdict]]
"""Seconds inside the verifier, and the verdicts."""

Answer = tuple[float, str | None, bool, list[Verdict] | None]
"""What a worker says of one call: the seconds, why there is no verdict, whether it leaves now, the verdicts."""

_decode_answer = msgspec.json.Decoder(Answer).decode
_decode_greeting = msgspec.json.Decoder(JsonObject).decode


class Job:
    """One call of the verifier: what is sent, and where its outcome goes."""

    __slots__ = ("future", "payload")

    def __init__(self, payload: bytes, future: asyncio.Future[Outcome]) -> None:
        self.payload = payload
        self.future = future


class Owner(Protocol):
    """Who is told what happens on a line."""

    def feed(self, worker: WorkerLine) -> None:
        """It has room for more."""

    def settle(self, job: Job, seconds: float, message: str | None, verdicts: list[Verdict] | None) -> None:
        """An answer has come."""

    def lost(self, worker: WorkerLine) -> None:
        """It has ended."""


class WorkerLine(asyncio.Protocol):
    """The parent's side of one worker."""

    def __init__(self, owner: Owner, handle: WorkerHandle) -> None:
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
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._pid_file: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(os, "pidfd_open"):
            # The closed line tells too, but not while something the verifier started still holds it open.
            with contextlib.suppress(OSError):  # it has ended already, and the line will say so
                self._pid_file = os.pidfd_open(self.handle.pid)
                asyncio.get_running_loop().add_reader(self._pid_file, self._process_ended)

    def _process_ended(self) -> None:
        self._forget_pid_file()
        asyncio.get_running_loop().call_later(0.01, self.end, None)  # its last answer may still be on the way

    def _forget_pid_file(self) -> None:
        if self._pid_file is not None:
            asyncio.get_running_loop().remove_reader(self._pid_file)
            os.close(self._pid_file)
            self._pid_file = None

    def send(self, job: Job, now: float) -> None:
        """Give it one more."""
        if not self.jobs:
            self.head_since = now
        self.jobs.append(job)
        self._unsent.append(job.payload)
        if len(self._unsent) == 1:  # what else is given in this turn of the loop goes out with it
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
        """Use one frame; False when it is not what a worker says (a verifier wrote into our line)."""
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
            self.is_ready = False  # it ran out of memory and makes room; what waits behind is innocent
        return True

    def _greet(self, value: JsonObject) -> bool:
        if "error" in value:
            self.end_reason = str(value["error"])
            return True  # it hangs up by itself
        self.is_ready = True
        if not self.ready.done():
            self.ready.set_result(None)
        return True

    def take_culprit(self) -> Job | None:
        """The verdict it was at when it ended; the others, before and behind, are innocent and judged elsewhere."""
        place = self.handle.begun() - self.answered - 1
        if self.is_leaving or not 0 <= place < len(self.jobs):
            return None
        culprit = self.jobs[place]
        del self.jobs[place]
        return culprit

    def connection_lost(self, error: Exception | None) -> None:
        self.end(None)

    def end(self, reason: str | None) -> None:
        """Give the worker up; the pool buries and replaces it."""
        if self.is_ended:
            return
        self.is_ended = True
        self._forget_pid_file()
        self.end_reason = reason or self.end_reason
        if self._transport is not None:
            self._transport.abort()
        self.owner.lost(self)

    def hang_up(self) -> None:
        """Let it tear itself down."""
        self.is_ended = True
        self._forget_pid_file()
        if self._transport is not None:
            self._transport.close()
