"""Every number over an adaptive run stands on its first stage and says so, in whatever place it is printed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rollforge.assembly.reports import run_inputs
from rollforge.index import open_index
from rollforge.steps.check import check_run
from rollforge.steps.metrics import nemo_gym_metrics, summarize_run, trinity_metrics
from rollforge.steps.profile import profile_run
from rollforge.steps.verify.flips import compare


def run_cli(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollforge", *words], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two adaptive runs of different tasks, and a uniform one."""
    folder = tmp_path_factory.mktemp("adaptive")
    run_cli("simulate", "--write-tasks", str(folder / "a.jsonl"), "-n", "60")
    run_cli("simulate", "--write-tasks", str(folder / "b.jsonl"), "-n", "40", "--seed", "7")
    common = ["-m", "simulated", "--verifier", "exact", "-k", "8", "--progress", "none"]
    for name, tasks, goal in (
        ("one", "a", ["--goal", "grpo=12"]),
        ("two", "b", ["--goal", "dpo=12"]),
        ("plain", "a", []),
    ):
        done = run_cli(
            "collect", "-i", str(folder / f"{tasks}.jsonl"), "-o", str(folder / name), *common, *goal
        )
        assert done.returncode in (0, 3), done.stderr
    return folder


def rewards(run: Path, below: int = 1000) -> list[float]:
    rows = [json.loads(line) for line in (run / "rollouts.jsonl").open()]
    return [row["reward"] for row in rows if row["_ng_rollout_index"] < below]


def test_compat_numbers_are_over_the_first_stage(runs: Path) -> None:
    first, every = np.mean(rewards(runs / "one", 2)), np.mean(rewards(runs / "one"))
    assert first != pytest.approx(every), "else this test shows nothing"
    with open_index(runs / "one") as index:
        (agent,) = nemo_gym_metrics(index)
        trinity = trinity_metrics(index)
    assert agent["agent_metrics"]["mean/reward"] == pytest.approx(first)
    assert "pass@4" not in agent["agent_metrics"], "no number beyond the first stage"
    assert trinity["rollout/reward/mean"] == pytest.approx(first)
    done = run_cli("metrics", str(runs / "one"), "--compat", "nemo-gym")
    assert done.returncode == 0 and "sampled adaptively" in done.stderr


def test_pooled_runs_count_the_first_stage_of_each_adaptive_one_and_all_of_a_uniform_one(runs: Path) -> None:
    both = [runs / "one", runs / "two"]
    pooled = summarize_run(both)
    expected = rewards(runs / "one", 2) + rewards(runs / "two", 2)
    assert pooled.fields["reward"].mean == pytest.approx(np.mean(expected))
    assert pooled.adaptive is not None and pooled.adaptive.runs == 2 and "at_k" in pooled.adaptive.left_out
    assert [flag.id for flag in pooled.flags if flag.id.startswith("adaptive")] == ["adaptive-run"]
    mixed = summarize_run([runs / "one", runs / "plain"])
    expected = rewards(runs / "one", 2) + rewards(runs / "plain")
    assert mixed.fields["reward"].mean == pytest.approx(np.mean(expected)), (
        "numbers of the second run are shifted"
    )
    assert "sampled adaptively" in (profile_run(both).summary.adaptive or "")


def test_a_check_of_an_open_index_looks_at_the_first_stage_too(runs: Path) -> None:
    from_path = check_run(runs / "one", recipe="grpo")
    with open_index(runs / "one") as index:
        from_index = check_run(index, recipe="grpo")
    assert [finding.id for finding in from_index.findings] == [finding.id for finding in from_path.findings]
    assert "adaptive-run" in {finding.id for finding in check_run([runs / "one", runs / "two"]).findings}


def test_all_stages_are_shown_on_request_and_called_biased(runs: Path) -> None:
    done = run_cli("metrics", str(runs / "one"), str(runs / "two"), "--stage", "all")
    assert done.returncode == 0 and "biased" in done.stdout + done.stderr


def test_check_report_and_verify_give_the_mean_of_the_first_stage_and_say_so(
    runs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "one"
    shutil.copytree(runs / "one", run)
    first, every = np.mean(rewards(run, 2)), np.mean(rewards(run))
    assert round(first, 3) != round(every, 3), "else this test shows nothing"
    counts = check_run(run).counts
    assert counts.reward is not None and counts.reward.is_first_stage
    assert counts.reward.mean == pytest.approx(first)
    assert f"mean reward {first:.3f} in the first stage" in run_cli("check", str(run)).stdout
    verified = run_cli("verify", str(run), "--verifier", "math")
    line = next(line for line in verified.stdout.splitlines() if line.strip().startswith("reward"))
    assert f"{first:.3f}" in line and "first stage of an adaptive run" in line
    for words in ([], ["--workers", "2"]):
        again = json.loads(
            run_cli("verify", str(run), "--verifier", "regex", "-S", "pattern=boxed", "--json", *words).stdout
        )
        assert again["reward"]["first_stage"] == 2 and again["reward"]["n"] == len(rewards(run, 2))
    flips = compare(run, "math", "recorded")
    assert flips.mean_b.mean == pytest.approx(first) and flips.mean_b.first_stage == 2
    findings = {finding.id: finding for finding in check_run(run).findings}
    with open_index(run) as index:
        shown = {finding.id: finding for finding in run_inputs(index).check.findings}
    assert shown["reward-bins"].n == findings["reward-bins"].n == len(rewards(run, 2))


def test_a_dataset_of_an_adaptive_run_says_what_its_statistics_are_over(runs: Path, tmp_path: Path) -> None:
    for name, expected in (("one", True), ("plain", False)):
        done = run_cli("prepare", "grpo", str(runs / name), "-o", str(tmp_path / name), "--to", "trl")
        assert done.returncode == 0, done.stderr
        card = (tmp_path / name / "README.md").read_text()
        assert ("sampled adaptively" in card) is expected
