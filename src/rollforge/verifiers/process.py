"""This module is the inside of the processes that verifiers run in.

A *template* imports the verifier once and then forks a *worker* whenever the parent asks: a killed worker is replaced in
milliseconds, whatever the verifier imports. A worker answers one frame per verdict, in order. Both end when the parent does.
Workers limit memory and shield the parent from crashes and noise; they are not a sandbox against hostile code.
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
from typing import Any, Never

import msgspec

from rollforge.errors import RollforgeError
from rollforge.records import JsonObject, Response, Task
from rollforge.verifiers.base import Verifier, load_verifier
from rollforge.verifiers.calling import LiveVerifier, failure_message

HEADER = struct.Struct(">I")
NUMBER = struct.Struct(">q")
MAX_FRAME = 256 * 2**20
"""A longer verdict is a failure: it would end up in a line of the run."""
FORK = b"F"
REAP = b"R"
BEGUN_AT = 1 << 16
"""Where in its report a worker counts the verdicts it has begun; before it there is room for a crash's traceback."""
DUMP_SIGNAL = signal.SIGUSR1
"""Makes a worker write where it stands into its report, even inside native code."""

GC_THRESHOLD = (50_000, 20, 100)
"""Parsed rows are trees without cycles: looking for cycles every 700 objects costs more than judging a short answer."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def frame(value: object) -> bytes:
    """The value as a length and JSON."""
    body = _encode(value)
    return HEADER.pack(len(body)) + body


def main(fd: int) -> Never:
    """A fresh interpreter becomes a template, or a single worker for verifiers whose imports start threads."""
    control = socket.socket(fileno=fd)
    setup: JsonObject = next(_frames(control))
    os.chdir(setup["cwd"])
    with _quiet():
        try:
            verifier = load_verifier(setup["spec"], setup["options"], setup["mode"])
        except Exception as error:  # noqa: BLE001  (importing a user's file may raise anything; the parent reports it)
            message = str(error) if isinstance(error, RollforgeError) else failure_message(error)
            control.sendall(frame({"error": message}))
            os._exit(0)
        if setup["role"] == "worker":
            die_with_parent()
            become_worker(control, setup["report"], verifier, setup["memory_mb"])
        run_template(control, verifier, setup["memory_mb"])


def run_template(control: socket.socket, verifier: Verifier, memory_mb: int) -> Never:
    """Say hello, then fork workers and bury them until the parent closes the line."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent drains on Ctrl-C, and needs its workers for that
    gc.collect()
    gc.freeze()  # what is loaded now stays shared with every worker
    control.sendall(frame({"fingerprint": verifier.fingerprint, "threads": threading.active_count()}))
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
    """Serve verdicts until the parent hangs up; never returns into the code that was forked."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)  # its own group: Ctrl-C passes by, and what it starts can be ended with it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.set_threshold(*GC_THRESHOLD)
        report_file = os.fdopen(report, "wb", buffering=0)
        faulthandler.enable(file=report_file)
        faulthandler.register(DUMP_SIGNAL, file=report_file, all_threads=False)
        _serve(sock, verifier, memory_mb, mmap.mmap(report, BEGUN_AT + NUMBER.size))
        code = 0
    finally:
        os._exit(code)


def _serve(sock: socket.socket, verifier: Verifier, memory_mb: int, shared: mmap.mmap) -> None:
    try:
        live = LiveVerifier(verifier)
        live.start_now()
    except BaseException as error:  # noqa: BLE001  (a user's set-up may raise anything, SystemExit too)
        sock.sendall(frame({"error": failure_message(error, verifier)}))
        return
    limit_memory(memory_mb)
    sock.sendall(frame({"pid": os.getpid()}))
    own_pid = os.getpid()
    for begun, (row, index, raws) in enumerate(_frames(sock), start=1):
        NUMBER.pack_into(
            shared, BEGUN_AT, begun
        )  # should this verdict end the process, the parent knows which it was
        started = time.perf_counter()
        is_worn_out = False
        try:
            verdicts = live.judge_now(Task(row, index), [Response(raw) for raw in raws])
            seconds = time.perf_counter() - started
            answer = frame([seconds, None, False, verdicts])
            if len(answer) > MAX_FRAME:
                raise ValueError(f"the verdict is {len(answer) / 2**20:.0f} MiB long")
        except BaseException as error:  # noqa: BLE001  (the boundary to the user's code; SystemExit is one more way to fail)
            is_worn_out = isinstance(error, MemoryError)
            message = failure_message(error, verifier)
            if is_worn_out:
                message += f"; one worker may take {memory_mb} MB"
            answer = frame([time.perf_counter() - started, message, is_worn_out, None])
        if os.getpid() != own_pid:
            os._exit(0)  # the verifier forked and its copy came back too; only the original answers
        sock.sendall(answer)
        if is_worn_out:
            return
    with contextlib.suppress(BaseException):  # the parent has gone or does not wait for words any more
        live.close_now()


RECEIVED_AT_ONCE = 1 << 18


def _frames(sock: socket.socket) -> Iterator[Any]:
    """Values as they come, until the other side hangs up."""
    buffer = bytearray()
    place = memoryview(
        bytearray(RECEIVED_AT_ONCE)
    )  # one place for all: a fresh one per read costs more than the read
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
            size = sock.recv_into(place)
        except OSError:
            return
        if not size:
            return
        buffer += place[:size]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Standard input, output and error lead nowhere: a verifier's prints must not reach the user's data or display."""
    with Path(os.devnull).open("r+b") as nowhere:
        for fd in (0, 1, 2):
            os.dup2(nowhere.fileno(), fd)
    yield


def run_forked(control: socket.socket, verifier: Verifier, memory_mb: int) -> Never:
    """The forked copy of a parent becomes a template: for functions that no fresh interpreter could import."""
    try:
        gc.freeze()  # objects of the parent must never be collected here: their file numbers mean other files now
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        own = control.fileno()
        os.closerange(3, own)
        os.closerange(own + 1, min(max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], own + 2), 1 << 20))
        with _quiet():
            run_template(control, verifier, memory_mb)
    finally:
        os._exit(1)


def limit_memory(memory_mb: int) -> None:
    """Let one worker take `memory_mb` on top of what it holds now; 0 sets no limit.

    Private writable memory counts once. Address space is limited at twice that, for what is mapped and shared.
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
    """Ask Linux to kill this process when the one that started it ends; elsewhere the closed line does, between verdicts."""
    set_death_signal = 1
    with contextlib.suppress(OSError, AttributeError):
        prctl: Callable[..., int] = ctypes.CDLL(None).prctl
        prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)


def kill_group(pid: int) -> None:
    """End one worker and what it started; by its own number, never by a name."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
