"""Which rows share a key is decided part by part; however a file has grown, the answer is that of reading it whole."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rollforge.index import open_index
from rollforge.index.identity import key_span
from rollforge.index.state import KeySpan, overlapping

KEY = st.tuples(st.one_of(st.integers(0, 9), st.none()), st.integers(0, 9))
FULL_KEY = st.tuples(st.integers(0, 9), st.integers(0, 9))
STEP = st.one_of(
    st.lists(FULL_KEY, max_size=9), st.lists(FULL_KEY, max_size=9, unique=True), st.lists(KEY, max_size=9)
)


def span_of(keys: list[tuple[int, int]]) -> KeySpan | None:
    task, rollout = ([key[place] for key in keys] for place in (0, 1))
    return key_span(
        pa.chunked_array([pa.array(task, pa.int64())]), pa.chunked_array([pa.array(rollout, pa.int64())])
    )


@given(st.lists(st.lists(FULL_KEY, min_size=1, unique=True, max_size=4), max_size=6), st.integers(0, 6))
def test_parts_that_share_a_key_meet(parts: list[list[tuple[int, int]]], known: int) -> None:
    spans = [span for part in parts if (span := span_of(part)) is not None]
    assert len(spans) == len(parts)
    found = overlapping(spans, known)
    for place, part in enumerate(parts):
        for other in range(place):
            if place >= known and set(part) & set(parts[other]):
                assert {place, other} <= set(found)


def test_rows_without_a_key_of_their_own_have_no_span() -> None:
    assert span_of([(1, 0), (0, 5), (1, 0)]) is None
    assert span_of([(-1, 0), (0, 5)]) is None
    assert span_of([(1, 0), (0, 5), (1, 3)]) == KeySpan((0, 5), (1, 3), 0, 5)


def test_other_tasks_or_other_rollouts_do_not_meet() -> None:
    first, later_tasks, more_rollouts = (
        span_of([(0, 0), (3, 1)]),
        span_of([(3, 2), (9, 0)]),
        span_of([(0, 2), (3, 7)]),
    )
    assert first is not None and later_tasks is not None and more_rollouts is not None
    assert overlapping([first, later_tasks], 0) == [] and overlapping([first, more_rollouts], 0) == []


@pytest.mark.usefixtures("reader")
@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(STEP, min_size=1, max_size=4), st.booleans())
@example([[(0, 0), (0, 1)], [(1, 0)], [(0, 1)]], False)
@example([[(0, 0)], [(0, 0)], [(1, 1)]], True)
def test_a_file_that_grows_has_the_duplicates_it_has_when_read_whole(
    steps: list[list[tuple[int | None, int]]], is_torn: bool
) -> None:
    """`is_torn`: each time the last line has no newline yet."""
    with tempfile.TemporaryDirectory() as folder, patch("rollforge.index.build.CHUNK", 2):
        path = Path(folder) / "rollouts.jsonl"
        path.write_bytes(b"")
        seen: list[tuple[int | None, int]] = []
        for step in steps:
            with path.open("ab") as file:
                for task, rollout in step:
                    asked = "" if task is None else f'"_ng_task_index":{task},'
                    ending = "\n" if seen and is_torn else ""
                    row = f'{{{asked}"_ng_rollout_index":{rollout},"reward":1}}'
                    file.write(f"{ending}{row}{'' if is_torn else chr(10)}".encode())
                    seen.append((task, rollout))
            with open_index(path) as index:
                known = [key for key in seen if key[0] is not None]
                assert index.duplicate_count == len(known) - len(set(known))
                assert len(index) == len(seen) - index.duplicate_count
