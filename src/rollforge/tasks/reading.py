"""Streams the lines of a task file: JSONL, gzip, zstd, Parquet or stdin. It never holds the file.

It does not look inside a line. A Parquet row becomes a JSON line.
"""

from __future__ import annotations

import codecs
import gzip
import io
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import msgspec

from rollforge.errors import DataError, UsageError

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
PARQUET = b"PAR1"


def read_lines(source: str | Path) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of every line that is not blank; `-` is stdin. The container is known by its first bytes."""
    if str(source) == "-":
        yield from _numbered(sys.stdin.buffer)
        return
    path = Path(source)
    if not path.exists():
        raise UsageError(f"{path}: no such file", hint="check -i/--input")
    if path.is_dir():
        raise UsageError(
            f"{path} is a directory", hint="give a task file: JSONL (plain, .gz, .zst) or Parquet"
        )
    with path.open("rb") as file:
        head = file.read(4096)
        magic = head[:4]
        file.seek(0)
        if (other := other_format(head, path)) is not None:
            raise UsageError(f"{path}: {other.what}", hint=other.remedy)
        if magic == PARQUET:
            yield from _parquet(path)
        else:
            yield from _numbered(_decompressed(file, magic, path))


class OtherFormat(NamedTuple):
    """A file that is not JSONL, and what to do about it."""

    what: str
    remedy: str


_ARRAY = re.compile(rb"\[\s*\{")
_MAGIC = {
    b"PK\x03\x04": "a zip archive (or an Excel workbook)",
    b"\x89PNG": "a PNG image",
    b"%PDF": "a PDF document",
    b"SQLi": "an SQLite database",
    b"ARRO": "an Arrow file",
    b"BZh9": "a bzip2 archive",
    b"\xfd7zX": "an xz archive",
    b"GGUF": "model weights (GGUF)",
}


def other_format(head: bytes, path: Path) -> OtherFormat | None:
    """What a file is that starts with these bytes, when it holds no JSON lines and no archive of them."""
    if head.startswith((_GZIP, _ZSTD, PARQUET)):
        return None
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return OtherFormat(f"{name}, not JSONL", "give JSONL (plain, .gz, .zst) or Parquet")
    if b"\0" in head.rstrip(b"\0"):
        return OtherFormat("a binary file, not JSONL", "give JSONL (plain, .gz, .zst) or Parquet")
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if _ARRAY.match(text):
        remedy = f"write one object per line: jq -c '.[]' {path.name} > {path.stem}.lines.jsonl"
        return OtherFormat("one JSON array, not one object per line", remedy)
    if text.startswith(b"{") and text.splitlines()[0].strip() == b"{":
        remedy = f"write each object on one line: jq -c . {path.name} > {path.stem}.lines.jsonl"
        return OtherFormat("JSON spread over several lines, not one object per line", remedy)
    if path.suffix.lower() in (".csv", ".tsv") and not text.startswith(b"{"):
        separator = "\\t" if path.suffix.lower() == ".tsv" else ","
        code = f"pandas.read_csv('{path.name}', sep='{separator}').to_json('{path.stem}.jsonl', orient='records', lines=True)"
        return OtherFormat("a CSV table, not JSONL", f'convert it: python -c "import pandas; {code}"')
    return None


def _numbered(file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.isspace():
            yield number, line


def _decompressed(file: BinaryIO, magic: bytes, path: Path) -> Iterable[bytes]:
    if magic.startswith(_GZIP):
        return _guarded(gzip.GzipFile(fileobj=file), path)
    if magic == _ZSTD:
        return _guarded(_zstd(file), path)
    return file


def _zstd(file: BinaryIO) -> BinaryIO:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, zstd.ZstdFile(file))))


def _guarded(file: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """Pass lines through; report a damaged archive as such."""
    try:
        yield from file
    except Exception as error:
        raise DataError(
            f"{path}: the archive is damaged: {error}", hint="compress or copy it again"
        ) from error


def _parquet(path: Path) -> Iterator[tuple[int, bytes]]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield number, msgspec.json.encode(without_nulls(row))
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: the Parquet file is damaged: {error}", hint="copy or write it again"
        ) from error


def without_nulls(value: object) -> object:
    """Parquet fills keys that a row did not have with nulls; a missing key is missing again."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
