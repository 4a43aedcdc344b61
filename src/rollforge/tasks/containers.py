"""Streams the rows of a task file as JSON lines: JSONL, a JSON array, CSV, Arrow or Parquet, plain or compressed, or stdin.

Files are never loaded as a whole, and JSONL lines are not parsed. Rows of other containers are converted to JSON lines.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
import re
import shlex
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import msgspec

from rollforge.errors import DataError, UsageError
from rollforge.store.reading import LONGEST_LINE, NO_LINE, UNREADABLE, bounded_lines

CONTAINERS = "JSONL, a JSON array, CSV, Arrow or Parquet"
Container = Literal["lines", "array", "csv", "arrow", "parquet"]

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
PARQUET = b"PAR1"
_ARROW_FILE = b"ARROW1"
_ARROW_STREAM = b"\xff\xff\xff\xff"
HEAD_BYTES = 4096
_COMPRESSED = (".gz", ".zst")
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_JSON_COLUMNS = frozenset({"responses_create_params", "messages", "tools", "agent_ref"})
"""Columns of a CSV table whose cells are JSON."""
ARRAY_CHUNK = 1 << 20


def read_lines(source: str | Path) -> Iterator[tuple[int, bytes]]:
    """(line number, line) of every line that is not blank; `-` is stdin. For containers other than JSONL, numbers count rows.

    The container is detected from its first bytes; a CSV table from its suffix.
    """
    if str(source) == "-":
        yield from _numbered(bounded_lines(sys.stdin.buffer))
        return
    path = Path(source)
    if not path.exists():
        raise UsageError(f"{path}: no such file", hint="check -i/--input")
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint=f"give a task file: {CONTAINERS}")
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        if (other := other_format(head, path)) is not None:
            raise UsageError(f"{path}: {other.what}", hint=other.remedy)
        file.seek(0)
        lines = _decompressed_lines(file, head, path)
        if (container := container_of(path)) == "lines":
            yield from _numbered(lines)
            return
    for number, row in read_table(path, container):
        yield number, row if isinstance(row, bytes) else msgspec.json.encode(without_nulls(row))


def container_of(path: Path) -> Container:
    """Container type of a file from its first bytes; of a CSV table from its suffix."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        if head.startswith(PARQUET):
            return "parquet"
        if head.startswith((_ARROW_FILE, _ARROW_STREAM)):
            return "arrow"
        if head.startswith((_GZIP, _ZSTD)):
            file.seek(0)
            with _naming_archive(path):
                head = _unpacking(file, head).read1(HEAD_BYTES)  # type: ignore[attr-defined]
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if _ARRAY.match(text):
        return "array"
    return "csv" if _suffix(path) in _SEPARATORS and not text.startswith(b"{") else "lines"


def read_table(path: Path, container: Container) -> Iterator[tuple[int, dict[str, Any] | bytes]]:
    """(row number, row) of a non-JSONL container; elements of a JSON array keep their bytes, on one line."""
    match container:
        case "parquet" | "arrow":
            yield from enumerate(_arrow_rows(path, container), 1)
        case "csv":
            yield from enumerate(_csv_rows(path), 1)
        case _:
            yield from enumerate(_array_elements(path), 1)


class OtherFormat(NamedTuple):
    """A file format without rows, and advice for the user."""

    what: str
    remedy: str


_ARRAY = re.compile(rb"\[\s*(\{|\]|$)")
_CSV_HEADER = re.compile(rb"[A-Za-z_][\w .-]*([,\t][A-Za-z_][\w .-]*)+\r?\n")
_MAGIC = {
    b"PK\x03\x04": "a zip archive (or an Excel workbook)",
    b"\x89PNG": "a PNG image",
    b"%PDF": "a PDF document",
    b"SQLi": "an SQLite database",
    b"FEA1": "a Feather file of version 1",
    b"BZh9": "a bzip2 archive",
    b"\xfd7zX": "an xz archive",
    b"GGUF": "model weights (GGUF)",
}


def other_format(head: bytes, path: Path) -> OtherFormat | None:
    """The format of a file with these first bytes, if it contains neither rows nor an archive of them."""
    if head.startswith((_GZIP, _ZSTD, PARQUET, _ARROW_FILE, _ARROW_STREAM)):
        return None
    remedy = f"give {CONTAINERS}"
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return OtherFormat(f"{name}, not JSONL", remedy)
    if b"\0" in head.rstrip(b"\0"):
        return OtherFormat("a binary file, not JSONL", remedy)
    text = head.removeprefix(codecs.BOM_UTF8).lstrip()
    if text.startswith(b"{") and text.splitlines()[0].strip() == b"{":
        if path.name == "manifest.json":
            rows = min(path.parent.glob("train*"), default=path.parent / "train.jsonl")
            return OtherFormat("a manifest, which has no rows", f"give the dataset's files: {rows}")
        remedy = f"write each object on one line: jq -c . {shlex.quote(str(path))} > {shlex.quote(f'{path.stem}.lines.jsonl')}"
        return OtherFormat("JSON spread over several lines, not one object per line", remedy)
    if _CSV_HEADER.match(text) and _suffix(path) not in _SEPARATORS:
        ending = ".tsv" if b"\t" in text.splitlines()[0] else ".csv"
        return OtherFormat("a table (CSV), not JSONL", f"give its name the ending {ending}")
    return None


def unpacked_lines(path: Path) -> Iterator[bytes] | None:
    """Lines of a file whose name and first bytes disagree about compression; None for other files."""
    with path.open("rb") as file:
        head = file.read(4)
    is_packed = head.startswith((_GZIP, _ZSTD))
    return _unpacked(path) if head and is_packed != (path.suffix in _COMPRESSED) else None


def _unpacked(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        head = file.read(4)
        file.seek(0)
        yield from _decompressed_lines(file, head, path)


def _suffix(path: Path) -> str:
    """The suffix that names the format, ignoring a compression suffix."""
    name = path.name.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return Path(name).suffix


def _numbered(file: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(file, start=1):
        if number == 1:
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line.isspace():
            yield number, line


def _decompressed_lines(file: BinaryIO, head: bytes, path: Path) -> Iterator[bytes]:
    """The lines of a file with these first bytes; one that is too long is a NUL."""
    if head.startswith((_GZIP, _ZSTD)):
        with _naming_archive(path):
            yield from bounded_lines(_unpacking(file, head))
    else:
        yield from bounded_lines(file)


def _unpacking(file: BinaryIO, head: bytes) -> BinaryIO:
    return cast(BinaryIO, gzip.GzipFile(fileobj=file)) if head.startswith(_GZIP) else _zstd(file)


def _zstd(file: BinaryIO) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, _zstd_library().ZstdFile(file))))


def _zstd_library() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _archive_errors() -> tuple[type[Exception], ...]:
    """What the libraries raise for a damaged archive."""
    return OSError, EOFError, ValueError, zlib.error, _zstd_library().ZstdError


@contextmanager
def _naming_archive(path: Path) -> Iterator[None]:
    """Report a damaged archive as such."""
    try:
        yield
    except _archive_errors() as error:
        raise DataError(
            f"{path}: the archive is damaged: {error}", hint="compress or copy it again"
        ) from error


def _lines_of_text(path: Path) -> Iterator[str]:
    """Decompressed lines of a text file, with line ends."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        for number, line in enumerate(_decompressed_lines(file, head, path), 1):
            if line.startswith(b"\0"):
                raise DataError(f"{path}:{number}: {NO_LINE}", hint="write the table again")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{number}: not UTF-8: {error}", hint="save the file as UTF-8"
                ) from error
            yield text


def _csv_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a CSV table with a header; empty cells are missing values, and cells of columns such as `messages` are JSON."""
    import csv

    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(_lines_of_text(path), delimiter=_SEPARATORS[_suffix(path)], strict=True)
    try:
        names = next(reader, [])
        if not all(names) or len(set(names)) < len(names):
            raise DataError(
                f"{path}: the first line is no header: {', '.join(names)[:80] or 'it is empty'}",
                hint="name every column once, as in: prompt,expected_answer",
            )
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(names):
                raise DataError(
                    f"{path}:{reader.line_num}: {len(cells)} cells, the header names {len(names)}",
                    hint='put cells with commas or line breaks between double quotes, and write " as ""',
                )
            yield {
                name: _cell(name, cell, path, reader.line_num)
                for name, cell in zip(names, cells, strict=True)
                if cell
            }
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}", hint="write the table again") from error


def _cell(name: str, cell: str, path: Path, line: int) -> Any:
    if name not in _JSON_COLUMNS or not cell.lstrip().startswith(("[", "{")):
        return cell
    try:
        return msgspec.json.decode(cell)
    except UNREADABLE as error:
        raise DataError(
            f"{path}:{line}: the column {name!r} is not JSON: {error}",
            hint="the column must hold JSON in every row; or map a field: --map prompt=COLUMN",
        ) from error


def _array_elements(path: Path) -> Iterator[bytes]:
    """Elements of a JSON array with unchanged bytes, each on one line; only a few are in memory at a time."""
    scan = json.JSONDecoder().raw_decode
    chunks = _text_chunks(path)
    text, at, number = next(chunks, "").lstrip()[1:], 0, 0
    while True:
        at = _past_space(text, at, "," if number else "")
        if text[at : at + 1] == "]":
            if text[at + 1 :].strip() or any(chunk.strip() for chunk in chunks):
                raise DataError(
                    f"{path}: more text after the end of the JSON array",
                    hint="write one JSON array, or one object per line",
                )
            return
        try:
            _, end = scan(text, at)
            if end == len(text) and not text[end - 1 : end] == "}":
                raise ValueError("a number may go on in the next chunk")
        except (ValueError, RecursionError) as error:
            if len(text) - at > LONGEST_LINE:
                raise DataError(
                    f"{path}: element {number + 1} of the JSON array cannot be read within {LONGEST_LINE >> 20} MB: {error}",
                    hint="mend it; one object per line is safer: JSONL",
                ) from error
            # The chunk may end inside the element: read on, twice as far each time.
            more = "".join(itertools.islice(chunks, max(1, len(text) // ARRAY_CHUNK)))
            if not more:
                raise DataError(
                    f"{path}: the JSON array cannot be read after element {number}: {error}",
                    hint="was the file written to its end? one object per line is safer: JSONL",
                ) from error
            text, at = text[at:] + more, 0
            continue
        number += 1
        # A line break between the tokens of JSON means nothing, and inside a text it is escaped.
        yield text[at:end].encode().replace(b"\r", b" ").replace(b"\n", b" ")
        text, at = (text[end:], 0) if end > ARRAY_CHUNK else (text, end)


def _past_space(text: str, at: int, separator: str) -> int:
    while text[at : at + 1] and text[at] in f" \t\r\n{separator}":
        at += 1
    return at


def _text_chunks(path: Path) -> Iterator[str]:
    """The text of a file by blocks: an array may be one line."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    number = 1
    for block in itertools.chain(_blocks(path), [b""]):
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            number += error.object.count(b"\n", 0, error.start)
            raise DataError(f"{path}:{number}: not UTF-8: {error}", hint="save the file as UTF-8") from error
        number += block.count(b"\n")
        if text:
            yield text


def _blocks(path: Path) -> Iterator[bytes]:
    """The bytes of a file, decompressed."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        if not head.startswith((_GZIP, _ZSTD)):
            yield from iter(lambda: file.read(ARRAY_CHUNK), b"")
            return
        with _naming_archive(path):
            unpacking = _unpacking(file, head)
            yield from iter(lambda: unpacking.read(ARRAY_CHUNK), b"")


def _arrow_rows(path: Path, container: Container) -> Iterator[dict[str, Any]]:
    import pyarrow as arrow

    kind = "Parquet" if container == "parquet" else "Arrow"
    try:
        for batch in _batches(path, container):
            batch.validate(full=True)  # offsets that lead out of the buffers would crash the process
            for start in range(0, batch.num_rows, 1024):
                yield from batch.slice(start, 1024).to_pylist()
    except (arrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise DataError(
            f"{path}: cannot be read as {kind}; it is damaged, or something else: {error}",
            hint="copy or write it again, or give it the ending of what it is (.jsonl)",
        ) from error


def _batches(path: Path, container: Container) -> Iterator[Any]:
    if container == "parquet":
        import pyarrow.parquet as parquet

        yield from parquet.ParquetFile(path).iter_batches(batch_size=1024)
        return
    import pyarrow as arrow

    # Not mapped: truncating a mapped file would crash the process.
    with arrow.OSFile(str(path)) as source:
        with path.open("rb") as file:
            is_stream = file.read(len(_ARROW_STREAM)) == _ARROW_STREAM
        if is_stream:
            yield from arrow.ipc.open_stream(source)
            return
        reader = arrow.ipc.open_file(source)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


def without_nulls(value: object) -> object:
    """A row without the nulls that Parquet adds for missing keys."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
