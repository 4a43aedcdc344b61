"""Columns of Arrow become arrays of numpy, exactly, and the index hands them out as cheaply as it can."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.index import codes, flags, floats, ints, open_index

WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.sampled_from(["", "agent", "Agent", "你好", "a\0"])


def chunked(parts: list[list[object]], kind: pa.DataType) -> pa.ChunkedArray:
    """Chunks that begin in the middle of their buffers, as those of a slice do."""
    return pa.chunked_array([pa.array([None, *part], kind)[1:] for part in parts], kind)


def parts_of(values: st.SearchStrategy[object]) -> st.SearchStrategy[list[list[object]]]:
    return st.lists(st.lists(st.none() | values, max_size=12), max_size=4)


@given(parts_of(WHOLE), st.sampled_from([0, -1]))
def test_whole_numbers_keep_every_digit_and_get_the_value_for_missing(
    parts: list[list[int | None]], missing: int
) -> None:
    found = ints(chunked(parts, pa.int64()), missing)  # type: ignore[arg-type]
    assert found.dtype == np.int64
    assert found.tolist() == [missing if value is None else value for part in parts for value in part]


@given(parts_of(st.floats(allow_nan=False)))
def test_missing_numbers_are_nan(parts: list[list[float | None]]) -> None:
    found = floats(chunked(parts, pa.float64())).tolist()  # type: ignore[arg-type]
    assert [None if math.isnan(value) else value for value in found] == [v for part in parts for v in part]


def test_whole_numbers_and_truth_values_may_be_floats() -> None:
    assert floats(chunked([[3, None]], pa.int64())).tolist()[0] == 3.0
    assert floats(chunked([[True, False]], pa.bool_())).tolist() == [1.0, 0.0]
    assert np.isnan(floats(chunked([[None, None]], pa.null()))).all()


@given(parts_of(st.booleans()))
def test_missing_flags_are_no(parts: list[list[bool | None]]) -> None:
    found = flags(chunked(parts, pa.bool_()))  # type: ignore[arg-type]
    assert found.dtype == np.bool_
    assert found.tolist() == [bool(value) for part in parts for value in part]


@given(parts_of(TEXTS), st.booleans())
def test_texts_are_numbered_in_the_order_they_appear(parts: list[list[str | None]], is_coded: bool) -> None:
    column = chunked(parts, pa.string())  # type: ignore[arg-type]
    if is_coded:
        kind = pa.dictionary(pa.int32(), pa.string())
        column = pa.chunked_array([chunk.dictionary_encode() for chunk in column.chunks], kind)
    numbers, names = codes(column)
    texts = [text for part in parts for text in part]
    assert names == list(dict.fromkeys(text for text in texts if text is not None))
    assert [None if number < 0 else names[number] for number in numbers.tolist()] == texts


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [
        {"_ng_task_index": row // 2, "_ng_rollout_index": row % 2, "reward": 1.0, "agent_ref": {"name": f"agent {row % 3}"},
         "steps": row, **({"score": 0.5} if row % 2 else {}), "responses_create_params": {"input": "?"}, "response": {"output": []}}
        for row in range(6)
    ]  # fmt: skip
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def test_the_index_knows_which_numbers_no_row_lacks(run: Path) -> None:
    with open_index(run) as index:
        assert index.whole_numbers == {"reward", "steps"}


def test_no_number_is_known_to_be_whole_when_a_row_is_overruled(run: Path) -> None:
    lines = run.read_bytes().splitlines(keepends=True)
    run.write_bytes(b"".join([*lines, lines[0]]))
    with open_index(run) as index:
        assert index.whole_numbers == frozenset()


def test_texts_read_as_codes_are_the_same_texts(run: Path) -> None:
    with open_index(run) as index:
        plain, coded = (index.table(["agent", "model"], may_code=choice) for choice in (False, True))
    assert coded.to_pylist() == plain.to_pylist()
    assert pa.types.is_dictionary(coded.schema.field("agent").type)
