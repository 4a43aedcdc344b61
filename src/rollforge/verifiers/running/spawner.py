"""Starts and reaps worker processes for the pool.

Workers are forked from a template process that has imported the verifier once. The template is a fresh interpreter, not a fork of
this (threaded) process, except for functions that no other process can import (a lambda, a closure, a notebook's). A template that
does not reply, because it was stopped or hangs, counts as lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from typing import Any

import msgspec

from rollforge.errors import RollforgeError, UsageError
from rollforge.registry import load_target
from rollforge.runtime.typed_decoding import decode_json
from rollforge.verifiers.base import Verifier
from rollforge.verifiers.running.calling import is_installed, shown_path
from rollforge.verifiers.running.worker import (
    BEGUN_AT,
    FORK,
    HEADER,
    LIMIT,
    LIMIT_AT,
    NUMBER,
    REAP,
    REPORT_BYTES,
    Hello,
    Role,
    WorkerSetup,
    frame,
    kill_group,
    run_forked,
)

START_SECONDS = 600.0
"""Time limit for importing a verifier, and for a worker's set-up, which may load a model."""
REPLY_SECONDS = 30.0
"""Time limit for the template to fork or reap, its only tasks."""

_BOOT = (
    "import json,sys; sys.path[:]=json.loads(sys.argv[1]); "
    "from rollforge.verifiers.running.worker import main; main(int(sys.argv[2]))"
)


class TemplateLost(UsageError):
    """The template process has ended or does not reply."""

    def __init__(self, spawner: Spawner) -> None:
        super().__init__(
            "the process that starts verifier workers has ended or hangs; was it killed for want of memory?"
        )
        self.spawner = spawner


class WorkerHandle:
    """A started worker: its socket, process id, and the report file that it writes on a crash."""

    def __init__(self, spawner: Spawner, pid: int, sock: socket.socket, report: int) -> None:
        self._spawner = spawner
        self.pid = pid
        self.sock = sock
        self._report = report

    async def bury(self) -> int:
        """Reap the process and return its exit code, negative for a signal."""
        return await self._spawner.bury(self.pid)

    def last_frame(self) -> str:
        """`file.py:12 in solve`: the frame at the crash or at a requested dump; empty without one."""
        text = os.pread(self._report, BEGUN_AT, 0).partition(b"\0")[0]
        lines = text.decode("utf-8", "replace").splitlines()
        frames = [line.strip() for line in lines if line.startswith('  File "')]
        positions = [_parse_frame(line) for line in frames]
        theirs = [frame for frame in positions if not is_installed(frame[0])] or positions
        return f"{shown_path(theirs[0][0])}:{theirs[0][1]} in {theirs[0][2]}" if theirs else ""

    def begun(self) -> int:
        """Number of calls begun, whether or not their answers arrived."""
        number: int = NUMBER.unpack(os.pread(self._report, NUMBER.size, BEGUN_AT))[0]
        return number

    def is_past_answer_limit(self, grace: float) -> bool:
        """Whether it exceeded the CPU limit of the current answer by more than `grace` seconds."""
        limit, started = LIMIT.unpack(os.pread(self._report, LIMIT.size, LIMIT_AT))
        if limit <= 0:
            return False
        used = cpu_seconds(self.pid)
        return used is not None and used - started > limit + grace

    def release(self) -> None:
        """Close its report file; the socket belongs to the transport."""
        os.close(self._report)


class Spawner:
    """Starts workers of one verifier."""

    def __init__(self, verifier: Verifier, memory_mb: int, output: int | None = None) -> None:
        """Prepare to start workers.

        Args:
            output: Open file for what the verifier prints; None drops it.
        """
        self._output = output
        self._verifier = verifier
        self._memory_mb = memory_mb
        self._spec = importable_spec(verifier)
        self._control: socket.socket | None = None
        self._template: subprocess.Popen[bytes] | int | None = None
        self._lock = asyncio.Lock()
        self._is_threaded = False
        self._direct: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def is_forked(self) -> bool:
        """Whether workers are forked from this process, because no other process can import the verifier."""
        return self._spec is None

    async def start(self) -> None:
        """Start the template and wait until it has loaded the verifier; raises `UsageError` with the reason on failure."""
        ours, theirs = socket.socketpair()
        if self._spec is None:
            self._template = self._fork(theirs, ours)
        else:
            self._template = self._interpreter(theirs, None)
            ours.sendall(frame(self._setup(self._spec, "template", None)))
        theirs.close()
        ours.setblocking(False)
        self._control = ours
        hello = await self._hello(ours)
        if self._spec is not None and hello.fingerprint != self._verifier.fingerprint:
            raise UsageError(
                f"the verifier {self._verifier.name} is another one when a fresh interpreter imports it",
                hint="save the file and start again, or pass --verify-workers 0 to run it in this process",
            )
        self._is_threaded = hello.threads > 1

    async def spawn(self) -> WorkerHandle:
        """Start a worker; it is ready after its first frame."""
        ours, theirs = socket.socketpair()
        report = _report_file()
        if self._is_threaded and self._spec is not None:
            pid = self._spawn_directly(ours, theirs, report, self._spec)
        else:
            try:
                pid = await self._ask(FORK, [theirs.fileno(), report])
            except TemplateLost:
                os.close(report)
                ours.close()
                theirs.close()
                raise
        theirs.close()
        ours.setblocking(False)
        return WorkerHandle(self, pid, ours, report)

    async def bury(self, pid: int) -> int:
        """Wait for a worker's end; returns its exit code, negative for a signal."""
        if pid in self._direct:
            return await asyncio.to_thread(self._direct.pop(pid).wait, REPLY_SECONDS)
        return await self._ask(REAP + NUMBER.pack(pid), [])

    async def close(self) -> None:
        """End the template and all remaining workers."""
        if self._control is not None:
            self._control.close()
        for pid in list(self._direct):
            kill_group(pid)
            self._direct.pop(pid).wait()
        if self._template is not None:
            await asyncio.to_thread(_wait_or_kill, self._template)
            self._template = None

    def _interpreter(self, line: socket.socket, report: int | None) -> subprocess.Popen[bytes]:
        path = msgspec.json.encode([entry for entry in sys.path if isinstance(entry, str)]).decode()
        fds = [fd for fd in (line.fileno(), report, self._output) if fd is not None]
        return subprocess.Popen(
            # -P: the working directory is not importable; the parent's own path is sent along.
            [sys.executable, "-P", "-c", _BOOT, path, str(line.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            process_group=0,  # Ctrl-C in the terminal must not reach it
        )

    def _spawn_directly(self, ours: socket.socket, theirs: socket.socket, report: int, spec: str) -> int:
        process = self._interpreter(theirs, report)
        ours.sendall(frame(self._setup(spec, "worker", report)))
        self._direct[process.pid] = process
        return process.pid

    def _setup(self, spec: str, role: Role, report: int | None) -> WorkerSetup:
        return WorkerSetup(
            spec=spec,
            options=self._verifier.options,
            mode=self._verifier.mode,
            cwd=os.getcwd(),  # noqa: PTH109  (a string is sent)
            memory_mb=self._memory_mb,
            role=role,
            report=report,
            output=self._output,
        )

    def _fork(self, line: socket.socket, ours: socket.socket) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about our threads: see run_forked
            pid = os.fork()
        if pid == 0:
            ours.close()
            run_forked(line, self._verifier, self._memory_mb, self._output)
        return pid

    async def _ask(self, request: bytes, fds: list[int]) -> int:
        assert self._control is not None
        async with self._lock:
            try:
                socket.send_fds(self._control, [request], fds)
                loop = asyncio.get_running_loop()
                data = await asyncio.wait_for(loop.sock_recv(self._control, NUMBER.size), REPLY_SECONDS)
            except (OSError, TimeoutError):
                self._control.close()  # a late reply must not be taken for the next one's
                data = b""
        if len(data) != NUMBER.size:
            raise TemplateLost(self)
        number: int = NUMBER.unpack(data)[0]
        return number

    async def _hello(self, line: socket.socket) -> Hello:
        name = self._verifier.name
        try:
            hello = await asyncio.wait_for(_receive_hello(line), START_SECONDS)
        except TimeoutError:
            raise UsageError(
                f"importing the verifier {name} took more than {START_SECONDS:g} s",
                hint="move slow work out of the top of the file, into the function or a class",
            ) from None
        if hello is None:
            raise UsageError(
                f"importing the verifier {name} ended its process", hint="import the file alone: python FILE"
            )
        if hello.error is not None:
            raise UsageError(
                f"the verifier {name} cannot be loaded in a worker: {hello.error}",
                hint="import the file alone: python FILE",
            )
        return hello


async def _receive_hello(line: socket.socket) -> Hello | None:
    """The template's first frame; None if it ended before."""
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < HEADER.size or len(data) < HEADER.size + HEADER.unpack_from(data)[0]:
        chunk = await loop.sock_recv(line, 1 << 16)
        if not chunk:
            return None
        data += chunk
    return decode_json(data[HEADER.size :], Hello)


def importable_spec(verifier: Verifier) -> str | None:
    """The spec under which a fresh interpreter finds the same verifier; None if there is none."""
    function: Any = verifier.function
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name or not sys.executable:
        return None
    loaded = sys.modules.get(module)
    source = getattr(loaded, "__file__", "") if module.startswith("rollforge_user_") else module
    spec = f"{source}:{name}"
    try:
        msgspec.json.encode(verifier.options)
        return spec if load_target(spec) is function else None
    except (RollforgeError, ImportError, TypeError, ValueError, OverflowError, RecursionError):
        return None  # no other process can import it, or read its options


def _report_file() -> int:
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("rollforge-worker-report")
    else:
        handle, path = tempfile.mkstemp()
        os.unlink(path)  # noqa: PTH108  (only the open file is needed)
    os.ftruncate(handle, REPORT_BYTES)
    return handle


def _parse_frame(line: str) -> tuple[str, str, str]:
    """Parse file, line and function from `File "x.py", line 3 in verify`."""
    file, _, rest = line.removeprefix('File "').partition('", line ')
    number, _, function = rest.partition(" in ")
    return file, number, function


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process so far; None if the system does not report it."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  (called ten times a second)
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _wait_or_kill(template: subprocess.Popen[bytes] | int) -> None:
    """Wait five seconds for the template to exit, then kill it, since it may be stopped or hang."""
    if not isinstance(template, int):
        try:
            template.wait(timeout=5)
        except subprocess.TimeoutExpired:
            template.send_signal(signal.SIGKILL)
            template.wait()
        return
    deadline = time.monotonic() + 5
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(template, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(template, signal.SIGKILL)
                os.waitpid(template, 0)
                return
            time.sleep(0.01)
