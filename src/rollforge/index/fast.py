"""This module drives the compiled reader of ordinary rollout lines, where there is one: what `rollouts.py` does, many times faster.

Without a compiler at installation there is no `_rows`, and everything takes the Python way. The compiled reader leaves every line
that is not ordinary to it as well, so that what is odd about a line is said in one place only. Neither numpy nor Arrow is loaded
here: reading goes on while somebody else loads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from rollforge.index import head_start, loading
from rollforge.index.compiled import IS_THERE, LOOKED_AT, new_rows
from rollforge.index.facts import Reader
from rollforge.index.hashes import hash_text
from rollforge.index.kinds import Kind
from rollforge.index.lines import Batch
from rollforge.index.ranges import CHUNK
from rollforge.index.spelling import respell

if TYPE_CHECKING:
    from rollforge.index._rows import Drained, Finished


def reads(kind: Kind) -> bool:
    """Whether the compiled reader is there, and is for lines of this kind."""
    return IS_THERE and kind in ("rollouts", "tasks")


class LineLeft(NamedTuple):
    """A line that is not ordinary."""

    number: int
    start: int
    end: int


class Taken(NamedTuple):
    """What became of some lines."""

    lines: int
    left: list[LineLeft]
    offset: int
    """Of the line that comes next."""


class SeenInPython(NamedTuple):
    """What only Python finds out about the rows of a chunk."""

    respelled: list[tuple[int, int, int]]
    """(row, hash of the answer, its characters): answers that equal ones may spell otherwise."""
    looks: list[tuple[int, bool, bool, bool]]
    """(row, is blank, refuses, is an error message)"""
    odd_prompts: list[int | None]
    """The hash of each."""
    noted: dict[int, list[str]]
    """What is odd about an odd prompt, by its number."""


class FastRollouts:
    """The ordinary rollouts of one chunk."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._rows = new_rows()
        self._seen = SeenInPython([], [], [], {})
        self._unseen: list[Drained] = []

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, batch: Batch, line: int) -> Taken:
        """Read the lines of a batch, the first of which has this number; those left stand at places in the batch."""
        lines, left = self._rows.take(batch.data, line, batch.offset)
        self._see()
        return Taken(lines, _lines_left(left), batch.offset + len(batch.data))

    def read(self, file: BinaryIO, offset: int, end: int, line: int, most: int) -> Taken:
        """Read lines that begin before `end`, the first at `offset`, until there are so many in all or it can get no further.

        Those left stand at places in the file. A last line without a newline is not read, nor one that is very long.
        """
        begun = head_start.take_over(file, offset, end) if line == 1 and most == CHUNK else None
        if begun is not None:
            self._rows, (lines, left, offset) = begun
        else:
            lines, left, offset = self._rows.read(file.fileno(), offset, end, line, most)
        self._see()
        return Taken(lines, _lines_left(left), offset)

    def _see(self) -> None:
        """Look at what the compiled reader cannot tell; later, while what that needs is still being loaded."""
        self._unseen.append(self._rows.drain())
        if not loading.is_under_way():
            self._look_at_unseen()

    def _look_at_unseen(self) -> None:
        for said, said_ends, rows, characters, prompts, prompt_ends in self._unseen:
            if rows:
                self._look(_int32s(rows), _int32s(characters), _pieces(said, said_ends))
            for params in _pieces(prompts, prompt_ends):
                self._read_prompt(params)
        self._unseen.clear()

    def _look(self, rows: list[int], characters: list[int], texts: Iterator[bytes]) -> None:
        """Look at answers that are short, may be error messages, or may be spelled otherwise than equal ones."""
        from rollforge.index.beginnings import is_long_error, look_at_text

        for row, count, text in zip(rows, characters, texts, strict=True):
            if count < 0:
                text, count = respell(text)
                self._seen.respelled.append((row, hash_text(text), count))
            if count <= LOOKED_AT:
                self._seen.looks.append((row, *look_at_text(text)))
            elif is_long_error(text):
                self._seen.looks.append((row, False, False, True))

    def _read_prompt(self, params: bytes) -> None:
        notes: list[str] = []
        self._seen.odd_prompts.append(self._reader.prompt_hash(params, notes.append))
        if notes:
            self._seen.noted[len(self._seen.odd_prompts) - 1] = notes

    def finish(self) -> tuple[Finished, SeenInPython]:
        """All that was read, which is no longer here then."""
        self._look_at_unseen()
        return self._rows.finish(), self._seen


def _lines_left(data: bytes) -> list[LineLeft]:
    numbers = _ints(data)
    return list(map(LineLeft, numbers[::3], numbers[1::3], numbers[2::3]))


def _ints(data: bytes) -> list[int]:
    return memoryview(data).cast("q").tolist()


def _int32s(data: bytes) -> list[int]:
    return memoryview(data).cast("i").tolist()


def _pieces(data: bytes, ends: bytes) -> Iterator[bytes]:
    """Texts that stand one after another, each up to its end."""
    start = 0
    for end in _ints(ends):
        yield data[start:end]
        start = end
