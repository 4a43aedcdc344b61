"""This module talks to a confined program: messages both ways, what it prints, how long it takes.

A message is its length in eight bytes, then its bytes. Nothing the program sends is trusted further than
being bytes: not their number, not their sense.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import time
from typing import Literal

import msgspec

_LENGTH_BYTES = 8
_ERRORS_KEPT = 8192

Ending = Literal["", "died", "late", "too much"]
"""Why there is no message: the process is gone, the time was up, or it printed more than it may."""


class SandboxReply(msgspec.Struct, frozen=True):
    """What came back after one message."""

    message: bytes | None
    """The program's message; None when it did not send one."""
    output: bytes
    """What was printed meanwhile."""
    ended: Ending = ""
    seconds: float = 0.0


class Confined:
    """A program under way; use it in a `with` block, which ends it and all it started."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        to_it: int,
        from_it: int,
        output_bytes: int,
        scratch: str | None,
    ) -> None:
        self._process = process
        self._to_it, self._from_it = to_it, from_it
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdout, self._stderr = process.stdout.fileno(), process.stderr.fileno()
        self._output_bytes = output_bytes
        self._scratch = scratch
        self._unsent = memoryview(b"")
        self._incoming = bytearray()
        self._printed = bytearray()
        self._errors = bytearray()
        self._poll = select.poll()
        for pipe in (self._to_it, self._from_it, self._stdout, self._stderr):
            os.set_blocking(pipe, False)
        for pipe in (self._from_it, self._stdout, self._stderr):
            self._poll.register(pipe, select.POLLIN)

    def __enter__(self) -> Confined:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def errors(self) -> str:
        """The end of what it wrote to standard error."""
        return bytes(self._errors).decode("utf-8", "replace")

    def begin(self, data: bytes) -> None:
        """Queue a message; it is written while replies are waited for."""
        self._unsent = memoryview(bytes(self._unsent) + len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def ask(self, data: bytes, seconds: float) -> SandboxReply:
        """Send one message and wait for one back, no longer than `seconds`."""
        self.begin(data)
        return self.wait(seconds)

    def wait(self, seconds: float) -> SandboxReply:
        """The next message, or why there is none."""
        started = time.monotonic()
        ended: Ending = ""
        while (message := self._message()) is None and not ended:
            left = started + seconds - time.monotonic()
            if left <= 0:
                ended = "late"
            elif max(len(self._printed), len(self._incoming)) > self._output_bytes:
                ended = "too much"
            elif not self._step(left):
                ended = "died"
        self._read(self._stdout, self._printed)
        if len(self._printed) > self._output_bytes:
            message, ended = None, "too much"
        printed, self._printed = bytes(self._printed), bytearray()
        return SandboxReply(message, printed, ended, time.monotonic() - started)

    def exit_code(self) -> int | None:
        """The code with which it ended by itself; None if it is still there."""
        try:
            return self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill it, which ends everything it started: the kernel clears the namespace it lived in."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._to_it, self._from_it):
            with contextlib.suppress(OSError):
                os.close(pipe)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _message(self) -> bytes | None:
        if len(self._incoming) < _LENGTH_BYTES:
            return None
        size = int.from_bytes(self._incoming[:_LENGTH_BYTES], "big")
        if len(self._incoming) < _LENGTH_BYTES + size:
            return None
        message = bytes(self._incoming[_LENGTH_BYTES : _LENGTH_BYTES + size])
        del self._incoming[: _LENGTH_BYTES + size]
        return message

    def _step(self, seconds: float) -> bool:
        """Move what can be moved; False once the program's end of the pipe is closed."""
        if self._unsent:
            self._poll.register(self._to_it, select.POLLOUT)
        is_alive = True
        for pipe, event in self._poll.poll(min(seconds, 3600.0) * 1000):
            if pipe == self._to_it:
                self._write()
            elif pipe == self._from_it:
                is_alive = self._read(pipe, self._incoming)
            elif not self._read(pipe, self._printed if pipe == self._stdout else self._errors) or event & (
                select.POLLERR | select.POLLNVAL
            ):
                self._poll.unregister(pipe)
        del self._errors[:-_ERRORS_KEPT]
        return is_alive

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._to_it, self._unsent[: 1 << 16]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsent = memoryview(b"")
        if not self._unsent:
            self._poll.unregister(self._to_it)

    def _read(self, pipe: int, into: bytearray) -> bool:
        """Take what is there, up to a little over the limit; False at the end of the stream."""
        try:
            while len(into) <= self._output_bytes:
                part = os.read(pipe, 1 << 16)
                if not part:
                    return False
                into += part
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True
