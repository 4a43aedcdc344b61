"""Files for NeMo Gym's own commands: one input per rollout, statistics per repeat."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.cli import main, run
from rollforge.errors import UsageError
from tests.steps.test_verify_join import rollout, task, write

WORDS = ("--verifier", "exact", "-k", "2")


def test_profile_writes_the_files_that_nemo_gym_reads(tmp_path: Path) -> None:
    rewards = {(0, 0): 1.0, (0, 1): 0.0, (1, 0): 0.5, (1, 1): None}
    rows = [
        rollout(f"q{t}", "x", _ng_task_index=t, _ng_rollout_index=r, agent_ref={"name": "a"}, reward=reward)
        for (t, r), reward in rewards.items()
    ]
    run = write(tmp_path / "rollouts.jsonl", rows)
    write(tmp_path / "rollouts_tasks.jsonl", [task(f"q{t}", "x", _ng_task_index=t) for t in range(2)])
    with pytest.raises(SystemExit) as ended:
        main(["profile", str(run), "--gym-files", "--json"])
    assert not ended.value.code
    inputs = [
        json.loads(line)
        for line in (tmp_path / "rollouts_materialized_inputs.jsonl").read_text().splitlines()
    ]
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in inputs] == list(rewards)
    assert all(row["expected_answer"] == "x" and row["agent_ref"] == {"name": "a"} for row in inputs)
    assert all("response" not in row and "reward" not in row for row in inputs)
    first, second = json.loads((tmp_path / "rollouts_repeat_level_metrics.json").read_text())
    assert (first["mean/reward"], first["sample_count"], first["missing_count"]) == (0.75, 2, 0)
    assert first["sem/reward"] == pytest.approx(0.25) and first["ci_low_95/reward"] == pytest.approx(
        0.75 - 12.7062 * 0.25, abs=1e-3
    )
    assert (second["mean/reward"], second["std/reward"]) == (0.0, 0.0), "an unjudged rollout is no zero"


@pytest.mark.parametrize("scale", [[], ["--workers", "2"]])
def test_collect_writes_them_when_asked(
    scale: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["simulate", "--write-tasks", "tasks.jsonl", "-n", "3"])
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "collect",
                "-i",
                "tasks.jsonl",
                "-o",
                "run",
                "-m",
                "simulated",
                *WORDS,
                "--progress",
                "none",
                "--gym-files",
                *scale,
            ]
        )
    assert not ended.value.code
    inputs = [
        json.loads(line) for line in Path("run/rollouts_materialized_inputs.jsonl").read_text().splitlines()
    ]
    keys = {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in inputs}
    assert keys == {(task, sample) for task in range(3) for sample in range(2)}
    assert len(json.loads(Path("run/rollouts_repeat_level_metrics.json").read_text())) == 2


def test_a_shard_alone_cannot_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(["simulate", "--write-tasks", "tasks.jsonl", "-n", "3"])
    words = "collect -i tasks.jsonl -o run -m simulated --shard 0/2 --gym-files"
    with pytest.raises(UsageError, match="--gym-files needs the whole run") as raised:
        run(words.split())
    assert "rollforge profile run --gym-files" in str(raised.value.hint)
    assert not Path("run").exists()
