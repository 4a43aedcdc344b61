"""`validate` of a run of shards: the lines that count, as one run, each named by its own file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.cli import main
from rollforge.errors import UsageError
from rollforge.steps.merge import merge_run
from rollforge.steps.validate import ValidateOptions, validate_files
from rollforge.store.shard_plan import ShardPlan, create_plan, even_ranges
from rollforge.store.shard_storage import DiskStorage
from rollforge.store.shards import take
from tests.builders import make_rollout

TASKS, SAMPLES, SHARDS = 4, 2, 3


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run whose tasks all have one prompt, so that only rows of one file may be compared."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rollouts_tasks.jsonl").write_text(
        "".join(f'{{"_ng_task_index":{task}}}\n' for task in range(TASKS))
    )
    (folder / "rollouts_run.json").write_text(json.dumps({"rollforge": "0"}))
    storage = DiskStorage(folder / "shards")
    plan = ShardPlan(
        run="r", created=1.0, fingerprint={}, tasks=TASKS, samples=SAMPLES, tasks_bytes=0, tasks_sha256="",
        ranges=even_ranges(TASKS, SHARDS),
    )  # fmt: skip
    create_plan(storage, plan)
    for shard, within in enumerate(plan.ranges):
        lease = take(storage, plan, shard)
        assert lease is not None
        rows = [
            make_rollout(task, sample, prompt="the question of all tasks")
            for task in range(within.first, within.end)
            for sample in range(SAMPLES)
        ]
        path = part(folder, shard)
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        lease.end("complete", finished=len(rows))
    return folder


def part(run: Path, shard: int) -> Path:
    return run / "shards" / f"{shard:05d}" / "e1" / "rollouts.jsonl"


def test_shards_are_one_run_and_bytes_that_do_not_count_are_not_read(run: Path) -> None:
    with part(run, 1).open("a") as zombie:
        zombie.write("written after the shard was taken over\n")
    report = validate_files([run])
    assert report.ok
    assert [(one.path, one.kind, one.rows) for one in report.files] == [
        (str(run), "rollouts", TASKS * SAMPLES)
    ]


def test_a_merged_file_that_is_older_than_the_shards_is_not_taken_for_the_run(run: Path) -> None:
    merge_run(run)
    merged = run / "rollouts.jsonl"
    merged.write_bytes(merged.read_bytes().splitlines(keepends=True)[0])
    assert validate_files([run]).files[0].rows == TASKS * SAMPLES
    assert validate_files([merged]).files[0].rows == 1


def test_a_bad_line_is_named_by_its_part(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = part(run, 2)
    first, second, *others = path.read_bytes().splitlines(keepends=True)
    bad = b"[" * (len(second) - 1) + b"\n"
    path.write_bytes(first + bad + b"".join(others))
    (fault,) = validate_files([run]).files[0].bad
    assert (fault.file, fault.line) == (str(path), 2)
    with pytest.raises(SystemExit, match="2"):
        main(["validate", str(run)])
    assert f"{path}:2" in capsys.readouterr().out.replace("\n", "")


def test_fix_needs_one_file(run: Path) -> None:
    with pytest.raises(UsageError, match="is a run of shards") as caught:
        validate_files([run], ValidateOptions(fix=True))
    assert f"rollforge merge {run}" in str(caught.value.hint)
