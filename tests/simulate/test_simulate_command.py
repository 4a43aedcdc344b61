"""`rollforge simulate` as people type it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

from rollforge.records import from_json, to_json
from rollforge.simulate import example_tasks

COMMAND = [sys.executable, "-c", "from rollforge.cli import main; main()", "simulate"]


def run(*words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *words], capture_output=True, timeout=60, env={**os.environ, **env})


def test_write_tasks_writes_the_example_tasks(tmp_path: Path):
    path = tmp_path / "deep" / "tasks.jsonl"
    done = run("--write-tasks", str(path), "-n", "7", "--seed", "3", "--kind", "mixed")
    assert done.returncode == 0, done.stderr
    assert [from_json(line) for line in path.read_bytes().splitlines()] == list(example_tasks(7, 3, "mixed"))
    assert b"rollforge collect" in done.stderr


def test_write_tasks_writes_to_stdout_when_told_so_with_a_dash():
    done = run("--write-tasks", "-", "-n", "3")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3


def test_it_says_where_it_is_that_it_is_simulated_and_at_the_end_what_it_saw():
    words = [*COMMAND, "--port", "0", "--fault", "wrong-model=1", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        start = from_json(server.stdout.readline())
        assert start["simulated"] is True
        with urlopen(
            Request(f"{start['base_url']}/responses", to_json({"model": "m", "input": "hi"}))
        ) as reply:
            assert from_json(reply.read())["model"] == "simulated-other-model"
        server.send_signal(signal.SIGINT)
        rest, errors = server.communicate(timeout=30)
    assert server.returncode == 0, errors
    assert from_json(rest)["faults"] == {"wrong-model": 1}


def test_mistakes_are_named_with_exit_code_2():
    cases = {
        ("--fault", "hnag=0.1"): b"did you mean 'hang'",
        ("--host", "0.0.0.0"): b"loopback only",
        ("--api-key-env", "NO_SUCH_VARIABLE_HERE"): b"NO_SUCH_VARIABLE_HERE is not set",
    }
    for words, message in cases.items():
        done = run(*words)
        assert done.returncode == 2 and message in done.stderr, words
        assert b"Traceback" not in done.stderr
