"""Reads the rows of a file, and describes lines that are not rows."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from math import isinf
from pathlib import Path
from typing import Any

import msgspec

from rollforge.index import UnreadableLine, read_lines, split_line
from rollforge.records import PARAMS_KEY, JsonFields
from rollforge.steps.validate.validation_records import RowFault
from rollforge.tasks.containers import (
    Container,
    container_of,
    other_format,
    read_table,
    unpacked_lines,
    without_nulls,
)

MARK = "a byte order mark before the row: save the file as UTF-8 without it"
MAX_DIGITS = 4300
"""Most digits of an integer that Python parses."""


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line with its number; rows of other containers as JSON lines."""
    if (container := _container(path)) != "lines":
        for number, row in read_table(path, container):
            yield number, row if isinstance(row, bytes) else msgspec.json.encode(_as_read(row))
        return
    yield from enumerate(unpacked_lines(path) or read_lines(path), 1)


def _container(path: Path) -> Container:
    """The container by the file's first bytes, or by its suffix; `collect` uses only the first bytes."""
    return "parquet" if path.suffix == ".parquet" else container_of(path)


def _as_read(row: JsonFields) -> JsonFields:
    return {key: _as_sent(key, value) for key, value in row.items() if value is not None}


def _as_sent(key: str, value: Any) -> Any:
    """A request or response without the nulls that Parquet adds to items of different forms, as `collect` reads it."""
    return without_nulls(value) if key in (PARAMS_KEY, "response") else value


def foreign_format(path: Path) -> RowFault | None:
    """The fault of a file that is not JSON Lines at all: an array, a table, an image."""
    with path.open("rb") as file:
        other = other_format(file.read(4096), path)
    return RowFault("", f"this is {other.what}", other.remedy) if other is not None else None


def read_rows(path: Path) -> Iterator[tuple[int, JsonFields | None, RowFault | None]]:
    """Yield line number, row (None if invalid), and the faults of the line itself."""
    if (container := _container(path)) not in ("lines", "array"):
        for number, row in read_table(path, container):
            if isinstance(row, dict):
                yield number, _as_read(row), None
        return
    yield from rows_of_lines(lines_of(path), path)


def rows_of_lines(
    lines: Iterable[tuple[int, bytes]], path: Path
) -> Iterator[tuple[int, JsonFields | None, RowFault | None]]:
    """Like `read_rows`, of lines of `path` that were read elsewhere."""
    for number, data in lines:
        if not data.strip():
            yield number, None, RowFault("", "the line is blank", "NeMo Gym stops at it", "warning")
            continue
        if number == 1 and data.startswith(BOM_UTF8):
            read, reasons = _read_line(data.removeprefix(BOM_UTF8))
            if read is not None and not reasons and "response" not in read:
                yield (
                    number,
                    read,
                    RowFault("", MARK, "`collect` skips it; other readers refuse it", "warning"),
                )
                continue
        read, reasons = _read_line(data)
        hint = f"see it: rollforge show {path} --raw --line {number}"
        yield number, read, RowFault("", "; ".join(reasons), hint) if reasons else None


def _read_line(data: bytes) -> tuple[JsonFields | None, list[str]]:
    """The row (None if the line is invalid), and the faults of the line."""
    try:
        data.decode()
        _, notes = split_line(data)
        if not notes:
            return msgspec.json.decode(data), []
    except UnicodeDecodeError as error:
        return None, [f"invalid UTF-8 at byte {error.start}"]
    except UnreadableLine as error:
        return None, [str(error)]
    except RecursionError:
        return None, ["nested too deeply"]
    except ValueError as error:  # values that most readers refuse and Python's json accepts
        odd = _OddLine(data)
        return None, odd.constants + odd.faults or [str(error)]
    odd = _OddLine(data)
    return (odd.row if not odd.faults else None), notes + odd.faults


class _OddLine:
    """A line that strict JSON readers refuse, parsed by Python to describe its irregularities."""

    def __init__(self, data: bytes) -> None:
        self.constants: list[str] = []
        """Occurrences of NaN and Infinity, which count as missing."""
        self.faults: list[str] = []
        """Faults for which the line is not a row."""
        self.row: JsonFields | None = None
        text = data.decode("utf-8-sig")
        if len(text.encode()) != len(data):
            self._fault(MARK)
        try:
            self.row = json.loads(
                text, parse_constant=self._missing, parse_float=self._float, parse_int=self._int
            )
            json.dumps(self.row, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            self._fault("half a surrogate pair (like \\ud800) in a text: most readers refuse the line")
        except RecursionError:
            self._fault("nested too deeply")
        except ValueError as error:
            self._fault(str(error))

    def _fault(self, reason: str) -> None:
        if reason not in self.faults:
            self.faults.append(reason)

    def _missing(self, word: str) -> None:
        reason = f"{word} is no JSON; taken as missing"
        if reason not in self.constants:
            self.constants.append(reason)

    def _float(self, text: str) -> Any:
        value = float(text)
        if isinf(value):
            self._fault(f"{text[:20]} is a number out of range: no reader can hold it")
            return None
        return value

    def _int(self, text: str) -> Any:
        if len(text) > MAX_DIGITS:
            self._fault(f"a number of {len(text):,} digits is out of range: no reader can hold it")
            return None
        return int(text)
