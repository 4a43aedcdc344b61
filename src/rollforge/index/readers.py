"""This module says how many read a file at once."""

from __future__ import annotations

import os

WORTH_A_WORKER = 256 << 20
"""Below this a child process costs more to start than it saves."""

MOST = 16


def readers(size: int, workers: int | None) -> int:
    """How many read so many bytes at once: as many as asked for, by default one per core for large files."""
    if workers or size < WORTH_A_WORKER:
        return workers or 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)
