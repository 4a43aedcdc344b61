"""A growing file as immutable objects under `NAME.parts/`: numbered pieces, and "wholes" that combine all pieces up to a number.

Pieces are only added, each created once, so the file is append-only. A whole repeats earlier pieces in one object, so that
readers fetch one instead of hundreds.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

from rollforge.errors import DataError

PARTS = ".parts/"
BLOCK = 1 << 20
_PIECE = re.compile(r"(\d{8})\.jsonl\.zst")
_WHOLE = re.compile(r"all-(\d{8})\.jsonl\.zst")


def piece_name(name: str, number: int) -> str:
    """Object name of one piece of a file, numbered from 1."""
    return f"{name}{PARTS}{number:08d}.jsonl.zst"


def whole_name(name: str, number: int) -> str:
    """Object name of the whole that combines the pieces up to a number."""
    return f"{name}{PARTS}all-{number:08d}.jsonl.zst"


def is_piece(name: str) -> bool:
    """Whether an object is part of a growing file."""
    folder, _, last = name.rpartition("/")
    return folder.endswith(PARTS[:-1]) and bool(_PIECE.fullmatch(last) or _WHOLE.fullmatch(last))


def file_of(name: str) -> str:
    """The file that a piece belongs to."""
    return name.rpartition(PARTS)[0]


def reading_order(names: Iterable[str]) -> tuple[list[str], int]:
    """Objects to read for all lines of one file, and the number of its last piece.

    Raises:
        DataError: a piece is missing.
    """
    pieces: dict[int, str] = {}
    wholes: dict[int, str] = {}
    for name in names:
        last = name.rpartition("/")[2]
        if match := _PIECE.fullmatch(last):
            pieces[int(match[1])] = name
        elif match := _WHOLE.fullmatch(last):
            wholes[int(match[1])] = name
    held = max(wholes, default=0)
    end = max([held, *pieces])
    missing = [number for number in range(held + 1, end + 1) if number not in pieces]
    if missing:
        where = file_of((*pieces.values(), *wholes.values())[0])
        raise DataError(
            f"{where}{PARTS}: piece {missing[0]} is missing", hint="restore it: lines of a run are lost"
        )
    first = [wholes[held]] if held else []
    return [*first, *(pieces[number] for number in range(held + 1, end + 1))], end


def pack(lines: bytes) -> bytes:
    """Lines in the format of an object."""
    from backports import zstd

    return zstd.compress(lines, 3)


def unpacking(data: bytes) -> BinaryIO:
    """The lines of an object, unpacked while they are read: few bytes may unpack to many."""
    from backports import zstd

    return cast(BinaryIO, zstd.ZstdFile(io.BytesIO(data)))


def blocks_of(data: bytes) -> Iterator[bytes]:
    """The lines of an object in blocks: all at once they would take twice their size in fresh memory."""
    with unpacking(data) as file:
        while block := file.read1(BLOCK):  # type: ignore[attr-defined]
            yield block
