"""Reads written files back and checks them against the trainer's contract and the plan.

Only the exporter's row types and rules are used, not the writing code, so writer errors are found here and not in the trainer.
The result is the size, row count and digest of each file, for the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rollforge.exporters.base import Exporter
from rollforge.exporters.examples import Kind
from rollforge.exporters.form import Form
from rollforge.records import to_json
from rollforge.runtime.typed_decoding import json_decoder
from rollforge.statistics.stats import distinct
from rollforge.steps.prepare.dataset_manifest import FileRecord
from rollforge.steps.prepare.write_rows import ContractBroken, Progress, Written, WrittenFile
from rollforge.store.reading import UNREADABLE

SHOWN = 5
READ_AHEAD = 256 << 10
"""Block size: small enough for the processor's cache while a block is hashed and decoded."""


def read_back(
    written: Written,
    folder: Path,
    exporter: Exporter,
    kind: Kind,
    form: Form,
    prompts: np.ndarray,
    progress: Progress,
) -> list[FileRecord]:
    """Read the files back; returns their records, raises if one breaks the contract. `prompts` has the prompt of each example."""
    _refuse_leaks(written, prompts)
    checker = _Checker(exporter, kind, form)
    records = []
    done = 0
    for file in written.files:
        records.append(checker.check(folder / file.name, file))
        done += records[-1].rows
        progress("check", done, written.rows)
    return records


def _refuse_leaks(written: Written, prompts: np.ndarray) -> None:
    """Raise if a prompt is in two splits."""
    by_split: dict[str, list[np.ndarray]] = {}
    for file in written.files:
        by_split.setdefault(file.split, []).append(prompts[file.numbers])
    joined = {split: distinct(np.concatenate(parts)) for split, parts in by_split.items()}
    for (a, first), (b, second) in combinations(joined.items(), 2):
        shared = np.intersect1d(first, second)
        if len(shared):
            raise ContractBroken(f"{len(shared)} prompts are both in {a} and in {b}")


class _Checker:
    def __init__(self, exporter: Exporter, kind: Kind, form: Form) -> None:
        self._exporter, self._kind, self._shaping = exporter, kind, form.shaping
        decoder = json_decoder(exporter.row_type(kind, form))
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines
        self._is_copy = exporter.is_raw and kind != "prompt"

    def check(self, path: Path, file: WrittenFile) -> FileRecord:
        digest = hashlib.sha256()
        rows, problems = self._copied(path, digest) if self._is_copy else self._read(path, digest)
        if not problems and rows != len(file.examples):
            problems = [f"{rows} rows on disk, {len(file.examples)} were written"]
        if problems:
            raise ContractBroken(
                f"{file.name} breaks the contract of {self._exporter.name}: {'; '.join(problems[:SHOWN])}",
                hint="nothing was left behind; try --arguments string or --untidy refuse, and please report it",
            )
        return FileRecord(file.name, file.split, rows, path.stat().st_size, digest.hexdigest())

    def _read(self, path: Path, digest: Any) -> tuple[int, list[str]]:
        """Count the rows and collect the first problems."""
        rows = 0
        problems: list[str] = []
        for lines in self._blocks(path, digest):
            count = self._count_good(lines)
            if count is not None:
                rows += count
                continue
            for line in lines.split(b"\n"):  # some row here is wrong: look at each on its own
                rows += 1
                problems += [f"row {rows}: {problem}" for problem in self._problems(line)]
                if len(problems) >= SHOWN:
                    return rows, problems
        return rows, problems

    def _count_good(self, lines: bytes) -> int | None:
        """Number of rows in these lines, or None if one may be invalid."""
        try:
            rows = self._decode_lines(lines)
        except UNREADABLE:
            return None
        for row in rows:
            for _ in self._exporter.problems(self._kind, row, self._shaping):
                return None
        return len(rows)

    def _copied(self, path: Path, digest: Any) -> tuple[int, list[str]]:
        """Count copied lines. The index has parsed them, so only their number and the final newline need checking."""
        rows = 0
        last = b"\n"
        with path.open("rb") as file:
            while block := file.read(READ_AHEAD):
                digest.update(block)
                rows += _count_newlines(block)
                last = block[-1:]
        return rows, [] if last == b"\n" else ["the last row has no end"]

    def _problems(self, line: bytes) -> list[str]:
        try:
            row = self._decode(line)
        except UNREADABLE as error:
            return [str(error)]
        return list(self._exporter.problems(self._kind, row, self._shaping))

    def _blocks(self, path: Path, digest: Any) -> Iterator[bytes]:
        """The file as blocks of complete lines, without each block's final newline; Parquet rows as JSON lines."""
        if path.suffix == ".jsonl":
            yield from _whole_lines(path, digest)
            return
        with path.open("rb") as file:
            while block := file.read(READ_AHEAD):
                digest.update(block)
        yield from _parquet_rows(path)


def _count_newlines(block: bytes) -> int:
    """Count by searching newline after newline, much faster than `count` for long lines."""
    count, position = 0, block.find(b"\n")
    while position >= 0:
        count += 1
        position = block.find(b"\n", position + 1)
    return count


def _whole_lines(path: Path, digest: Any) -> Iterator[bytes]:
    rest = b""
    with path.open("rb") as file:
        while block := file.read(READ_AHEAD):
            digest.update(block)
            lines, newline, tail = block.rpartition(b"\n")
            if newline:
                yield rest + lines
                rest = tail
            else:
                rest += block
    if rest:
        yield rest + b" (no newline at the end)"


def _parquet_rows(path: Path) -> Iterator[bytes]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=512):
            for row in batch.to_pylist():
                yield to_json(row)
