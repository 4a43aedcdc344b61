"""What a verifier prints never reaches standard output, and a file if it was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.runtime.prints import Prints, prints_on_stderr
from rollforge.simulate.tasks import example_tasks

CALL = "print('to out'); print('to err', file=sys.stderr)"
VERIFIERS = {
    "async": (
        f"async def verify(task, response):\n    {CALL}\n    await asyncio.sleep(0)\n    {CALL}\n    return 1\n",
        (),
    ),
    "without workers": (
        f"def verify(task, response):\n    {CALL}\n    return 1\n",
        ("--verify-workers", "0"),
    ),
    "in workers": (f"def verify(task, response):\n    {CALL}\n    return 1\n", ("--verify-workers", "1")),
}


@pytest.mark.parametrize("kind", VERIFIERS)
@pytest.mark.parametrize("command", ["collect", "verify"])
def test_prints_of_a_verifier_stay_out_of_the_results(kind: str, command: str, tmp_path: Path) -> None:
    code, more = VERIFIERS[kind]
    (tmp_path / "mine.py").write_text(f"import asyncio, sys\nprint('loading')\n{code}")
    rows = example_tasks(3, 0, "math")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated"]
    judging = ["--verifier", "mine.py:verify", *more, "--json"]
    if command == "verify":
        run(tmp_path, *words, "--no-verify")
        words = ["verify", "run", "--fresh"]
    else:
        words.append("--fresh")
    done = run(tmp_path, *words, *judging)
    json.loads(done.stdout)
    assert ("to out" in done.stderr) == (kind == "without workers")
    done = run(tmp_path, *words, *judging, "--verifier-output", "prints.txt")
    json.loads(done.stdout)
    assert "to out" not in done.stderr and "to err" not in done.stderr
    prints = (tmp_path / "prints.txt").read_text()
    count = 6 if kind == "async" else 3
    assert (prints.count("to out\n"), prints.count("to err\n")) == (count, count)


def test_a_file_that_cannot_be_written_is_refused_for_every_verifier(tmp_path: Path) -> None:
    (row,) = example_tasks(1, 0, "math")
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    words = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "exact"]
    done = run(tmp_path, *words, "--verifier-output", "no/such/folder.txt", code=2)
    assert "--verifier-output" in done.stderr


def test_prints_of_tools_and_of_own_checks_go_to_stderr(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
def add(a: int, b: int) -> int:
    'Add two numbers.'
    print('a tool prints')
    return a + b

def look(run):
    print('a check prints')
    return []
"""
    )
    rows = [row | {"prompt": f"Use add. {row.get('prompt', '')}"} for row in example_tasks(4, 0, "tools")]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "collect",
        "-i",
        "tasks.jsonl",
        "-o",
        "run",
        "-m",
        "simulated",
        "--no-verify",
        "--tools",
        "mine.py",
    ]
    json.loads(run(tmp_path, *words, "--json").stdout)
    done = run(tmp_path, "check", "run", "--check", "mine.py:look", "--json", code=3)
    json.loads(done.stdout)
    assert "a check prints" in done.stderr


def run(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done


def test_streams_are_released_with_the_last_that_uses_them(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    first, second = Prints(None, is_shown=True), Prints(None, is_shown=True)
    with first.caught(), second.caught():
        print("seen")
    second.close()
    with first.caught(), prints_on_stderr():
        print("seen too")
    assert (sys.stdout, sys.stderr) != before, "the first still catches what its tasks print"
    first.close()
    assert (sys.stdout, sys.stderr) == before
    with prints_on_stderr():
        print("at last")
    assert (sys.stdout, sys.stderr) == before
    assert tuple(capsys.readouterr()) == ("", "seen\nseen too\nat last\n")
