"""This module reads written files back and holds them against the trainer's contract and the plan.

It opens what is on disk and knows only the exporter's row types and rules, so that a mistake of the writer is seen here and not by
the trainer. It gives each file's size, rows and digest, which the manifest records.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rollforge.errors import RollforgeError
from rollforge.exporters.base import Exporter
from rollforge.exporters.texts import is_utf8, shorten
from rollforge.exporters.times import place_of_times
from rollforge.records import to_json
from rollforge.stats import distinct
from rollforge.steps.prepare.manifest import FileRecord
from rollforge.steps.prepare.plan import Plan
from rollforge.steps.prepare.write import Progress, Written, WrittenFile
from rollforge.store.reading import UNREADABLE

SHOWN = 5
READ_AHEAD = 256 << 10
"""Small enough to stay in the processor's cache while it is digested, checked and decoded."""


class ContractBroken(RollforgeError):
    """The files just written are not what the trainer's loader takes; nothing was left behind."""


def recheck(
    written: Written,
    folder: Path,
    recipe: str,
    plan: Plan,
    exporter: Exporter,
    prompts: np.ndarray,
    progress: Progress,
) -> list[FileRecord]:
    """Records of the files; raises when any of them breaks the contract."""
    _refuse_leaks(written, prompts)
    checker = _Checker(recipe, plan, exporter)
    records = []
    done = 0
    for file in written.files:
        records.append(checker.check(folder / file.name, file))
        done += records[-1].rows
        progress("check", done, written.rows)
    return records


def _refuse_leaks(written: Written, prompts: np.ndarray) -> None:
    """No prompt may be in two splits."""
    by_split: dict[str, list[np.ndarray]] = {}
    for file in written.files:
        by_split.setdefault(file.split, []).append(prompts[np.frombuffer(file.examples, dtype=np.int64)])
    joined = {split: distinct(np.concatenate(parts)) for split, parts in by_split.items()}
    for (a, first), (b, second) in combinations(joined.items(), 2):
        shared = np.intersect1d(first, second)
        if len(shared):
            raise ContractBroken(f"{len(shared)} prompts are both in {a} and in {b}")


class NotUnicode(Exception):
    """Some text that was passed on as it stands is not UTF-8."""


class OnlyTimes(Exception):
    """Every text in one place of a JSONL file looks like a time; a loader that infers types would make times of them."""


class _Checker:
    def __init__(self, recipe: str, plan: Plan, exporter: Exporter) -> None:
        self._recipe = recipe
        self._kind: Any = plan.selection.kind
        self._exporter = exporter
        decoder = msgspec.json.Decoder(exporter.row_type(recipe, self._kind))
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        self._is_copy = exporter.is_raw and self._kind != "prompt"

    def check(self, path: Path, file: WrittenFile) -> FileRecord:
        digest = hashlib.sha256()
        rows, problems = self._copied(path, digest) if self._is_copy else self._read(path, digest)
        if not problems and rows != len(file.examples):
            problems = [f"{rows} rows on disk, {len(file.examples)} were written"]
        if not problems and path.suffix == ".jsonl" and self._exporter.is_inferred(self._kind):
            self._refuse_times(path)
        if problems:
            raise ContractBroken(
                f"{file.name} breaks the contract of {self._exporter.name}: {'; '.join(problems[:SHOWN])}",
                hint="nothing was left behind; try --arguments string or --untidy refuse, and please report it",
            )
        return FileRecord(file.name, file.split, rows, path.stat().st_size, digest.hexdigest())

    def _refuse_times(self, path: Path) -> None:
        with path.open("rb") as file:
            place = place_of_times(map(msgspec.json.decode, file))
        if place is not None:
            raise OnlyTimes(place)

    def _read(self, path: Path, digest: Any) -> tuple[int, list[str]]:
        """Rows, and what is wrong with the first of them."""
        rows = 0
        problems: list[str] = []
        for lines in self._blocks(path, digest):
            found = self._fine(lines)
            if found is not None:
                rows += found
                continue
            for line in bytes(lines).split(b"\n"):  # something is wrong here: each row on its own says where
                rows += 1
                problems += [f"row {rows}: {problem}" for problem in self._problems(line)]
                if len(problems) >= SHOWN:
                    return rows, problems
        return rows, problems

    def _fine(self, lines: memoryview | bytes) -> int | None:
        """How many rows these lines are, or None when one of them may not be as it should be.

        No rule looks at what a long text says, so that they are checked as texts and left out of the rows.
        """
        short = shorten(lines)
        if short is None and not self._exporter.is_raw and not is_utf8(lines):
            raise NotUnicode
        try:
            rows = self._decode_lines(lines if short is None else short)
        except UNREADABLE:
            return None
        for row in rows:
            for _ in self._exporter.problems(self._recipe, self._kind, row):
                return None
        return len(rows)

    def _copied(self, path: Path, digest: Any) -> tuple[int, list[str]]:
        """The same for copied lines: the index has parsed them, so that all are there and whole is what can still go wrong."""
        rows = 0
        last = b"\n"
        buffer = mmap.mmap(-1, READ_AHEAD)  # it begins with a page: see `index/hashing.py`
        with path.open("rb", buffering=0) as file:
            while size := file.readinto(buffer):
                digest.update(memoryview(buffer)[:size])
                rows += _count_newlines(buffer, size)
                last = buffer[size - 1 : size]
        return rows, [] if last == b"\n" else ["the last row has no end"]

    def _problems(self, line: bytes) -> list[str]:
        try:
            row = self._decode(line)
        except UNREADABLE as error:
            return [str(error)]
        return list(self._exporter.problems(self._recipe, self._kind, row))

    def _blocks(self, path: Path, digest: Any) -> Iterator[memoryview | bytes]:
        """The file as blocks of whole lines, each one without its last newline."""
        if path.suffix == ".parquet":
            with path.open("rb") as file:
                while block := file.read(READ_AHEAD):
                    digest.update(block)
            yield from _parquet_rows(path)
        else:
            yield from _whole_lines(path, digest)


def _count_newlines(buffer: mmap.mmap, size: int) -> int:
    """In the first `size` bytes. Rollouts are long: to jump from one newline to the next is faster than to compare every byte."""
    count, place = 0, buffer.find(b"\n", 0, size)
    while place >= 0:
        count += 1
        place = buffer.find(b"\n", place + 1, size)
    return count


def _whole_lines(path: Path, digest: Any) -> Iterator[memoryview | bytes]:
    """Views into a buffer that is written over when the next one is asked for."""
    buffer, filled = bytearray(READ_AHEAD), 0
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(memoryview(buffer)[filled:]):
            digest.update(memoryview(buffer)[filled : filled + size])
            filled += size
            end = buffer.rfind(b"\n", filled - size, filled)
            if end >= 0:
                yield memoryview(buffer)[:end]
                filled -= end + 1
                buffer[:filled] = buffer[end + 1 : end + 1 + filled]
            elif filled == len(buffer):
                buffer = buffer + bytearray(filled)
    if filled:
        yield bytes(buffer[:filled]) + b" (no newline at the end)"


def _parquet_rows(path: Path) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=512):
            for row in batch.to_pylist():
                yield to_json(row)
