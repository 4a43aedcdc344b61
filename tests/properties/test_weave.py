"""JSON lines made of columns: the compiled way and the Python way write what encoding a record per row would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.steps.profile import weave as module
from rollforge.steps.profile.weave import Column, Piece, Pieces, column, weave_slowly

Weave = Callable[[int, list[Column], bytearray], int]
ways = [pytest.param(weave_slowly, id="python")]
if module._compiled is not None:
    ways.append(pytest.param(module._compiled, id="compiled"))

numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)
tables = st.dictionaries(st.text(), st.lists(values, min_size=3, max_size=3), min_size=1, max_size=6)


def woven(weave: Weave, rows: int, columns: list[Column]) -> bytes:
    into = bytearray(b"x" * 7)  # what stood there before is written over
    size = weave(rows, columns, into)
    return bytes(into[:size])


@pytest.mark.parametrize("weave", ways)
@given(table=tables, are_listed=st.booleans())
def test_lines_are_those_of_encoding_every_row(
    weave: Weave, table: dict[str, list[Any]], are_listed: bool
) -> None:
    encode = msgspec.json.encode
    columns = [
        column(key, [encode(one) for one in told] if are_listed else encode(told))
        for key, told in table.items()
    ]
    rows = [{key: told[row] for key, told in table.items() if told[row] is not None} for row in range(3)]
    expected = b"".join(encode(row) + b"\n" for row in rows)
    assert woven(weave, 3, columns) == expected


@pytest.mark.parametrize("weave", ways)
def test_pieces_are_read_from_the_file(weave: Weave, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b'0123[1,2]{"a":"b"}')
    begins, sizes = np.array([4, 4, 0]).tobytes(), np.array([5, 0, 0]).tobytes()
    others, their_sizes = np.array([9, 9, 0]).tobytes(), np.array([9, 9, 0]).tobytes()
    with path.open("rb") as file:
        pieces = Pieces(file.fileno(), [Piece(b'"p":', begins, sizes), Piece(b',"q":', others, their_sizes)])
        columns = [column("n", b"[1,2,3]"), Column(b'"sample":{', pieces, b"}")]
        found = woven(weave, 3, columns)
    assert (
        found == b'{"n":1,"sample":{"p":[1,2],"q":{"a":"b"}}}\n{"n":2,"sample":{,"q":{"a":"b"}}}\n{"n":3}\n'
    )


@pytest.mark.parametrize("weave", ways)
def test_a_file_that_became_shorter_is_told(weave: Weave, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"[1,2]")
    with path.open("rb") as file:
        piece = Piece(b"", np.array([2]).tobytes(), np.array([9]).tobytes())
        with pytest.raises(EOFError, match="shorter"):
            woven(weave, 1, [Column(b'"p":', Pieces(file.fileno(), [piece]))])


@pytest.mark.parametrize("weave", ways)
@pytest.mark.parametrize("told", [b"[1]", b"[1,2,3]", [b"1"], b"[]"])
def test_a_column_of_another_length_is_refused(weave: Weave, told: bytes | list[bytes | None]) -> None:
    with pytest.raises(ValueError, match="number of values"):
        woven(weave, 2, [column("a", told)])


@pytest.mark.skipif(module._compiled is None, reason="no compiler at installation")
@pytest.mark.parametrize(
    "given",
    [
        (b"", None, b""),
        (b"", b"", b""),
        (b"", [1, 2], b""),
        (b"", (0, []), b""),
        (b"", (0, [(b"", b"12", b"")]), b""),
        ("", b"[1,2]", b""),
    ],
)
def test_what_is_no_column_is_refused(given: Any) -> None:
    assert module._compiled is not None
    with pytest.raises((TypeError, ValueError)):
        module._compiled(2, [given], bytearray())
