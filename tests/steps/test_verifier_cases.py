"""`rollforge test-verifier`: cases beside a verifier, as a whole command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def rollforge(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollforge", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_what_init_writes_passes_its_own_cases(tmp_path: Path) -> None:
    assert rollforge(tmp_path, "init", "verifier", "mine").returncode == 0
    done = rollforge(tmp_path, "test-verifier", "mine.py:verify", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"]
    assert report["missing"] == []
    assert {result["kind"] for result in report["results"]} == {
        "full_reward",
        "zero_reward",
        "malformed",
        "determinism",
    }


@pytest.mark.parametrize(
    ("source", "failing", "words"),
    [
        ("return 1.0", ["zero"], "expected reward 0, got 1.0"),
        ("return 0.0", ["full", "same"], "expected reward 1, got 0.0"),
        ("import random\n    return random.random()", ["full", "zero", "same"], "the same call gave"),
        ("raise OSError('down')", ["full", "zero", "same"], "it failed: OSError: down"),
    ],
)
def test_a_verifier_that_breaks_a_case_is_broken(
    tmp_path: Path, source: str, failing: list[str], words: str
) -> None:
    (tmp_path / "mine.py").write_text(f"def verify(task, response):\n    task['gold']\n    {source}\n")
    cases = [
        {"name": "full", "kind": "full_reward", "task": {"gold": 1}, "answer": "1"},
        {"name": "zero", "kind": "zero_reward", "task": {"gold": 1}, "answer": "2"},
        {"name": "bad", "kind": "malformed", "task": {}, "answer": "1", "expected_error": "KeyError"},
        {"name": "same", "kind": "determinism", "task": {"gold": 1}, "answer": "1", "expected_reward": 1.0},
    ]
    (tmp_path / "mine_cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    done = rollforge(tmp_path, "test-verifier", "mine.py:verify")
    assert done.returncode == 5
    assert words in done.stdout
    marked = [line.split()[2].rstrip(":") for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert marked == failing


@pytest.mark.parametrize(
    "line",
    ["{", '{"name": "x"}', '{"name": "x", "kind": "odd"}', '{"name": "x", "kind": "malformed", "y": 1}'],
)
def test_a_bad_case_is_named_with_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "mine.py").write_text("def verify(task, response):\n    return 1\n")
    (tmp_path / "mine_cases.jsonl").write_text("\n" + line + "\n")
    done = rollforge(tmp_path, "test-verifier", "mine.py")
    assert done.returncode == 2
    assert "mine_cases.jsonl:2:" in done.stderr


def test_nemo_gyms_spelling_of_a_case_works_for_a_verifier_by_name(tmp_path: Path) -> None:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "7"}]}
    request = {"expected_answer": "7", "response": {"output": [message]}}
    (tmp_path / "c.jsonl").write_text(
        json.dumps({"name": "x", "kind": "full_reward", "request": request}) + "\n"
    )
    assert rollforge(tmp_path, "test-verifier", "exact", "--cases", "c.jsonl").returncode == 0
    assert rollforge(tmp_path, "test-verifier", "exact").returncode == 2
