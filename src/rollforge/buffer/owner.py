"""Names of claimants, by which other processes on the machine see whether a claimant is still alive.

The name holds host, process number and when the process started: a later process with the same number is
another one. On systems without /proc nobody is ever taken for dead; leases run out instead.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def own_name() -> str:
    """This process, as claims carry it."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_of(os.getpid())}"


def is_dead(owner: str) -> bool:
    """Whether a claimant is certainly gone: it ran on this machine and does not any more."""
    host_and_process, _, start = owner.rpartition(":")
    host, _, process = host_and_process.rpartition(":")
    if host != socket.gethostname() or not Path("/proc/self/stat").exists():
        return False
    return _start_of(int(process)) != start


def _start_of(process: int) -> str:
    """When a process started, in the kernel's ticks; empty when there is no such process or it has only left
    its number."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else fields[18]
