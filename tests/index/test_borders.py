"""The index: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollforge.index import open_index, overlay
from rollforge.index.answer_kind import answer_kind
from rollforge.index.build import _RangeScan
from rollforge.index.by_task import ByTask, SharedGroups
from rollforge.index.identity import _by_appearance, _shifts, have_own_keys, resolve
from rollforge.index.native_reader import _may_be_errors
from rollforge.index.parts import TaskLocations
from rollforge.index.python_reader import _message
from rollforge.index.row_facts import (
    PartialResponse,
    _load,
    _notes_on_repeated_keys,
    describe_answer,
    read_response,
    split_line,
)
from rollforge.index.state import BadLineAt, KeySpan, Scanned, overlapping
from rollforge.index.views_sql import _columns_of
from tests.builders import make_rollout, write_rows


def test_a_refusal_has_at_most_400_characters() -> None:
    text = "I cannot help with that. "
    assert answer_kind(text + "x" * (400 - len(text))).is_refusal
    assert not answer_kind(text + "x" * (401 - len(text))).is_refusal


def test_a_whole_number_of_400_digits_is_read_and_a_longer_one_is_missing() -> None:
    lost: list[str] = []
    assert _load(b"9" * 400, lost.append) == int("9" * 400) and not lost
    assert _load(b"9" * 401, lost.append) is None and len(lost) == 1


def test_keys_that_are_there_twice_are_named_in_order() -> None:
    line = b'{"b": 1, "a": 1, "b": 2, "a": 3}'
    values = {key: msgspec.Raw(b"1") for key in ("a", "b")}
    assert [text.split("'")[1] for text in _notes_on_repeated_keys(line, values)] == ["a", "b"]


def test_a_later_run_is_shifted_only_where_its_samples_collide() -> None:
    file, task = np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0])
    assert _shifts(file, task, np.array([0, 1, 0, 1]), [0, 1]) == {1: 2}
    assert _shifts(file, task, np.array([0, 1, 2, 3]), [0, 1]) == {}


def test_one_adaptive_run_has_a_design_and_several_read_as_one_have_several(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        write_rows(tmp_path / name / "rollouts.jsonl", [make_rollout(0, 0), make_rollout(0, 1)])
        goal = {"recipe": "grpo", "target": 5, "first": 2 + number, "whole": 8, "most": 8}
        manifest = {"created": 1.0 + number, "extra": {"goal": goal}}
        (tmp_path / name / "rollouts_run.json").write_text(json.dumps(manifest))
    with open_index(tmp_path / "a") as one:
        assert one.design is not None and one.design.first == 2
        assert one.first_stage == "rollout < 2"
    with open_index([tmp_path / "a", tmp_path / "b"]) as both:
        assert both.design is None and [design.first for design in both.designs] == [2, 3]


def test_an_answer_with_one_token_id_has_token_ids_and_an_empty_list_holds_none() -> None:
    def has_ids(ids: list[int]) -> bool | None:
        item = {"type": "message", "role": "assistant", "content": "a", "generation_token_ids": ids}
        response = read_response(msgspec.Raw(msgspec.json.encode({"output": [item]})), print)
        return describe_answer(cast("PartialResponse", response)).has_token_ids

    assert has_ids([7]) and has_ids([7, 11]) and not has_ids([])


def test_parts_that_share_keys_are_named_in_order() -> None:
    def span(first: int, last: int, rollouts: tuple[int, int] = (0, 7)) -> KeySpan:
        return KeySpan(
            first=(first, 0), last=(last, 7), least_rollout=rollouts[0], largest_rollout=rollouts[1]
        )

    assert overlapping([span(0, 3), span(3, 5), span(6, 9), span(9, 9)], 0) == [0, 1, 2, 3]
    assert overlapping([span(0, 3), span(4, 5), span(6, 9)], 0) == []
    assert overlapping([span(0, 3), span(0, 3, (8, 9))], 0) == []
    assert overlapping([span(0, 3), span(3, 5), span(6, 9)], 2) == [], "the first two are known to be apart"


def test_at_most_ten_thousand_bad_lines_of_a_file_are_listed() -> None:
    def bad(count: int) -> Scanned:
        listed = [BadLineAt(file="f", line=one, offset=0, reason="", is_kept=False) for one in range(count)]
        return Scanned(listed=listed, lines=count, rejected=count)

    scanned = bad(6_000)
    scanned.add(bad(6_000))
    assert len(scanned.listed) == 10_000 and scanned.rejected == 12_000
    assert scanned.listed[6_000].line == 6_000


def test_at_most_a_thousand_bad_lines_of_a_range_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    scan: Any = SimpleNamespace(scanned=Scanned(), _file="f")
    for line in range(1_001):
        _RangeScan._list(scan, line, 0, "", is_kept=False)
    assert (len(scan.scanned.listed), scan.scanned.rejected, scan.scanned.noted) == (1_000, 1_001, 0)


def test_bad_lines_are_listed_by_line_and_their_reasons_in_order(tmp_path: Path) -> None:
    rows = [json.dumps(make_rollout(0, number)) for number in range(3)]
    odd = rows[1][:-1] + ', "zz": NaN, "reward": 1.0, "aa": Infinity}'
    (tmp_path / "rollouts.jsonl").write_text("\n".join([rows[0], odd, "{", rows[2], "]"]) + "\n")
    with open_index(tmp_path / "rollouts.jsonl") as index:
        assert [bad.line for bad in index.rejects] == [2, 3, 5]
        parts = index.rejects[0].reason.split("; ")
        assert parts == sorted(parts)


def test_only_the_eight_newest_overlays_are_kept(tmp_path: Path) -> None:
    for number in range(10):
        for ending in ("json", "parquet"):
            path = tmp_path / f"{number}.{ending}"
            path.write_text("")
            os.utime(path, (number, number))
    overlay._sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        f"{number}.json" for number in range(2, 10)
    ]
    assert len(list(tmp_path.glob("*.parquet"))) == 8


def test_a_failure_keeps_a_thousand_characters_of_its_message() -> None:
    for length in (999, 1_000):
        assert _message(msgspec.Raw(json.dumps("x" * length).encode())) == "x" * length
    assert _message(msgspec.Raw(json.dumps("x" * 1_001).encode())) == "x" * 1_000
    assert _message(msgspec.Raw(b'""')) is None and _message(msgspec.Raw(b"7")) is None


def test_the_reward_and_small_names_get_the_plain_column_names() -> None:
    assert _columns_of(["Score", "score"], ()) == {"Score": "fields.Score", "score": "score"}
    assert _columns_of(["Reward", "REWARD", "reward"], ()) == {
        "Reward": "fields.fields.Reward", "REWARD": "fields.REWARD", "reward": "reward"}  # fmt: skip
    assert _columns_of(["task"], ("task",)) == {"task": "fields.task"}


def test_tasks_are_found_in_the_order_of_the_file() -> None:
    places = TaskLocations(
        tasks=np.array([3, 5, 9]), first_row=np.array([40, 10, 20]), named=np.array([1, 1, 1])
    )
    tasks, rows = places.rows([9, 3, 4, 5, 10])
    assert (tasks.tolist(), rows.tolist()) == ([5, 9, 3], [10, 20, 40])


def test_values_are_numbered_as_they_appear() -> None:
    assert _by_appearance(np.array([7, 3, 7, 9, 3])).tolist() == [0, 1, 0, 2, 1]


def test_numbers_are_ordered_by_task_and_sample_whatever_the_order_of_the_lines(tmp_path: Path) -> None:
    keys = [(1, 1), (0, 2), (1, 0), (0, 0), (0, 1)]
    write_rows(
        tmp_path / "rollouts.jsonl", [make_rollout(task, sample, task + sample / 10) for task, sample in keys]
    )
    with open_index(tmp_path / "rollouts.jsonl") as index:
        by_task = ByTask(index)
        assert by_task.one("reward").tolist() == [0.0, 0.1, 0.2, 1.0, 1.1]
        assert by_task.starts.tolist() == [0, 3]
        first = index.first_rows([0, 1])
        assert list(zip(first.column("task").to_pylist(), first.column("row").to_pylist(), strict=True)) == [
            (1, 0),
            (0, 1),
        ]


@pytest.mark.parametrize(("before", "is_error"), [(200, True), (1_200, False)])
def test_a_stack_trace_of_a_long_answer_shows_in_its_first_1200_characters(
    before: int, is_error: bool
) -> None:
    head = "<!DOCTYPE html><html><head>" + "x" * before
    text = head + "</head><body><h1>502 Bad Gateway</h1></body></html>" + " " * 2_000
    assert answer_kind(text).is_error is is_error


def test_rows_are_resolved_in_the_order_of_the_lines_whatever_the_order_of_the_table() -> None:
    numbers = {
        "row": [3, 0, 2, 1],
        "file_no": [0] * 4,
        "task": [5, None, None, 5],
        "rollout": [None, 0, None, None],
    }
    table = pa.table(
        {
            name: pa.array(values, pa.int64())
            for name, values in (numbers | {"prompt_hash": [7, 9, 8, 7]}).items()
        }
    )
    keys = resolve(table)
    assert list(zip(keys.row.tolist(), keys.task.tolist(), keys.rollout.tolist(), strict=True)) == [
        (0, 6, 0), (1, 5, 0), (2, 7, 0), (3, 5, 1)]  # fmt: skip


def test_parts_share_a_key_only_if_task_and_sample_are_equal(tmp_path: Path) -> None:
    def part(name: str, keys: list[tuple[int, int]]) -> Path:
        table = pa.table({"task": [task for task, _ in keys], "rollout": [sample for _, sample in keys]})
        pq.write_table(table, tmp_path / name)
        return tmp_path / name

    one, two, three = part("1", [(0, 0), (1, 0)]), part("2", [(0, 1), (1, 1)]), part("3", [(1, 1), (2, 0)])
    assert have_own_keys([one, two]) and have_own_keys([one, three]) and not have_own_keys([two, three])


def test_words_that_are_no_json_are_named_in_order() -> None:
    _, notes = split_line(b'{"a": NaN, "b": Infinity, "c": NaN}')
    assert notes == ["Infinity, NaN is no JSON; taken as missing"]


def test_a_long_error_is_looked_for_whatever_the_case_of_its_first_letters() -> None:
    texts = [b"Traceback", b"TRACEBACK", b"traceback", b"Trust me"]
    may_be = _may_be_errors(b"".join(texts), np.cumsum([len(text) for text in texts]))
    assert may_be.tolist() == [True, True, True, False]


def test_steps_that_share_their_groups_read_a_column_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column with one value in all rows takes no memory, and has the same sums."""
    rows = [make_rollout(task, sample, float(task % 2)) for task in range(4) for sample in range(3)]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    with open_index(path) as index:
        read: list[str] = []
        columns = index.floats
        monkeypatch.setattr(index, "floats", lambda names, where: read.extend(names) or columns(names, where))
        groups = SharedGroups(index)
        groups.get().keep(["reward", "turns", "attempt"])
        assert groups.get() is groups.get() and groups.get("reward = 1") is not groups.get()
        assert groups.get().one("reward").tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 3 + [1.0] * 3
        turns, attempt = groups.get().one("turns"), groups.get().one("attempt")
        assert sorted(read) == ["attempt", "reward", "turns"]
        assert turns.strides == (0,) and turns.tolist() == [1.0] * 12 and np.isnan(attempt).all()
        assert [one.tolist() for one in groups.get().sums(turns)] == [[3.0] * 4, [3.0] * 4]
        assert [one.tolist() for one in groups.get().sums(attempt)] == [[0.0] * 4, [0.0] * 4]
