"""A verifier that raises on everything: the run stops early, every command says why, and resuming it changes nothing quietly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rollforge.simulate.tasks import example_tasks

RAISING = "def verify(task, response):\n    return float(task['no such field'])\n"
SOUND = "def verify(task, response):\n    return float(str(task['expected_answer']) in response.text)\n"


def rollforge(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollforge", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )


def prepared(folder: Path, tasks: int = 60) -> list[str]:
    rows = example_tasks(tasks, 0, "math")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.py").write_text(RAISING)
    return [
        *("collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "mine.py:verify"),
        *("-c", "4", "-k", "2", "--progress", "plain"),
    ]


def test_a_verifier_that_raises_on_everything_stops_the_run_and_is_quoted_everywhere(tmp_path: Path) -> None:
    words = prepared(tmp_path)
    first = rollforge(*words, folder=tmp_path)
    assert first.returncode == 5, first.stderr
    text = "KeyError: 'no such field' (mine.py:2 in verify)"
    assert text in first.stderr
    assert "the verifier failed on 20 of 20 rollouts" in first.stderr
    lines = (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()
    assert 20 <= len(lines) < 60
    for command in ("status", "profile", "check"):
        done = rollforge(command, "run", folder=tmp_path)
        assert text in " ".join((done.stdout + done.stderr).split()), command
    again = rollforge(*words, folder=tmp_path)
    assert again.returncode == 5


def test_resuming_a_stopped_run_is_not_done_while_nothing_has_changed(tmp_path: Path) -> None:
    words = prepared(tmp_path, tasks=12)
    assert rollforge(*words, folder=tmp_path).returncode == 5
    for _ in range(3):  # few are left: too few to trip again
        again = rollforge(*words, folder=tmp_path)
        assert again.returncode == 5, again.stderr
    assert "nothing has changed since" in again.stderr
    assert "suspect" in again.stderr


def test_a_mended_verifier_may_go_on_with_the_run_it_stopped(tmp_path: Path) -> None:
    words = prepared(tmp_path)
    assert rollforge(*words, folder=tmp_path).returncode == 5
    (tmp_path / "mine.py").write_text(SOUND)
    done = rollforge(*words, folder=tmp_path)
    assert done.returncode in (0, 3), done.stderr
    assert "the verifier has changed since the run stopped" in done.stderr
    assert (
        rollforge("verify", "run", "--verifier", "mine.py:verify", "--fresh", folder=tmp_path).returncode == 0
    )
