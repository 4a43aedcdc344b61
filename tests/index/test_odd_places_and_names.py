"""The index stays true to the file: whatever it is called, wherever it lies, however it was changed or cut off."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tempfile
import zlib
from pathlib import Path

import pytest

from rollforge.index import open_index
from tests.builders import Row, make_rollout, write_rows


def test_a_change_that_keeps_size_or_time_still_rebuilds_the_index(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [make_rollout(task, 0, text="x" * 2000) for task in range(200)])
    assert _mean(path) == 1.0
    before = path.stat()
    data = path.read_bytes()
    middle = data.index(b'"reward": 1.0', len(data) // 2)
    path.write_bytes(data[:middle] + b'"reward": 0.0' + data[middle + 13 :])
    assert _mean(path) == pytest.approx(199 / 200)
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert _mean(path) == 1.0
    longer = (
        data[:middle]
        + b'"reward": 0.0'
        + data[middle + 13 :]
        + json.dumps(make_rollout(999, 0, 0.0)).encode()
    )
    (tmp_path / "new").write_bytes(longer + b"\n")
    (tmp_path / "new").replace(path)
    assert _mean(path) == pytest.approx(199 / 201)


def _mean(path: Path) -> float:
    with open_index(path) as index:
        return float(index.select("select avg(reward) as mean from rollouts").to_pylist()[0]["mean"])


def test_a_part_that_a_stopped_machine_left_empty_is_made_anew(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [make_rollout(0, 0)])
    assert len(open_index(path)) == 1
    for part in (tmp_path / "r_index").rglob("*.parquet"):
        part.write_bytes(b"")
    assert _mean(path) == 1.0


@pytest.mark.parametrize("folder", ["task=math/reward=7", "exp[1]", "it's", "a*b?"])
def test_the_name_of_a_folder_never_changes_a_number(tmp_path: Path, folder: str) -> None:
    rows = [make_rollout(0, 0, 1.0), make_rollout(0, 0, 0.0), make_rollout(1, 0, 1.0)]
    path = write_rows(tmp_path / folder / "rollouts.jsonl", rows)
    with open_index(path) as index:
        found = index.select("select task, rollout, reward from rollouts order by task").to_pylist()
    assert found == [{"task": 0, "rollout": 0, "reward": 0.0}, {"task": 1, "rollout": 0, "reward": 1.0}]


def test_a_copied_run_reads_its_own_decisions(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0), make_rollout(0, 0, 0.0)]
    path = write_rows(tmp_path / "one" / "rollouts.jsonl", rows)
    assert _mean(path) == 0.0
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=shutil.copy2)
    assert _mean(tmp_path / "two" / "rollouts.jsonl") == 0.0
    assert open_index(tmp_path / "two").duplicate_count == 1


def test_tasks_and_failures_are_read_beside_a_run_that_cannot_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "elsewhere"))
    path = write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0), make_rollout(1, 0)])
    write_rows(path.with_name("rollouts_tasks.jsonl"), [{"_ng_task_index": 0, "level": 3}])
    write_rows(path.with_name("rollouts_failures.jsonl"), [{"_ng_task_index": 0, "class": "timeout"}])
    path.with_name("rollouts_index").write_text("a file where the folder of the index would be")
    with open_index(path) as index:
        assert index.select("select level from tasks where task = 0").to_pylist() == [{"level": 3.0}]
        assert index.select("select class from failures").to_pylist() == [{"class": "timeout"}]


def test_fields_that_differ_only_in_capitals_stay_apart(tmp_path: Path) -> None:
    rows = [
        make_rollout(
            0, 0, Accuracy=1, accuracy=0, Reward=5, Task=7, Model="m", **{"": 3, "a\0b": 4, 'q"': 5}
        ),
        make_rollout(0, 1, accuracy=2),
    ]
    with open_index(write_rows(tmp_path / "r.jsonl", rows)) as index:
        names = [
            "accuracy",
            "fields.Accuracy",
            "fields.Reward",
            "fields.Task",
            "fields.Model",
            "fields.",
            "a␀b",
            'q"',
        ]
        for where in (None, "true"):  # without SQL, and with it
            first, second = index.table(["task", "reward", *names], where).to_pylist()
            assert first == dict(
                zip(["task", "reward", *names], [0, 1, 0, 1, 5, 7, "m", 3, 4, 5], strict=True)
            )
            assert (second["fields.Accuracy"], second["accuracy"]) == (None, 2)
        assert index.name_by_column["fields.Task"] == "Task"


def test_a_dot_inside_a_name_belongs_to_it(tmp_path: Path) -> None:
    for size, reward in (("7b", 1.0), ("14b", 0.0)):
        path = write_rows(tmp_path / f"qwen2.5-{size}.jsonl", [make_rollout(0, 0, reward)])
        write_rows(tmp_path / f"qwen2.5-{size}_materialized_inputs.jsonl", [_input(0, 0, gold=size)])
        with open_index(path) as index:
            assert index.table(["reward"]).column(0).to_pylist() == [reward]
            assert next(index.task_rows([0]))[1]["gold"] == size
            assert index.runs[0].reward_profiling.name == f"qwen2.5-{size}_reward_profiling.jsonl"


def _input(task: int, rollout: int, **fields: object) -> Row:
    params = {"input": [{"role": "user", "content": f"question {task}"}]}
    return {"responses_create_params": params, "_ng_task_index": task, "_ng_rollout_index": rollout, **fields}


def test_an_archive_that_is_cut_off_counts_as_far_as_it_goes(tmp_path: Path) -> None:
    text = b"".join(json.dumps(make_rollout(task, 0)).encode() + b"\n" for task in range(3000))
    packed = gzip.compress(text)
    path = tmp_path / "r.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    whole = zlib.decompressobj(31).decompress(path.read_bytes()).count(b"\n")
    with open_index(path) as index:
        assert len(index) == whole > 0
        assert index.rejected_lines == 1
        assert (index.rejects[0].line, index.rejects[0].reason[:4]) == (whole + 1, "torn")
    for name in ("r.jsonl.gz", "s.jsonl.zst"):
        (tmp_path / name).write_bytes(b"no archive at all")
        assert open_index(tmp_path / name).rejected_lines == 1


def test_a_glob_takes_rollouts_and_leaves_their_siblings(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0)])
    for name in (
        "_tasks.jsonl",
        "_agent_metrics.json",
        "_aggregate_metrics.json",
        "_run.json",
        ".rejects.jsonl",
    ):
        (tmp_path / f"rollouts{name}").write_text("{}\n")
    assert len(open_index(path)) == 1
    for pattern in ("*", "r*.json*", "**"):
        assert [files.rollouts for files in open_index(f"{tmp_path}/{pattern}").runs] == [path]


def test_one_number_in_two_files_is_one_task_where_no_prompt_says_otherwise(tmp_path: Path) -> None:
    for rollout in (0, 1):
        rows = [{"_ng_task_index": task, "_ng_rollout_index": rollout, "reward": 1.0} for task in (0, 1)]
        write_rows(tmp_path / f"{rollout}.jsonl", rows)
    found = open_index(f"{tmp_path}/*.jsonl").table(["task", "rollout"]).to_pylist()
    assert [(row["task"], row["rollout"]) for row in found] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_line_of_fifty_megabytes_counts_and_is_noted(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, 0),
        make_rollout(0, 1, text="y" * 50_000_000),
        b"z" * 50_000_000,
        make_rollout(0, 2),
    ]
    with open_index(write_rows(tmp_path / "r.jsonl", rows)) as index:
        assert index.table(["rollout"]).column(0).to_pylist() == [0, 1, 2]
        assert [(bad.line, bad.is_kept) for bad in index.rejects] == [(2, True), (3, False)]
        assert "50 MB" in index.rejects[0].reason


def test_a_key_that_is_no_whole_number_is_noted_and_merges_nothing(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0), make_rollout(0.5, 0, prompt="other"), make_rollout(1.0, 0)]  # type: ignore[arg-type]
    with open_index(write_rows(tmp_path / "r.jsonl", rows)) as index:
        assert index.table(["task"]).column(0).to_pylist() == [0, 2, 1] and not index.duplicates
        assert [(bad.line, bad.reason) for bad in index.rejects] == [
            (2, "_ng_task_index: expected a whole number, got 0.5")
        ]
