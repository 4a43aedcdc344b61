"""Servers of other programs on loopback: ports that nobody else takes, and a second try when one does not start."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PORTS = range(20_000, 22_700)
"""Below the range that the system hands out, so that no client socket takes one. SeaweedFS uses the port 10,000 above too."""
TRIES = 2
START_S = 300.0
LOG_CHARS = 4000

_held: list[IO[bytes]] = []
"""Locks on the ports that this process was given, until it ends."""


def free_port() -> int:
    """A port that nobody listens on and that no other process of these tests gets; the port 10,000 above is free too."""
    folder = Path(tempfile.gettempdir()) / f"rollforge-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        lock = (folder / str(port)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        if not answers(port) and _can_bind(port) and _can_bind(port + 10_000):
            _held.append(lock)
            return port
        lock.close()
    raise AssertionError("no free port")


def _can_bind(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Whether somebody listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def start(
    words_for: Callable[[int], list[str]],
    log: Path,
    *,
    is_ready: Callable[[int], bool] = answers,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = START_S,
) -> tuple[subprocess.Popen[bytes], int]:
    """The running program and its port; `words_for` makes the command of one port. A second try gets another port."""
    for _ in range(TRIES):
        port = free_port()
        words = words_for(port)
        with log.open("ab") as out:
            process = subprocess.Popen(
                words,
                cwd=cwd,
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
            )
        if _comes_up(process, port, is_ready, seconds):
            return process, port
        code = process.poll()
        end(process)
    said = log.read_text(errors="replace")[-LOG_CHARS:]
    state = "did not answer" if code is None else f"ended with {code}"
    raise AssertionError(f"{' '.join(words)} {state}, {TRIES} times:\n{said}")


def _comes_up(
    process: subprocess.Popen[bytes], port: int, is_ready: Callable[[int], bool], seconds: float
) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        if is_ready(port):
            return True
        time.sleep(0.1)  # another program's start: there is nothing to wait on but its port
    return False


def end(process: subprocess.Popen[bytes], seconds: float = 30) -> None:
    """Ask the program to end; kill it when it does not."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def running(
    words_for: Callable[[int], list[str]],
    log: Path,
    *,
    is_ready: Callable[[int], bool] = answers,
    environment: dict[str, str] | None = None,
    cwd: Path | None = None,
    seconds: float = START_S,
) -> Iterator[int]:
    """The port of a program that serves until the end of the block."""
    process, port = start(
        words_for, log, is_ready=is_ready, environment=environment, cwd=cwd, seconds=seconds
    )
    try:
        yield port
    finally:
        end(process)
