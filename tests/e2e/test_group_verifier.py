"""A group verifier scores the samples of a task together, also from `collect`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rollforge.simulate import example_tasks

VERIFIER = """
def verify_group(task, responses):
    longest = max(len(response.text) for response in responses)
    return [len(response.text) / longest for response in responses]
"""


def test_collect_judges_groups_when_all_their_samples_are_there(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in example_tasks(6, 0, "math"))
    )
    (tmp_path / "group.py").write_text(VERIFIER)
    words = [
        "collect",
        "-i",
        "tasks.jsonl",
        "-o",
        "run",
        "-m",
        "simulated",
        "--verifier",
        "group.py:verify_group",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words, "-k", "3", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)["metrics"]
    assert metrics["counts"]["judged"] == 18
    assert metrics["at_k"]["best@3"]["value"] == 1.0, "the longest answer of every group got 1"
