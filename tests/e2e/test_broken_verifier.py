"""A verifier that breaks half-way stops the collection with exit code 5; the run stays whole, marked and resumable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rollforge.simulate import example_tasks

BREAKS = """
calls = 0

def verify(task, response):
    global calls
    calls += 1
    if calls > {after}:
        return 0.0
    return float(str(task["expected_answer"]) in response.text)

verify.reward_range = (0.0, 1.0)
"""


def start(
    folder: Path, *, after: int, tasks: int = 150, more: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    (folder / "verifier.py").write_text(BREAKS.format(after=after))
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in example_tasks(tasks, 0, "math"))
    )
    command = [
        sys.executable, "-m", "rollforge", "collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "-k", "4",
        "--verifier", "verifier.py:verify", "--verify-workers", "0", "-c", "16", "--json", *more,
    ]  # fmt: skip
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_a_verifier_that_breaks_half_way_stops_the_run_with_exit_5(tmp_path: Path) -> None:
    done = start(tmp_path, after=200)
    result = json.loads(done.stdout)
    assert done.returncode == 5, done.stderr
    assert result["ending"] == "broken" and "verification looks broken" in result["message"]
    assert 200 < result["finished"] < 600, "it stops soon after, and not at the end"
    rows = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    assert len(rows) == result["finished"], "what was judged after the break is marked, not dropped"
    manifest = json.loads((tmp_path / "run" / "rollouts_run.json").read_text())
    assert manifest["extra"]["reward_range"] == [0.0, 1.0], "what the verifier declares is kept for check"
    suspect = manifest["extra"]["suspect"]
    late = [
        row
        for row in map(json.loads, rows)
        if row["_rf"]["started"] + row["_rf"]["seconds"] >= suspect["first_at"]
    ]
    assert late and all(row["reward"] == 0.0 for row in late)
    assert "resume with" in done.stderr and result["owed"] > 0


def test_stop_on_never_goes_on_and_only_marks(tmp_path: Path) -> None:
    done = start(tmp_path, after=200, more=("--stop-on", "never"))
    result = json.loads(done.stdout)
    assert done.returncode == 0 and result["finished"] == 600
    assert result["suspect"] is not None and len(result["suspect"]["signals"]) >= 2
    checked = subprocess.run(
        [sys.executable, "-m", "rollforge", "check", "run", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    report = json.loads(checked.stdout)
    assert checked.returncode == report["exit_code"] == 5
    assert {"stuck-rewards", "missed-answers"} <= {
        item["id"] for item in report["findings"] if item["level"] == "error"
    }
    assert "suspect-window" in {item["id"] for item in report["findings"]}


def test_a_verifier_that_works_is_left_alone(tmp_path: Path) -> None:
    done = start(tmp_path, after=10**9)
    result = json.loads(done.stdout)
    assert done.returncode == 0 and result["finished"] == 600 and result["suspect"] is None
