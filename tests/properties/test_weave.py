"""JSON lines made of columns: the compiled way and the Python way write what encoding a record per row would."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollforge.steps.profile import weave as module
from rollforge.steps.profile.weave import NO_NUMBER, Column, Piece, Pieces, column, weave_slowly

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


doubles = st.floats() | st.floats(-1e4, 1e4) | st.integers(-(10**17), 10**17).map(float)


@pytest.mark.parametrize("weave", ways)
@given(told=st.lists(doubles, min_size=1))
@example([float(NO_NUMBER)])
def test_numbers_are_spelled_as_the_encoder_spells_them(weave: Weave, told: list[float]) -> None:
    rows = [{"a": one, "b": one} if math.isfinite(one) else {} for one in told]
    expected = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    assert woven(weave, len(told), [column(key, np.array(told)) for key in "ab"]) == expected


@pytest.mark.skipif(module._compiled is None, reason="no compiler at installation")
def test_every_kind_of_double_is_spelled_as_the_encoder_spells_it() -> None:
    assert module._compiled is not None
    rng = np.random.default_rng(20)
    any_bits = rng.integers(0, 2**64, 60_000, dtype=np.uint64).view(np.float64)
    twos = np.array([2.0**power for power in range(-1074, 1024)])
    near_twos = np.concatenate([twos, np.nextafter(twos, 0), np.nextafter(twos, np.inf)])
    tens = np.array([float(f"{digit}e{power}") for power in range(-323, 309) for digit in (1, 5, 9)])
    short = np.round(rng.random(20_000), 4) * 10.0 ** rng.integers(-6, 18, 20_000)
    found = np.concatenate([any_bits, near_twos, tens, short, -tens, np.arange(3000) * 5e-324, [0.0, -0.0]])
    found = found[np.isfinite(found)]
    expected = b"".join(b'{"a":%b}\n' % msgspec.json.encode(one) for one in found.tolist())
    assert woven(module._compiled, len(found), [column("a", found)]) == expected


@pytest.mark.parametrize("weave", ways)
@given(told=st.lists(st.integers(-(2**63) + 1, 2**63 - 1) | st.none(), min_size=1))
def test_whole_numbers_are_spelled_and_missing_ones_left_out(weave: Weave, told: list[int | None]) -> None:
    given_numbers = np.array([NO_NUMBER if one is None else one for one in told], dtype=np.int64)
    expected = b"".join(b"{}\n" if one is None else b'{"a":%d}\n' % one for one in told)
    assert woven(weave, len(told), [column("a", given_numbers)]) == expected


@pytest.mark.parametrize("weave", ways)
def test_an_array_may_be_laid_out_as_neighbouring_columns(weave: Weave) -> None:
    low, high = np.array([0.5, np.nan]), np.array([0.25, np.nan])
    assert woven(weave, 2, [Column(b'"ci":[', low), Column(b"", high, b"]")]) == b'{"ci":[0.5,0.25]}\n{}\n'


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
        (b"", np.array([1.0]), b""),
        (b"", np.array([1.0, 2.0, 3.0, 4.0])[::2], b""),
        (b"", np.array([1.0, 2.0], dtype=np.float32), b""),
        (b"", np.array([[1.0], [2.0]]), b""),
        ("", b"[1,2]", b""),
    ],
)
def test_what_is_no_column_is_refused(given: Any) -> None:
    assert module._compiled is not None
    with pytest.raises((TypeError, ValueError, BufferError)):
        module._compiled(2, [given], bytearray())
