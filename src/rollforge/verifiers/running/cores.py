"""CPU cores: number usable by this process, and number of idle ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores() -> int:
    """Number of cores for this process, within the container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, round(int(quota) / int(period))))
    return cores


def idle_cores() -> Iterator[float]:
    """Yield the number of idle cores since the previous step; the first step covers the time since boot.

    If the system does not report it, half of all cores count as idle.
    """
    cores = usable_cores()
    before = (0, 0)
    while True:
        try:
            with Path("/proc/stat").open() as file:
                ticks = [int(word) for word in file.readline().split()[1:9]]
        except (OSError, ValueError):
            yield cores / 2
            continue
        now = (ticks[3] + ticks[4], sum(ticks))
        passed = max(1, now[1] - before[1])
        yield (now[0] - before[0]) / passed * (os.cpu_count() or cores)
        before = now
