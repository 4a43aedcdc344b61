"""This module says how many read a file at once, and which bytes each of them reads."""

from __future__ import annotations

import os
from typing import BinaryIO

WORTH_A_WORKER = 256 << 20
"""Below this a child process costs more to start than it saves."""

MOST, MOST_ASKED_FOR = 16, 64
"""Readers by default, and however many are asked for: each reads ranges of its own, and a thousand would make tiny parts."""

RANGE, LEAST = 144 << 20, 24 << 20
"""Bytes per range, at most and at least: enough that parts are not tiny, few enough that readers end at about the same time."""

CHUNK = 16_384
"""Rows per part: as many are held in memory, and those of one block more, before they are written."""

STEP = 4 << 10
"""Bytes read at a time when a line is looked for."""


def readers(size: int, workers: int | None) -> int:
    """How many read so many bytes at once: as many as asked for, by default one per core for large files."""
    if workers or size < WORTH_A_WORKER:
        return min(workers or 1, MOST_ASKED_FOR)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST)


def bounds(start: int, end: int, count: int) -> list[int]:
    """Where ranges begin and end; for several readers they become smaller towards the end, so that all are done at about one time."""
    places = [start]
    while (left := end - places[-1]) > 0:
        size = RANGE if count == 1 else min(RANGE, max(left // (2 * count), LEAST))
        places.append(places[-1] + (size if left - size >= LEAST else left))
    return places


def last_line_start(file: BinaryIO, size: int) -> int:
    """The offset after the last newline before `size`: what follows is a line still being written, or nothing."""
    while size > 0:
        begin = max(0, size - STEP)
        file.seek(begin)
        newline = file.read(size - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        size = begin
    return 0


def line_start(file: BinaryIO, place: int) -> int:
    """The offset of the first line that begins at this place or behind it; where the file ends, if there is none."""
    if not place:
        return 0
    file.seek(place - 1)
    while block := file.read(STEP):
        newline = block.find(b"\n")
        if newline >= 0:
            return file.tell() - len(block) + newline + 1
    return file.tell()
