"""Lines and columns of an index: numbers and conditions that decide hold at their border, and one step beside it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from rollforge.errors import UsageError
from rollforge.index import build, cache, jsonl, native_reader, open_index
from rollforge.index.build import (
    LEAST_RANGE,
    MOST,
    MOST_ASKED_FOR,
    RANGE,
    WORTH_A_THREAD,
    _bounds,
    _RangeScan,
    reader_count,
)
from rollforge.index.by_task import ByTask, SharedGroups
from rollforge.index.cache import IndexCache, allow_open_files
from rollforge.index.identity import _tasks_by_prompt, packed_keys, resolve
from rollforge.index.jsonl import LineBatch, _run_end, read_batches, read_spans
from rollforge.index.keys_by_line import LineKeys
from rollforge.index.overlay import _have_own_keys
from rollforge.index.run_facts import first_stages, per_run, samples_per_task
from rollforge.index.text_hash import _plain
from rollforge.index.user_sql import (
    _dotted,
    check_expression,
    check_order,
    column_paths,
    parse,
    tables_by_alias,
)
from tests.builders import make_rollout, write_rows


@pytest.fixture(params=sorted({native_reader.is_available(), False}))
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the compiled reader reads the rows."""
    if not request.param:
        monkeypatch.setattr(native_reader, "KINDS", ())
    return bool(request.param)


def test_missing_texts_have_a_code_of_their_own_in_any_order_of_lines(tmp_path: Path) -> None:
    kinds = {(1, 0): "b", (0, 1): None, (0, 0): "a", (1, 1): "a"}
    rows = [make_rollout(*key, **({"kind": kind} if kind else {})) for key, kind in kinds.items()]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        for condition, expected in (
            (None, ["a", None, "b", "a"]),
            ("task = 0", ["a", None]),
            ("rollout = 0", ["a", "b"]),
        ):
            codes, words = ByTask(index, condition).codes("kind")
            assert [words[code] for code in codes.tolist()] == expected
        numbers, values = ByTask(index).numbered("kind")
        assert [values[number - 1].as_py() if number else None for number in numbers.tolist()] == [
            "a",
            None,
            "b",
            "a",
        ]
        numbers, values = ByTask(index).numbered("reward")
        assert (numbers.tolist(), values.to_pylist()) == ([1, 1, 1, 1], [1.0])


@pytest.mark.parametrize(
    ("room", "kept"), [(3, []), (4, ["reward"]), (7, ["reward"]), (8, ["reward", "turns"])]
)
def test_columns_are_remembered_while_they_fit(tmp_path: Path, room: int, kept: list[str]) -> None:
    rows = [make_rollout(task, 0) for task in range(4)]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        by_task = ByTask(index, remembered=room)
        assert [name for name, _ in by_task.floats(["reward", "turns"])] == ["reward", "turns"]
        assert list(by_task._kept) == kept
        together = ByTask(index, remembered=room)
        together.keep(["reward", "turns"])
        assert list(together._kept) == (kept if len(kept) == 2 else [])


def test_rollouts_are_ordered_by_their_key_also_where_the_lines_descend(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, task / 2) for task in (2, 1, 0)]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        assert ByTask(index).one("reward").tolist() == [0.0, 0.5, 1.0]


def test_files_whose_tasks_agree_need_no_table_of_their_own() -> None:
    def is_plain(tasks: list[int], prompts: list[int]) -> bool:
        columns = {"row": [0, 1], "file_no": [0, 1], "task": tasks, "rollout": [0, 1], "prompt_hash": prompts}
        return resolve(pa.table(columns)).is_plain

    assert is_plain([0, 1], [7, 8]) and is_plain([0, 0], [7, 7]) and not is_plain([0, 0], [7, 8])


@pytest.mark.parametrize(
    ("parts", "are_own"),
    [
        ([[(0, 0), (9, 9)]], True), ([[(0, 0), (1, 0)], [(2, 0), (3, 0)]], True), ([[(2, 0), (3, 0)], [(0, 0), (1, 9)]], True),
        ([[(0, 0), (2, 0)], [(2, 0), (3, 0)]], False), ([[(0, 0), (2, 1)], [(2, 0), (3, 0)]], False), ([[(0, 0),
        (1, 0)], None], False),
    ],
)  # fmt: skip
def test_parts_have_their_own_keys_where_their_ranges_do_not_touch(parts: list[Any], are_own: bool) -> None:
    def file(span: Any, number: int = 0, own: bool = True) -> Any:
        keys = None if span is None else SimpleNamespace(first=span[0], last=span[1])
        state = SimpleNamespace(has_own_keys=own, parts=lambda: [SimpleNamespace(keys=keys)])
        return SimpleNamespace(file_no=number, state=state)

    assert _have_own_keys([file(span) for span in parts]) is are_own
    assert not _have_own_keys([file(span, own=False) for span in parts])
    assert len(parts) == 1 or not _have_own_keys([file(span, number) for number, span in enumerate(parts)])


def test_at_most_twenty_million_values_are_shared(tmp_path: Path) -> None:
    with open_index(write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0)])) as index:
        assert SharedGroups(index).get()._remembered == 20_000_000


def test_large_files_have_a_reader_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)), raising=False)
    assert [reader_count(size, None) for size in (1, WORTH_A_THREAD - 1, WORTH_A_THREAD)] == [1, 1, 3]
    assert [reader_count(size, 2) for size in (1, WORTH_A_THREAD)] == [2, 2]
    assert reader_count(1, 1000) == MOST_ASKED_FOR
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(99)), raising=False)
    assert reader_count(WORTH_A_THREAD, None) == MOST


@pytest.mark.parametrize(
    ("size", "bounds"),
    [
        (5, [0, 5]),
        (RANGE + LEAST_RANGE - 1, [0, RANGE + LEAST_RANGE - 1]),
        (RANGE + LEAST_RANGE, [0, RANGE, RANGE + LEAST_RANGE]),
    ],
)
def test_the_last_range_is_no_smaller_than_the_least(size: int, bounds: list[int]) -> None:
    assert _bounds(0, size, 1) == bounds


def test_a_line_is_long_from_a_length_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "LONG", 10)
    for data, listed in (
        (b'{"a": 12}\n', []),
        (b'{"a": 123}', [1]),
        (b'{"a": 123}\n{}\n{"a": 1234}\n', [1, 3]),
    ):
        scan = _RangeScan(tmp_path / "a.jsonl", "rollouts", tmp_path / "part")
        scan.take(LineBatch(0, memoryview(data), is_terminated=data.endswith(b"\n")))
        assert [(bad.line, bad.is_kept) for bad in scan.scanned.listed] == [(line, True) for line in listed]


def test_a_file_has_grown_if_its_indexed_bytes_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"{}\n{}\n")
    made = IndexCache(path, "rollouts", tmp_path / "index")
    head, tail = made._digests(6)
    for inode, size, before, end, digest, has_grown in (
        (1, 9, 6, 6, head, True), (1, 6, 8, 6, head, True), (1, 6, 6, 6, head, False), (2, 9, 6, 6, head, False),
        (1, 5, 8, 6, head, False), (1, 9, 6, 6, "other", False),
    ):  # fmt: skip
        state: Any = SimpleNamespace(
            made_of=SimpleNamespace(inode=1, size=before),
            body=SimpleNamespace(end=end),
            head_digest=digest,
            tail_digest=tail,
        )
        now: Any = SimpleNamespace(inode=inode, size=size)
        assert made._has_grown(state, now) is has_grown


def test_a_file_is_read_whole_for_its_digest_up_to_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("READ_WHOLE", 8), ("PROBE", 2), ("BLOCK", 1), ("BLOCKS", 2)):
        monkeypatch.setattr(cache, name, number)
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b"123456789")
    made = IndexCache(path, "rollouts", tmp_path / "index")
    digests = [
        tuple(hashlib.sha256(part).hexdigest() for part in parts)
        for parts in ((b"12345678", b""), (b"125", b"89"))
    ]
    assert [made._digests(8), made._digests(9)] == digests


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        (cache.SPARE_FILES + 10, -1, None), (cache.SPARE_FILES + 9, -1, cache.SPARE_FILES + 10), (-1, -1, None),
        (5, 9, 9), (5, cache.SPARE_FILES + 99, cache.SPARE_FILES + 10),
    ],
)  # fmt: skip
def test_the_limit_of_open_files_is_raised_only_as_far_as_needed_and_allowed(
    soft: int, hard: int, limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[tuple[int, int]] = []
    system = SimpleNamespace(
        RLIMIT_NOFILE=7,
        RLIM_INFINITY=-1,
        getrlimit=lambda _: (soft, hard),
        setrlimit=lambda _, given: limits.append(given),
    )
    monkeypatch.setattr(cache, "resource", system)
    allow_open_files(10)
    assert limits == ([] if limit is None else [(limit, hard)])


@pytest.mark.parametrize(
    ("task", "rollout", "fits"),
    [
        (2**62 - 2, 1, True),
        (2**62 - 1, 1, False),
        (0, 0, True),
        (-1, 0, False),
        (0, -1, False),
        (2**63 - 2, 0, True),
    ],
)
def test_keys_are_packed_while_they_fit_into_64_bits(task: int, rollout: int, fits: bool) -> None:
    made = packed_keys(np.array([task]), np.array([rollout]))
    assert (made is not None) is fits
    assert made is None or made.tolist() == [task * (rollout + 1) + rollout]


def test_a_prompt_of_one_task_names_its_number() -> None:
    tasks = pa.table({"file_no": [0, 0, 0, 0, 1], "task": [3, 4, 5, 6, 9], "prompt_hash": [0, 7, 7, None, 8]})
    assert _tasks_by_prompt(tasks, 0) == ({0: 3}, 7)
    assert _tasks_by_prompt(tasks, 1) == ({8: 9}, 10)
    assert _tasks_by_prompt(None, 0) == ({}, 0)


def test_a_later_line_of_the_same_rollout_counts(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 0.25), make_rollout(0, 0, 0.75), make_rollout(0, 1, 0.5)]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        assert (len(index), index.duplicate_count) == (2, 1)
        assert [(one.row, one.overruled_by, one.line) for one in index.duplicates] == [(0, 1, 1)]
        assert sorted(index.floats(["reward"])["reward"].tolist()) == [0.5, 0.75]
        assert not index.has_failures and index.doubt() is None


def test_rows_without_a_response_and_a_reward_are_perhaps_tasks(tmp_path: Path) -> None:
    bare = {"_ng_task_index": 0, "_ng_rollout_index": 0, "responses_create_params": {"input": "hello"}}
    for name, row, is_doubted in (
        ("tasks", bare, True), ("reward", bare | {"reward": 0.0}, False), ("answer", make_rollout(0, 0, None), False),
    ):  # fmt: skip
        with open_index(write_rows(tmp_path / name / "rollouts.jsonl", [row])) as index:
            assert (index.doubt() is not None) is is_doubted
    (tmp_path / "tasks" / "rollouts_failures.jsonl").write_text(
        '{"_ng_task_index": 0, "_ng_rollout_index": 1, "class": "timeout"}\n'
    )
    with open_index(tmp_path / "tasks" / "rollouts.jsonl") as index:
        assert index.has_failures


@pytest.mark.parametrize(
    ("data", "spans"),
    [(b"\nab\n", [(0, 0), (1, 3)]), (b"a\n\n", [(0, 1), (2, 2)]), (b"a\nb", [(0, 1), (2, 3)]), (b"", [])],
)
def test_lines_end_at_a_newline_or_at_the_end(data: bytes, spans: list[tuple[int, int]]) -> None:
    assert list(LineBatch(0, memoryview(data)).spans()) == spans


def test_a_line_with_its_newline_is_read_up_to_the_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK", 8)
    monkeypatch.setattr(jsonl, "MAX_LINE", 16)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a" * 15 + b"\n" + b"b" * 16 + b"\n" + b"c\n" + b"d" * 20 + b"\n" + b"e")
    made = [
        (batch.offset, bytes(batch.data), bool(batch.error), batch.is_terminated)
        for batch in read_batches(path)
    ]
    lines = [(offset, data) for offset, data, has_error, _ in made if not has_error]
    assert b"".join(data for _, data in lines) == b"a" * 15 + b"\n" + b"c\n" + b"e"
    assert [offset for offset, _, has_error, _ in made if has_error] == [16, 35] and not made[-1][3]


def test_lines_belong_to_the_range_in_which_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK", 4)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"ab\ncdefgh\ni\n\nj")
    size = path.stat().st_size
    for first in range(size):
        for second in range(first, size):
            ranges = [(0, first), (first, second), (second, size)]
            read = [b"".join(bytes(batch.data) for batch in read_batches(path, *one)) for one in ranges]
            assert b"".join(read) == path.read_bytes()
            assert all(not part or part.startswith((b"ab", b"cd", b"i", b"\n", b"j")) for part in read)


@pytest.mark.parametrize(
    ("spans", "last"),
    [
        ([(0, 4), (4, 4)], 1), ([(0, 4), (6, 4)], 1), ([(0, 4), (7, 2)], 0), ([(0, 4), (3, 2)], 0), ([(0, 4), (5, 6)], 0),
        ([(0, 4), (4, 4), (8, 2), (10, 1)], 2), ([(0, 99)], 0),
    ],
)  # fmt: skip
def test_spans_that_are_near_are_read_together_up_to_a_size(
    spans: list[tuple[int, int]], last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "GAP", 2)
    monkeypatch.setattr(jsonl, "STRETCH", 10)
    assert _run_end(spans, 0) == last


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_spans_come_in_the_order_asked_for(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a.jsonl{ending}"
    with pa.output_stream(str(path), compression="gzip" if ending else None) as file:
        file.write(b"0123456789" * 20)
    assert list(read_spans(path, [(10, 3), (13, 2), (5, 4), (5, 4), (199, 1)])) == [
        b"012",
        b"34",
        b"5678",
        b"5678",
        b"9",
    ]


def test_a_line_without_a_row_has_no_key() -> None:
    keys = LineKeys(np.array([2, 5]), np.array([7, 8]), np.array([0, 1]))
    assert [keys.get(line) for line in (1, 2, 3, 5, 6)] == [None, (7, 0), None, (8, 1), None]
    assert keys.last == 5 and LineKeys(*(np.zeros(0, dtype=np.int64),) * 3).last == 0


def test_a_short_answer_is_looked_at_up_to_400_characters(tmp_path: Path, reader: bool) -> None:
    text = "I cannot help with that. "
    rows = [make_rollout(0, number, text=text + "x" * (400 + number - len(text))) for number in range(2)]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        assert index.select("select is_refusal from rollouts order by rollout").column(0).to_pylist() == [
            True,
            False,
        ]


def test_a_text_of_256_characters_is_a_column(tmp_path: Path, reader: bool) -> None:
    rows = [make_rollout(0, 0, note="x" * 256), make_rollout(0, 1, note="y" * 257)]
    with open_index(write_rows(tmp_path / "rollouts.jsonl", rows)) as index:
        assert index.select("select note from rollouts order by rollout").column(0).to_pylist() == [
            "x" * 256,
            None,
        ]


def test_a_row_that_is_not_in_the_index_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, number) for number in range(3)])
    with open_index(path) as index:
        read = [
            json.loads(line)["_ng_rollout_index"] for line in index._text.lines("rollouts", np.array([2, 0]))
        ]
        assert read == [2, 0]
        for row in (3, -1):
            with pytest.raises(UsageError, match="1 of the rows asked for are not in the index"):
                list(index._text.lines("rollouts", np.array([0, row])))
            assert index._text.piece(row, 0, 5) is None
        assert index._text.piece(2, 0, 5) == path.read_bytes().splitlines()[2][:5]
        assert index._text.piece(0, 10**6, 5) == b""


def run(path: str, samples: int | None = 4, **more: Any) -> Any:
    fields = {"samples": samples, "expected": 10, "input_digest": "a", "design": None}
    return SimpleNamespace(path=path, **fields | more)


def test_samples_of_runs_of_the_same_tasks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.index.run_facts.run_numbers", lambda facts: range(len(facts)))
    for facts, apart, together in (
        ([run("a")], 4, 4), ([run("a"), run("b")], 4, 8), ([run("a"), run("b", 2)], None, 6),
        ([run("a"), run("b", input_digest="b")], 4, None), ([run("a"), run("b", None)], None, None),
    ):  # fmt: skip
        assert samples_per_task(facts, has_shifts=False) == apart
        assert samples_per_task(facts, has_shifts=True) == together
    assert per_run([run("a"), run("b")], "expected") == [10, 10]


def test_first_stages_are_known_of_runs_of_one_file() -> None:
    facts = [run("a"), run("b", design=SimpleNamespace(first=2))]
    files = [Path("a"), Path("b")]
    assert first_stages(facts, files, {1: 4}) == "not (file = 'b' and rollout >= 6)"
    assert first_stages(facts, [*files, Path("c")], {}) is None
    assert first_stages(facts[:1], files[:1], {}) is None


@pytest.mark.parametrize(
    ("content", "plain"),
    [
        ([{"type": "input_text", "text": "a"}], "a"), ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}] * 2, [{"type": "text", "text": "a"}] * 2), ([], []), (["a"], ["a"]), ("a", "a"),
        ([{"type": "input_image", "text": "a"}], [{"type": "input_image", "text": "a"}]),
        ([{"type": "text", "text": 1}], [{"type": "text", "text": 1}]),
    ],
)  # fmt: skip
def test_one_part_of_text_is_the_text(content: object, plain: object) -> None:
    assert _plain({"type": "message", "role": "user", "name": None, "content": content}) == {
        "role": "user",
        "content": plain,
    }


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:")


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("reward", True),
        ("reward desc, task", True),
        ("1 limit 1", False),
        ("reward) or (task", False),
        ("reward offset 2", False),
    ],
)
def test_an_order_is_a_list_of_terms(connection: duckdb.DuckDBPyConnection, text: str, is_one: bool) -> None:
    if is_one:
        check_order(connection, text, label="--sort", hint="h")
        return
    with pytest.raises(UsageError):
        check_order(connection, text, label="--sort", hint="h")


@pytest.mark.parametrize(
    ("text", "is_one"), [("a > 1 or b", True), ("a, b", False), ("a limit 1", False), ("a) or (b", False)]
)
def test_a_condition_is_one_expression(
    connection: duckdb.DuckDBPyConnection, text: str, is_one: bool
) -> None:
    if is_one:
        check_expression(connection, text, label="--where", hint="h")
        return
    with pytest.raises(UsageError):
        check_expression(connection, text, label="--where", hint="h")


@pytest.mark.parametrize(
    ("column", "spelling"),
    [
        ("usage.total", '"usage.total"'), ("r.usage.total", 'r."usage.total"'), ("r.total", '"r.total"'), ("total", None),
        ('"usage.total"', None), ("r.reward", None),
    ],
)  # fmt: skip
def test_a_column_with_a_dot_is_spelled_in_quotes(
    connection: duckdb.DuckDBPyConnection, column: str, spelling: str | None
) -> None:
    tree = parse(connection, f"SELECT {column} FROM rollouts r", label="--sql", hint="h")
    assert tables_by_alias(tree) == {"r": "rollouts"}
    assert len(column_paths(tree)) == 1
    assert _dotted(tree, {"r": "rollouts"}, ["usage.total", "r.total", "reward"]) == spelling
