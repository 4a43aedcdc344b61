"""Several files as one run: each brings its own tasks and failures, and a number means one task in all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.index import open_index
from rollforge.steps.profile import profile_index, write_profile
from rollforge.steps.show import ShowOptions, show_rollouts
from tests.builders import Row, make_rollout, write_rows


def _task(task: int, prompt: str, **fields: object) -> Row:
    params = {"input": [{"role": "user", "content": prompt}]}
    return {"responses_create_params": params, "_ng_task_index": task, **fields}


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """Task 0 is another question in each file, task 1 the same one, task 2 was asked in the second and never answered."""
    for name, letter in (("one", "a"), ("two", "b")):
        rows = [make_rollout(0, 0, prompt=letter), make_rollout(1, int(name == "two"), prompt="same")]
        write_rows(tmp_path / name / "rollouts.jsonl", rows)
    write_rows(
        tmp_path / "one" / "rollouts_tasks.jsonl", [_task(0, "a", gold="A"), _task(1, "same", gold="S")]
    )
    sent = [_task(0, "b", gold="B"), _task(1, "same", gold="S"), _task(2, "c", gold="C", level=3)]
    write_rows(tmp_path / "two" / "rollouts_tasks.jsonl", sent)
    failed = [{"_ng_task_index": task, "_ng_rollout_index": 0, "class": "timeout"} for task in (0, 2)]
    write_rows(tmp_path / "two" / "rollouts_failures.jsonl", failed)
    return [tmp_path / "one", tmp_path / "two"]


def test_each_file_brings_the_fields_of_its_own_tasks(shards: list[Path]) -> None:
    with open_index(shards) as index:
        found = index.select("select task, gold, level from tasks order by task").to_pylist()
        assert [(row["task"], row["gold"], row["level"]) for row in found] == [
            (0, "A", None), (1, "S", None), (2, "C", 3), (3, "B", None),
        ]  # fmt: skip
        assert {task: row["gold"] for task, row in index.task_rows([0, 1, 2, 3])} == {
            0: "A",
            1: "S",
            2: "C",
            3: "B",
        }
        joined = index.select(
            "select r.task, t.gold from rollouts r join tasks t using (task) order by r.row"
        ).to_pylist()
        assert [row["gold"] for row in joined] == ["A", "S", "B", "S"]
        assert [shown.task_fields["gold"] for shown in show_rollouts(index, ShowOptions(tasks=[3]))] == ["B"]


def test_failures_have_the_numbers_of_the_whole_run(shards: list[Path]) -> None:
    with open_index(shards) as index:
        found = index.select("select task from failures order by row").to_pylist()
        assert [row["task"] for row in found] == [3, 2]
        assert index.failed() == {"timeout": 1}  # the other one finished later


def test_a_rollout_that_failed_in_one_file_and_finished_in_another_has_not_failed(tmp_path: Path) -> None:
    write_rows(tmp_path / "one" / "rollouts.jsonl", [make_rollout(0, 0), make_rollout(1, 0)])
    failed = [{"_ng_task_index": task, "_ng_rollout_index": 1, "class": "timeout"} for task in (0, 1)]
    write_rows(tmp_path / "one" / "rollouts_failures.jsonl", failed)
    write_rows(tmp_path / "again" / "rollouts.jsonl", [make_rollout(0, 1)])
    with open_index([tmp_path / "one", tmp_path / "again"]) as index:
        assert index.failed() == {"timeout": 1}


def test_the_profile_of_several_files_has_every_sample_and_the_tasks_without_rollouts(
    shards: list[Path], tmp_path: Path
) -> None:
    with open_index(shards) as index:
        files = write_profile(profile_index(index), index, out=tmp_path)
    rows = [json.loads(line) for line in Path(files["tasks"]).read_text().splitlines()]
    assert [(row["_ng_task_index"], row["sample"]["gold"], row["num_rollouts"]) for row in rows] == [
        (0, "A", 1), (1, "S", 2), (2, "C", 0), (3, "B", 1),
    ]  # fmt: skip


def test_a_file_without_tasks_gives_what_its_rollouts_say(shards: list[Path]) -> None:
    (shards[0] / "rollouts_tasks.jsonl").unlink()
    with open_index(shards) as index:
        found = index.select(
            "select task, gold, prompt_hash is null as is_blank from tasks order by task"
        ).to_pylist()
    assert [(row["task"], row["gold"], row["is_blank"]) for row in found] == [
        (0, None, False), (1, "S", False), (2, "C", False), (3, "B", False),
    ]  # fmt: skip


def test_rows_without_numbers_take_no_fields_by_chance(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_rows(tmp_path / f"{name}.jsonl", [make_rollout(None, None, prompt=name)])
        write_rows(tmp_path / f"{name}_tasks.jsonl", [_task(0, "other", gold="X")])
    with open_index(f"{tmp_path}/*.jsonl") as index:
        assert list(index.task_rows([0, 1])) == [] and len(index.select("select * from tasks")) == 2


def test_nemo_gym_inputs_of_several_files_say_how_many_rollouts_were_wanted(tmp_path: Path) -> None:
    for name in ("one", "two"):
        rollout = int(name == "two")
        write_rows(tmp_path / f"{name}.jsonl", [make_rollout(0, rollout, prompt="p")])
        sent = [_task(0, "p", _ng_rollout_index=n, agent_ref={"name": "x"}) for n in (rollout, rollout + 2)]
        write_rows(tmp_path / f"{name}_materialized_inputs.jsonl", sent)
    with open_index(f"{tmp_path}/*.jsonl") as index:
        table = profile_index(index).tasks
    assert table.column("expected_num_rollouts").to_pylist() == [4]
    assert table.column("missing_num_rollouts").to_pylist() == [2]


def _collected(folder: Path, created: float, rows: list[Row], **more: object) -> Path:
    """A run as rollforge leaves it, with two samples asked for of each of two tasks."""
    write_rows(folder / "rollouts.jsonl", rows)
    manifest = {"rollforge": "0", "created": created, "samples": 2, "expected": 4, "input": {"digest": "d"}}
    (folder / "rollouts_run.json").write_text(json.dumps(manifest | more))
    return folder


def _rollouts(*keys: tuple[int, int]) -> list[Row]:
    return [make_rollout(task, rollout, prompt=f"question {task}") for task, rollout in keys]


def test_two_runs_over_the_same_tasks_are_different_rollouts(tmp_path: Path) -> None:
    keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
    runs = [_collected(tmp_path / name, number, _rollouts(*keys)) for number, name in enumerate("ab", 1)]
    failed = {"_ng_task_index": 0, "_ng_rollout_index": 0, "class": "timeout"}
    third = _collected(tmp_path / "c", 3, _rollouts((0, 1), (1, 0), (1, 1)))
    write_rows(third / "rollouts_failures.jsonl", [failed])
    with open_index([*runs, third]) as index:
        found = index.select("select task, rollout from rollouts order by row").to_pylist()
        assert [(row["task"], row["rollout"]) for row in found] == [
            (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (0, 5), (1, 4), (1, 5),
        ]  # fmt: skip
        assert index.duplicate_count == 0 and (index.expected, index.samples) == (12, 6)
        assert index.failed() == {"timeout": 1}
        assert profile_index(index).tasks.column("missing_num_rollouts").to_pylist() == [1, 0]


def test_a_repeated_row_of_one_run_stays_a_duplicate_beside_another_run(tmp_path: Path) -> None:
    one = _collected(tmp_path / "a", 1.0, _rollouts((0, 0), (0, 1), (0, 1)))
    two = _collected(tmp_path / "b", 2.0, _rollouts((0, 0), (0, 0), (0, 1)))
    with open_index([one, two]) as index:
        assert index.duplicate_count == 2 and len(index) == 4


def test_a_copy_of_a_run_and_its_bare_file_are_no_other_runs(tmp_path: Path) -> None:
    rows = _rollouts((0, 0), (0, 1), (1, 0), (1, 1))
    one, copy = _collected(tmp_path / "a", 1.0, rows), _collected(tmp_path / "b", 1.0, rows)
    with open_index([one, copy]) as index:
        assert index.duplicate_count == 4 and (index.expected, index.samples) == (4, 2)
    bare = write_rows(tmp_path / "bare.jsonl", rows)
    with open_index([one, bare]) as index:
        assert index.duplicate_count == 4 and (index.expected, index.samples) == (None, None)


def test_runs_that_share_no_rollout_keep_their_numbers(tmp_path: Path) -> None:
    one = _collected(tmp_path / "a", 1.0, _rollouts((0, 0), (1, 0)))
    other_samples = _collected(tmp_path / "b", 2.0, _rollouts((0, 1), (1, 1)))
    other_tasks = _collected(tmp_path / "c", 3.0, _rollouts((2, 0), (3, 0)))
    with open_index([one, other_samples, other_tasks]) as index:
        found = index.table(["task", "rollout"]).to_pylist()
        assert [(row["task"], row["rollout"]) for row in found] == [
            (0, 0),
            (1, 0),
            (0, 1),
            (1, 1),
            (2, 0),
            (3, 0),
        ]
