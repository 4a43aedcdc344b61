"""Lines of files: numbers and conditions that decide hold at their border, and one step beside it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollforge.errors import DataError
from rollforge.store import reading
from rollforge.store.reading import bounded_lines, line_start, lines_of, parquet_file, read_json, read_row
from rollforge.store.tail import damaged_bytes, damaged_file, mend_tail


def test_a_file_is_held_as_a_whole_up_to_the_longest_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 4)
    path = tmp_path / "one.json"
    path.write_text("1234")
    assert read_json(path) == 1234
    path.write_text("12345")
    with pytest.raises(DataError, match="too large for this machine's memory"):
        read_json(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="not a regular file"):
        read_json(tmp_path / "pipe")


def test_a_line_is_read_up_to_the_longest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 4)
    monkeypatch.setattr(reading, "BLOCK_BYTES", 2)
    assert list(bounded_lines(io.BytesIO(b"abc\nabcd\nabcdefg\nx\nabcde"))) == [
        b"abc\n", b"\0\n", b"\0\n", b"x\n", b"\0"]  # fmt: skip
    assert list(bounded_lines(io.BytesIO(b"abc\nabcdef\nx"), 9)) == [b"abc\n", b"\0"]
    assert list(bounded_lines(io.BytesIO(b"abc\nabcdef\nx"), 4)) == [b"abc\n"]
    assert list(bounded_lines(io.BytesIO(b"abc\nx"), 0)) == []


@pytest.mark.parametrize(
    ("data", "start"),
    [(b"", 0), (b"abc", 0), (b"\n", 1), (b"\nabc", 1), (b"ab\ncd\n", 6), (b"x\n" + b"y" * 70_000, 2)],
)
def test_a_line_begins_after_the_last_newline(
    data: bytes, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "STEP_BACK", 3)
    assert line_start(io.BytesIO(data), len(data)) == start


def test_a_missing_file_has_no_lines_and_a_missing_column_is_named(tmp_path: Path) -> None:
    assert list(lines_of(tmp_path / "none")) == []
    pq.write_table(pa.table({"a": [1]}), tmp_path / "one.parquet")
    with parquet_file(tmp_path / "one.parquet", columns=("a",)) as file:
        assert file.metadata.num_rows == 1
    with (
        pytest.raises(DataError, match="the column 'b' is missing"),
        parquet_file(tmp_path / "one.parquet", columns=("a", "b")),
    ):
        pass


@pytest.mark.parametrize(
    ("number", "is_kept"),
    [
        (2**64 - 1, True),
        (2**64, False),
        (-(2**63), True),
        (-(2**63) - 1, False),
        (10**20, False),
        (-(10**19), False),
    ],
)
def test_a_row_keeps_integers_of_64_bits(number: int, is_kept: bool) -> None:
    row = read_row(b'{"a": NaN, "b": 1e999, "c": 0.5, "d": "\\ud800", "n": %d}' % number)
    assert row == {"a": None, "b": None, "c": 0.5, "d": "⟨U+D800⟩", "n": number if is_kept else None}


ROW = b'{"a": 1}'


@pytest.mark.parametrize(
    ("data", "left", "cut"),
    [
        (b"", b"", 0), (ROW + b"\n", ROW + b"\n", 0), (ROW + b"\r\n", ROW + b"\r\n", 0), (ROW, ROW + b"\n", 0),
        (ROW + b'\n{"b', ROW + b"\n", 3), (ROW + b"\n\0\0", ROW + b"\n", 2), (ROW + b"\0\n", ROW + b"\n", 2), (b"\0\0", b"", 2),
        (ROW + b"\n" + b"\0" * 70_000, ROW + b"\n", 70_000), (ROW + b"\n5", ROW + b"\n", 1), (b"x", b"", 1),
        (ROW + b'\n{"b' + b"y" * 70_000, ROW + b"\n", 70_003),
    ],
)  # fmt: skip
def test_a_file_is_cut_after_its_last_whole_line(tmp_path: Path, data: bytes, left: bytes, cut: int) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(data)
    assert mend_tail(path) == cut and path.read_bytes() == left
    kept = damaged_file(path)
    assert kept.exists() is bool(cut)
    if cut:
        assert kept.read_bytes() == data[len(data) - cut :] + b"\n"
    assert mend_tail(path) == 0 and mend_tail(tmp_path / "none") == 0


def test_one_damaged_byte_is_in_the_singular() -> None:
    assert [damaged_bytes(count) for count in (1, 2, 5000)] == [
        "1 damaged byte",
        "2 damaged bytes",
        "5,000 damaged bytes",
    ]
