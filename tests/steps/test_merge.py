"""`merge` of small runs of shards, with parts that are held in memory and parts that are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.errors import DataError, Exit
from rollforge.steps import merge
from rollforge.steps.metrics import summarize_run
from tests.sharded_runs import shard_rollouts, write_sharded_run

TASKS, SAMPLES, SHARDS = 12, 3, 2


@pytest.fixture(params=["held", "read twice"], autouse=True)
def _memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "read twice":
        monkeypatch.setattr(merge, "HELD_BYTES", 0)
        monkeypatch.setattr(merge, "BLOCK", 256)


def line(task: int, sample: int, *, size: int = 100) -> bytes:
    row = {"_ng_task_index": task, "_ng_rollout_index": sample, "text": "x" * size}
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


def made_run(run: Path, *, size: int = 100) -> Path:
    """A finished run, its rows in the order of samples."""
    return write_sharded_run(
        run, lambda task, sample: line(task, sample, size=size), tasks=TASKS, samples=SAMPLES, shards=SHARDS
    )


@pytest.mark.parametrize("size", [100, 2_000])
def test_the_merged_file_has_every_row_in_the_order_of_keys(tmp_path: Path, size: int) -> None:
    run = made_run(tmp_path / "run", size=size)
    assert merge.merge_run(run).exit_code == Exit.DONE
    expected = [line(task, sample, size=size) for task in range(TASKS) for sample in range(SAMPLES)]
    assert (run / "rollouts.jsonl").read_bytes() == b"".join(expected)


@pytest.mark.timeout(30)
def test_a_part_that_was_copied_incompletely_leaves_gaps(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    path = shard_rollouts(run, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2 + 10])
    result = merge.merge_run(run)
    assert (result.missing, result.exit_code) == (TASKS * SAMPLES // 4, Exit.INCOMPLETE)
    assert result.written == TASKS * SAMPLES - result.missing
    assert result.short_parts == [str(path)]


def test_a_part_that_is_missing_is_named_with_its_shard(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    shard_rollouts(run, 1).unlink()
    for read in (merge.merge_run, summarize_run):
        with pytest.raises(DataError, match=r"e1/rollouts\.jsonl is missing") as caught:
            read(run)
        assert f"remove {run / 'shards' / '00001'} and collect shard 1 again" in str(caught.value.hint)
    assert not (run / "rollouts.jsonl").exists()


def test_rows_of_other_programs_are_ordered_too_and_what_is_no_row_is_counted(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run")
    path = shard_rollouts(run, 0)
    rows = [json.loads(row) for row in path.read_bytes().splitlines()]
    text = b"".join(json.dumps(row, sort_keys=True).encode() + b"\n" for row in rows) + b"no row\n\n"
    path.write_bytes(text)
    end = path.parent.parent / "e1.end"
    record = json.loads(end.read_bytes())
    record["files"]["rollouts"]["length"] = len(text)
    end.write_text(json.dumps(record))
    result = merge.merge_run(run)
    keys = [
        (row["_ng_task_index"], row["_ng_rollout_index"])
        for row in map(json.loads, (run / "rollouts.jsonl").read_bytes().splitlines())
    ]
    assert keys == [(task, sample) for task in range(TASKS) for sample in range(SAMPLES)]
    assert (result.unreadable_lines, result.doubled, result.missing) == (1, 0, 0)
