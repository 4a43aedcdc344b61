"""Names of claimants, with which other processes on the same machine see whether it is alive.

The name holds host, process number and when the process started: a later process with the same number is a different claimant. On
systems without /proc no claimant counts as dead; leases run out instead.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path


def own_name() -> str:
    """The name of this process in claims."""
    return f"{socket.gethostname()}:{os.getpid()}:{_start_of(os.getpid())}"


def is_dead(owner: str) -> bool:
    """Whether a claimant is certainly dead: it ran on this machine and no longer exists."""
    host_and_process, _, start = owner.rpartition(":")
    host, _, process = host_and_process.rpartition(":")
    if host != socket.gethostname() or not Path("/proc/self/stat").exists():
        return False
    return _start_of(int(process)) != start


def _start_of(process: int) -> str:
    """When a process started, in kernel ticks; empty if it does not exist or is a zombie."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else fields[18]
