"""What a process and everything below it use, read from /proc."""

from __future__ import annotations

import contextlib
import os
import resource


def descendants(pid: int) -> list[int]:
    """The process and the processes below it; only itself where the kernel keeps no list of children."""
    pids, waiting = [pid], [pid]
    while waiting:
        parent = waiting.pop()
        with contextlib.suppress(OSError, ValueError):
            for name in os.listdir(f"/proc/{parent}/task"):  # noqa: PTH208
                with open(f"/proc/{parent}/task/{name}/children", "rb") as file:  # noqa: PTH123
                    children = [int(word) for word in file.read().split()]
                pids += children
                waiting += children
    return pids


def resident_bytes(pid: int) -> int:
    """Its resident memory; what it shares with others is counted in full."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def shared_out_bytes(pid: int) -> int:
    """Its resident memory, each shared page divided among those who share it; slow, so for a second look only."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return resident_bytes(pid)


def memory_exceeds(pids: list[int], most: int) -> bool:
    """Whether processes together use more than `most` bytes. Forks share pages, so a sum above it is checked without shared pages."""
    return sum(map(resident_bytes, pids)) > most and sum(map(shared_out_bytes, pids)) > most
