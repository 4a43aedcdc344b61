"""Repairs the end of an append-only file after a crash, before anything is appended.

A crash leaves a torn line, blank lines, or a run of NUL bytes (journals after power loss). These are cut off and saved in a
`.damaged` file beside the original. A complete last line that only lacks its newline stays.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from rollforge.store.atomic import open_for_writing, sync_directory, sync_file
from rollforge.store.files import file_stem
from rollforge.store.reading import UNREADABLE, line_start

logger = logging.getLogger(__name__)

_BLANK = b"\0 \t\r\n"
_BLOCK = 1 << 16
_MOST_BLANKS = 64 << 20
"""Most blank bytes of one cut that are saved: a longer run is a hole of NUL bytes, which could fill the disk."""


def damaged_file(path: Path) -> Path:
    """File for bytes cut off the end of `path`: `rollouts.damaged` beside `rollouts.jsonl`."""
    return path.with_name(file_stem(path) + ".damaged")


def mend_tail(path: Path) -> int:
    """Cut the file after its last complete line; returns the number of bytes cut."""
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with os.fdopen(open_for_writing(path, os.O_RDWR), "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        keep, lacks_newline = _whole_end(file, size)
        if keep == size and not lacks_newline:
            return 0
        if keep < size:
            _keep_damaged(path, file, keep, min(size, _last_content(file, size) + _MOST_BLANKS))
            file.truncate(keep)
            logger.warning(
                "%s: cut %s off the end, now in %s", path, damaged_bytes(size - keep), damaged_file(path)
            )
        if lacks_newline:
            file.seek(keep)
            file.write(b"\n")
        file.flush()
        sync_file(file.fileno())
    return size - keep


def _whole_end(file: BinaryIO, size: int) -> tuple[int, bool]:
    """End offset of the last complete line, and whether its newline is missing."""
    end = size
    while end:
        content = _last_content(file, end)
        if not content:
            return 0, False
        file.seek(content)
        rest = file.read(min(end - content, 2))
        newline = rest.find(b"\n")
        if newline >= 0 and not rest[:newline].strip(b"\r"):
            return content + newline + 1, False
        start = line_start(file, content)
        file.seek(start)
        if _is_object(file.read(content - start)):
            return content, True
        end = start
    return 0, False


def _last_content(file: BinaryIO, end: int) -> int:
    """Offset after the last byte before `end` that is neither NUL nor white space; 0 if there is none."""
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        content = file.read(end - start).rstrip(_BLANK)
        if content:
            return start + len(content)
        end = start
    return 0


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict)
    except UNREADABLE:
        return False


def _keep_damaged(path: Path, file: BinaryIO, start: int, end: int) -> None:
    """Append the bytes from `start` to `end` to the `.damaged` file, durably, before they are cut."""
    target = damaged_file(path)
    with os.fdopen(open_for_writing(target, os.O_WRONLY | os.O_APPEND), "ab") as damaged:
        file.seek(start)
        left = end - start
        while left and (block := file.read(min(_BLOCK, left))):
            damaged.write(block)
            left -= len(block)
        damaged.write(b"\n")
        damaged.flush()
        sync_file(damaged.fileno())
    sync_directory(target.parent)


def damaged_bytes(count: int) -> str:
    """Describe how much was cut."""
    return "1 damaged byte" if count == 1 else f"{count:,} damaged bytes"
