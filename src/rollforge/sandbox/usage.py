"""Resource use of a process and its descendants, read from /proc."""

from __future__ import annotations

import contextlib
import os
import resource


def descendants(pid: int) -> list[int]:
    """The process and its descendants; only the process if the kernel has no list of children."""
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
    """Resident memory, with shared pages counted in full."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def shared_out_bytes(pid: int) -> int:
    """Resident memory with each shared page divided among its users; slow, so used only to confirm an excess."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return resident_bytes(pid)


def memory_exceeds(pids: list[int], most: int) -> bool:
    """Whether processes together use more than `most` bytes. Forks share pages, so an excess is confirmed with shared pages
    divided.
    """
    return sum(map(resident_bytes, pids)) > most and sum(map(shared_out_bytes, pids)) > most
