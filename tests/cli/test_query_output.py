"""What `rollforge query` prints and writes: every value, every column, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rollforge.cli.render import query as query_output
from tests.builders import make_rollout, write_rows
from tests.cli.test_reading_commands import Called

BOTH = "select * from rollouts r join tasks t on r.task = t.task"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(t, 0, float(t)) for t in range(3)])
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("timestamp 'infinity'", "infinity"), ("timestamptz '-infinity'", "-infinity"), ("'290000-01-01'::date", "290000-01-01"),
        ("'2024-01-01 00:00:00.123456789'::timestamp_ns", "2024-01-01 00:00:00.123456789"), ("date 'infinity'", "infinity"),
    ],
)  # fmt: skip
def test_a_value_that_python_cannot_hold_is_printed_as_text(
    run: Path, capsys: pytest.CaptureFixture[str], value: str, text: str
) -> None:
    sql = f"select {value} as v union all select null order by v"
    assert text in Called(capsys, "query", run, sql).out
    assert Called(capsys, "query", run, sql, "--json").json["rows"] == [[text], [None]]
    assert text in Called(capsys, "query", run, f"{sql} limit 1", "-f", "csv").out
    assert Called(capsys, "query", run, f"select [{value}] as v", "-f", "csv").code == 0


def test_a_date_beside_one_that_python_cannot_hold_stays_as_it_was(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "select unnest([timestamp '2024-05-06 07:08:09', timestamp 'infinity']) as t"
    assert Called(capsys, "query", run, sql, "--json").json["rows"] == [["2024-05-06T07:08:09"], ["infinity"]]


@pytest.mark.parametrize("format", ["table", "csv", "json"])
def test_values_of_every_type_are_printed(run: Path, capsys: pytest.CaptureFixture[str], format: str) -> None:
    found = Called(capsys, "query", run, "select * from test_all_types()", "-f", format)
    assert found.code == 0 and found.out and not found.err


def test_a_result_for_a_place_that_cannot_be_is_told_without_a_traceback(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere/x.csv", tmp_path / "file" / "x.csv", tmp_path):
        output = Called(capsys, "query", run, "select 1", "-f", "csv", "-o", place)
        assert (
            output.code == 2
            and "error: " in output.err
            and "--out" in output.err
            and "Traceback" not in output.err
        )


def test_columns_that_share_a_name_are_kept_apart_in_every_file(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = Called(capsys, "query", run, BOTH, "-o", tmp_path / "x.parquet")
    assert output.code == 0 and "a second column 'task' is written as 'task_1'" in output.err
    names = pq.read_table(tmp_path / "x.parquet").column_names
    assert "task_1" in names and len(set(names)) == len(names)
    found = Called(capsys, "query", run, BOTH, "--json")
    assert found.json["columns"] == names
    header = Called(capsys, "query", run, BOTH, "-f", "csv").out.splitlines()[0]
    assert [name.strip('"') for name in header.split(",")] == names


def test_a_new_name_never_takes_one_that_is_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select 1 as a, 2 as a, 3 as a_1, 4 as a"
    printed = Called(capsys, "query", run, sql, "--json")
    assert json.loads(printed.out) == {"columns": ["a", "a_2", "a_1", "a_3"], "rows": [[1, 2, 3, 4]]}


def test_a_row_wider_than_the_terminal_is_shown_value_by_value(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = "select * from rollouts order by task"
    in_a_pipe = Called(capsys, "query", run, sql).out.splitlines()
    assert len(in_a_pipe) == 4
    assert "rollouts.jsonl" in in_a_pipe[1]
    monkeypatch.setattr(query_output, "terminal_width", lambda: 80)
    on_a_terminal = Called(capsys, "query", run, sql).out.splitlines()
    assert [line for line in on_a_terminal if line.startswith("row")] == ["row 1", "row 2", "row 3"]
    assert [line.split()[1] for line in on_a_terminal if line.split()[0] == "task"] == ["0", "1", "2"]
    narrow = Called(capsys, "query", run, "select task, reward from rollouts order by task").out
    assert narrow.splitlines() == ["task  reward", "   0       0", "   1       1", "   2       2"]


def test_a_result_that_cannot_be_written_leaves_the_file_that_was_there(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.parquet"
    assert Called(capsys, "query", run, "select task from rollouts", "-o", kept).code == 0
    refused = Called(capsys, "query", run, "select interval 3 day as i", "-o", kept)
    assert refused.code == 2 and "cast that column" in refused.err
    assert pq.read_table(kept).num_rows == 3


def test_a_huge_number_takes_as_little_room_as_any_other(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Called(capsys, "query", run, "select 1e308 as a, -123456789e12 as b, 123456789012345 as c").out
    assert shown.split()[-3:] == ["1.000e+308", "-1.235e+20", "123456789012345"]


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("select 1794951424.25 :: double as started", "2026-11-17 21:37:04 UTC"),
        ("select min(started) from (select 1794951424.25 :: double as started)", "2026-11-17 21:37:04 UTC"),
        ("select 12.5 :: double as started", "12.5"),
        ("select 1794951424.0 :: double as chars", "1,794,951,424"),
    ],
)
def test_moments_are_dates_for_people_and_seconds_for_programs(
    run: Path, capsys: pytest.CaptureFixture[str], sql: str, text: str
) -> None:
    assert text in Called(capsys, "query", run, sql).out
    ((value,),) = Called(capsys, "query", run, sql, "--json").json["rows"]
    assert isinstance(value, float)
