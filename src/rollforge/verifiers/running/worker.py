"""The code of the processes in which verifiers run.

A *template* imports the verifier once and then forks a *worker* whenever the parent asks: a killed worker is replaced in
milliseconds, however much the verifier imports. A worker answers one frame per call, in order. Both end when the parent does.
Workers limit memory and shield the parent from crashes and prints; they are not a sandbox against hostile code.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, Never

import msgspec

from rollforge.errors import RollforgeError
from rollforge.records import JsonFields, Response, Task
from rollforge.runtime.typed_decoding import convert
from rollforge.verifiers.base import Mode, Verifier, load_verifier
from rollforge.verifiers.building_blocks import answer_limit
from rollforge.verifiers.running.calling import LiveVerifier, failure_message

HEADER = struct.Struct(">I")
NUMBER = struct.Struct(">q")
LIMIT = struct.Struct(">dd")
MAX_FRAME = 256 * 2**20
"""Size limit of a verdict's frame; a longer verdict is a failure, because it would become a line of the run."""
FORK = b"F"
REAP = b"R"
BEGUN_AT = 1 << 16
"""Offset in a worker's report file of the number of calls begun; the space before it is for a crash traceback."""
LIMIT_AT = BEGUN_AT + NUMBER.size
"""Offset in the report file of the current answer's limit: CPU seconds, and the worker's CPU time at its start; zeros for none."""
REPORT_BYTES = LIMIT_AT + LIMIT.size
DUMP_SIGNAL = signal.SIGUSR1
"""Signal on which a worker writes its stack to its report file, even inside native code."""

GC_THRESHOLD = (50_000, 20, 100)
"""Allocations between garbage collections: parsed rows have no cycles, and one collection per 700 objects costs more than judging
a short answer.
"""

Role = Literal["template", "worker"]


class WorkerSetup(msgspec.Struct, frozen=True, kw_only=True):
    """First frame to a fresh interpreter: the verifier to load, and its role."""

    spec: str
    options: JsonFields
    mode: Mode | None
    cwd: str
    memory_mb: int
    role: Role
    report: int | None
    output: int | None = None
    """File descriptor for the verifier's output; None drops it."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """First frame from a template or a worker."""

    error: str | None = None
    """Why it cannot start."""
    fingerprint: str = ""
    threads: int = 1
    """Number of threads that importing the verifier started; a process with more than one thread must not fork."""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def frame(value: object) -> bytes:
    """Encode the value as a frame: its length, then JSON."""
    body = _encode(value)
    return HEADER.pack(len(body)) + body


def main(fd: int) -> Never:
    """Turn a fresh interpreter into a template, or into a single worker if the verifier's imports start threads."""
    control = socket.socket(fileno=fd)
    setup = convert(next(_frames(control)), WorkerSetup)
    os.chdir(setup.cwd)
    with _redirected(setup.output):
        try:
            verifier = load_verifier(setup.spec, setup.options, setup.mode)
        except Exception as error:  # noqa: BLE001  (importing a user's file may raise anything; the parent reports it)
            message = str(error) if isinstance(error, RollforgeError) else failure_message(error)
            control.sendall(frame(Hello(error=message)))
            os._exit(0)
        if setup.role == "worker" and setup.report is not None:
            die_with_parent()
            become_worker(control, setup.report, verifier, setup.memory_mb)
        run_template(control, verifier, setup.memory_mb)


def run_template(control: socket.socket, verifier: Verifier, memory_mb: int) -> Never:
    """Send the hello frame, then fork and reap workers until the parent closes the line."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent drains on Ctrl-C, and needs its workers for that
    gc.collect()
    gc.freeze()  # loaded objects stay shared with every worker
    control.sendall(frame(Hello(fingerprint=verifier.fingerprint, threads=threading.active_count())))
    workers: set[int] = set()
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(control, 9, 2)
        except OSError:
            data, fds = b"", []
        if data[:1] == FORK:
            pid = os.fork()
            if pid == 0:
                die_with_parent()
                control.close()
                become_worker(socket.socket(fileno=fds[0]), fds[1], verifier, memory_mb)
            for fd in fds:
                os.close(fd)
            workers.add(pid)
            control.sendall(NUMBER.pack(pid))
        elif data[:1] == REAP:
            (pid,) = NUMBER.unpack(data[1:])
            _, status = os.waitpid(pid, 0)
            workers.discard(pid)
            control.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
        else:
            break
    for pid in workers:
        kill_group(pid)
    os._exit(0)


def become_worker(sock: socket.socket, report: int, verifier: Verifier, memory_mb: int) -> Never:
    """Serve calls until the parent closes the line; never returns to the forked code."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(
                0, 0
            )  # its own group: Ctrl-C does not reach it, and its children can be killed with it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.set_threshold(*GC_THRESHOLD)
        report_file = os.fdopen(report, "wb", buffering=0)
        faulthandler.enable(file=report_file)
        faulthandler.register(DUMP_SIGNAL, file=report_file, all_threads=False)
        _serve(sock, verifier, memory_mb, mmap.mmap(report, REPORT_BYTES))
        code = 0
    finally:
        os._exit(code)


def _serve(sock: socket.socket, verifier: Verifier, memory_mb: int, shared: mmap.mmap) -> None:
    try:
        live = LiveVerifier(verifier)
        live.start_now()
    except BaseException as error:  # noqa: BLE001  (a user's set-up may raise anything, SystemExit too)
        sock.sendall(frame(Hello(error=failure_message(error, verifier))))
        return
    limit_memory(memory_mb)
    sock.sendall(frame(Hello()))
    own_pid = os.getpid()
    answer_limit.report_to(lambda seconds, used: LIMIT.pack_into(shared, LIMIT_AT, seconds, used))
    for begun, (row, index, raws) in enumerate(_frames(sock), start=1):
        # If this call ends the process, the parent knows which one it was.
        NUMBER.pack_into(shared, BEGUN_AT, begun)
        started = time.perf_counter()
        is_worn_out = False
        try:
            verdicts = live.judge_now(Task(row, index), [Response(raw) for raw in raws])
            seconds = time.perf_counter() - started
            answer = frame([seconds, None, False, verdicts])
            if len(answer) > MAX_FRAME:
                raise ValueError(f"the verdict is {len(answer) / 2**20:.0f} MiB long")
        except BaseException as error:  # noqa: BLE001  (the boundary to the user's code; SystemExit is a failure too)
            is_worn_out = isinstance(error, MemoryError)
            message = failure_message(error, verifier)
            if is_worn_out:
                message += f"; one worker may take {memory_mb} MB"
            answer = frame([time.perf_counter() - started, message, is_worn_out, None])
        finally:
            answer_limit.disarm()
        if os.getpid() != own_pid:
            os._exit(0)  # the verifier forked and the copy returned too; only the original answers
        sock.sendall(answer)
        if is_worn_out:
            return
    live.close_now()  # the parent is gone or no longer listens: an error only ends this process


RECEIVED_AT_ONCE = 1 << 18


def _frames(sock: socket.socket) -> Iterator[Any]:
    """Decode frames until the line is closed."""
    buffer = bytearray()
    chunk = memoryview(
        bytearray(RECEIVED_AT_ONCE)
    )  # reused: allocating one per read costs more than the read
    while True:
        while len(buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(buffer)
            end = HEADER.size + length
            if len(buffer) < end:
                break
            value = _decode(memoryview(buffer)[HEADER.size : end])
            del buffer[:end]
            yield value
        try:
            size = sock.recv_into(chunk)
        except OSError:
            return
        if not size:
            return
        buffer += chunk[:size]


@contextlib.contextmanager
def _redirected(output: int | None) -> Iterator[None]:
    """Close standard input, and send standard output and error to `output`, or drop them.

    A verifier's prints must not reach the user's data or display.
    """
    with Path(os.devnull).open("r+b") as nowhere:
        os.dup2(nowhere.fileno(), 0)
        for fd in (1, 2):
            os.dup2(nowhere.fileno() if output is None else output, fd)
    # New objects: in a forked copy the parent's may write elsewhere. By lines: a worker ends without flushing.
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
    yield


def run_forked(control: socket.socket, verifier: Verifier, memory_mb: int, output: int | None) -> Never:
    """Become a template in a fork of the parent, for functions that no fresh interpreter can import."""
    try:
        gc.freeze()  # never collect the parent's objects here: their file descriptors mean other files now
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        with _redirected(output):
            own = control.fileno()
            os.closerange(3, own)
            os.closerange(own + 1, min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], own + 2), 1 << 20))
            run_template(control, verifier, memory_mb)
    finally:
        os._exit(1)


def limit_memory(memory_mb: int) -> None:
    """Limit a worker to `memory_mb` in addition to its current use; 0 sets no limit.

    The limit applies to private writable memory; the address space may grow by twice as much, because of mapped and shared files.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not memory_mb:
        return
    with contextlib.suppress(OSError, ValueError):
        pages = [int(word) for word in Path("/proc/self/statm").read_text().split()]
        page, extra = resource.getpagesize(), memory_mb * 2**20
        _lower(resource.RLIMIT_DATA, pages[5] * page + extra)
        _lower(resource.RLIMIT_AS, pages[0] * page + 2 * extra)


def _lower(kind: int, limit: int) -> None:
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def die_with_parent() -> None:
    """Let Linux kill this process when its parent ends; on other systems it ends with the closed line, between calls."""
    set_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        prctl: Callable[..., int] = ctypes.CDLL(None).prctl
        prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)


def kill_group(pid: int) -> None:
    """Kill a worker and its child processes."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
