"""A running sandboxed program: messages in both directions, output, time and memory.

A message is an eight-byte length followed by its bytes. All bytes from the program are untrusted, also in amount.
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

from rollforge.sandbox.cgroup import ControlGroup
from rollforge.sandbox.usage import descendants, resident_bytes

_LENGTH_BYTES = 8
_ERRORS_KEPT = 8192

_LOOK_SECONDS = 0.1
"""Interval at which the memory of all the program's processes is measured."""

EarlyEnd = Literal["", "died", "late", "too much", "memory"]
"""Why there is no message: the process exited, the time was up, it printed too much, or its processes used too much memory."""


class SandboxReply(msgspec.Struct, frozen=True):
    """A program's message and output in reply to one message."""

    message: bytes | None
    """The program's message; None if it sent none."""
    output: bytes
    """Output printed while the message was processed."""
    ended: EarlyEnd = ""
    seconds: float = 0.0


class Confined:
    """A running program; leaving its `with` block kills it and all its child processes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        to_it: int,
        from_it: int,
        *,
        output_bytes: int,
        total_memory_bytes: int,
        scratch: str | None,
        uid: int,
        group: ControlGroup | None = None,
    ) -> None:
        """Take over a started process.

        Args:
            uid: User id used by this program only, without bubblewrap; 0 for none. group: Its control group, if available; it is
                removed with the program.
        """
        self._process = process
        self._to_it, self._from_it = to_it, from_it
        assert process.stdout is not None
        assert process.stderr is not None
        self._stdout, self._stderr = process.stdout.fileno(), process.stderr.fileno()
        self._output_bytes = output_bytes
        self._total_memory_bytes = total_memory_bytes
        self._scratch = scratch
        self._uid = uid
        self._group = group
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
        """The end of its standard error."""
        return bytes(self._errors).decode("utf-8", "replace")

    def begin(self, data: bytes) -> None:
        """Queue a message; `wait` sends it."""
        self._unsent = memoryview(bytes(self._unsent) + len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def ask(self, data: bytes, seconds: float) -> SandboxReply:
        """Send one message and wait up to `seconds` for the reply."""
        self.begin(data)
        return self.wait(seconds)

    def wait(self, seconds: float) -> SandboxReply:
        """The next message, or the reason why there is none."""
        started = looked_at = time.monotonic()
        ended: EarlyEnd = ""
        while (message := self._message()) is None and not ended:
            now = time.monotonic()
            left = started + seconds - now
            if left <= 0:
                ended = "late"
            elif max(len(self._printed), len(self._incoming)) > self._output_bytes:
                ended = "too much"
            elif now - looked_at >= _LOOK_SECONDS and self._uses_too_much_memory():
                ended = "memory"
            elif not self._step(min(left, _LOOK_SECONDS)):
                ended = "died"
            if now - looked_at >= _LOOK_SECONDS:
                looked_at = now
        self._read(self._stdout, self._printed)
        if len(self._printed) > self._output_bytes:
            message, ended = None, "too much"
        printed, self._printed = bytes(self._printed), bytearray()
        return SandboxReply(message, printed, ended, time.monotonic() - started)

    def exit_code(self) -> int | None:
        """Exit code of a program that exited by itself; None while it runs."""
        try:
            return self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill the program and all its child processes; with bubblewrap the kernel kills its whole namespace."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pid in _processes_of(self._uid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if self._group is not None:
            self._group.end()
        for pipe in (self._to_it, self._from_it):
            with contextlib.suppress(OSError):
                os.close(pipe)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _uses_too_much_memory(self) -> bool:
        if not self._total_memory_bytes:
            return False
        pids = {*descendants(self._process.pid), *_processes_of(self._uid)}
        return sum(map(resident_bytes, pids)) > self._total_memory_bytes

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
        """Transfer pending bytes; False once the program closed its end of the pipe."""
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
        """Read available bytes, up to slightly above the limit; False at the end of the stream."""
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


def _processes_of(uid: int) -> list[int]:
    """Processes of a user id that only one program has; none for 0."""
    if not uid:
        return []
    pids = []
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == uid:
                pids.append(int(entry.name))
    return pids
