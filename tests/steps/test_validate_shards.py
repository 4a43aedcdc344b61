"""`validate` of a run of shards: the lines that count, as one run, each named by its own file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.cli import main
from rollforge.errors import UsageError
from rollforge.steps.merge import merge_run
from rollforge.steps.validate import ValidateOptions, validate_files
from tests.builders import make_rollout
from tests.sharded_runs import shard_rollouts, write_sharded_run

TASKS, SAMPLES, SHARDS = 4, 2, 3


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run whose tasks all have one prompt, so that only rows of one file may be compared."""

    def line(task: int, sample: int) -> bytes:
        return json.dumps(make_rollout(task, sample, prompt="the question of all tasks")).encode() + b"\n"

    return write_sharded_run(tmp_path / "run", line, tasks=TASKS, samples=SAMPLES, shards=SHARDS)


def test_shards_are_one_run_and_bytes_that_do_not_count_are_not_read(run: Path) -> None:
    with shard_rollouts(run, 1).open("a") as zombie:
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


def test_a_bad_line_is_named_by_its_shard_rollouts(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shard_rollouts(run, 2)
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
