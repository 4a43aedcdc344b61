"""Mutated runs under whole commands: a message and an exit code, no traceback, no hang.

A few hundred mutants in CI; `ROLLFORGE_TORTURE=1` tries 20,000.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.simulate import example_tasks

MUTANTS = 20_000 if os.environ.get("ROLLFORGE_TORTURE") else 120
FILES = (
    "rollouts.jsonl", "rollouts_tasks.jsonl", "rollouts_failures.jsonl", "rollouts_verdicts.jsonl", "rollouts_run.json",
    "rollouts_metrics.jsonl",
)  # fmt: skip
COMMANDS = (
    ("status", "run"), ("metrics", "run"), ("profile", "run"), ("show", "run"), ("check", "run"),
    ("validate", "run/rollouts.jsonl"), ("query", "run", "select count(*) from rollouts"),
    ("prepare", "sft", "run", "-o", "data"),
    ("collect", "-i", "tasks.jsonl", "-o", "run", "-m", "x", "--base-url", "http://127.0.0.1:9/v1", "--dry-run"),
)  # fmt: skip
BITS = (
    b"\xff\xfe",
    b"\0\0\0\0",
    b"[" * 5000,
    b'"\\ud800"',
    b"9" * 400,
    b"NaN",
    b"{}",
    b"\n\n",
    b"null",
    b"-1",
    b"1e999",
    b"",
)

RUNNER = """
import contextlib, io, json, shutil, sys, traceback
from pathlib import Path
sys.setrecursionlimit(1000)
from rollforge.cli import run
from rollforge.errors import RollforgeError
bad = []
for line in sys.stdin:
    case = json.loads(line)
    shutil.rmtree("run", ignore_errors=True); shutil.copytree("whole", "run")
    shutil.rmtree("data", ignore_errors=True)
    Path("run", case["file"]).write_bytes(bytes.fromhex(case["data"]))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            run(list(case["words"]))
        except (RollforgeError, SystemExit):
            pass
        except BaseException:
            bad.append([case["number"], case["file"], case["words"], traceback.format_exc()[-1500:]])
print(json.dumps(bad))
"""


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage bytes as crashes and strangers do: cut, overwrite, insert, repeat, shuffle lines."""
    for _ in range(chance.choice((1, 1, 1, 3))):
        at = chance.randrange(len(data) + 1)
        bit = chance.choice(BITS)
        match chance.randrange(6):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + bit + data[at:]
            case 2:
                data = data[:at] + bit + data[at + len(bit) :]
            case 3:
                data = data + data[at:] + bit
            case 4:
                lines = data.splitlines(keepends=True)
                chance.shuffle(lines)
                data = b"".join(lines)
            case _:
                number = chance.choice((b"0", b"1", b"true", b"null", b'"text"'))
                data = data.replace(number, bit, 1)
    return data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with verdicts, failures and metrics."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in example_tasks(4, 0, "math"))
    )
    words = [
        "-i",
        "tasks.jsonl",
        "-o",
        "whole",
        "-m",
        "simulated",
        "--verifier",
        "exact",
        "-k",
        "2",
        "--step-size",
        "2",
    ]
    for command in (["collect", *words], ["verify", "whole", "--verifier", "math"], ["profile", "whole"]):
        subprocess.run(
            [sys.executable, "-m", "rollforge", *command],
            cwd=folder,
            check=False,
            capture_output=True,
            timeout=120,
        )
    shutil.rmtree(folder / "whole" / "rollouts_index", ignore_errors=True)
    return folder


def test_mutated_runs_end_in_messages_and_never_in_tracebacks(whole: Path) -> None:
    chance = random.Random(int(os.environ.get("ROLLFORGE_TORTURE_SEED", "0")))
    cases = []
    for number in range(MUTANTS):
        name = chance.choice(FILES)
        path = whole / "whole" / name
        data = mutate(path.read_bytes() if path.exists() else b'{"a": 1}\n', chance)
        cases.append({"number": number, "file": name, "words": chance.choice(COMMANDS), "data": data.hex()})
    done = subprocess.run(
        [sys.executable, "-c", RUNNER], cwd=whole, input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True, text=True, check=False, timeout=60 + MUTANTS * 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    bad = json.loads(done.stdout.splitlines()[-1])
    print(f"{MUTANTS:,} mutated runs, {len(bad)} tracebacks")
    assert not bad, "\n\n".join(
        f"{words} on {name} (mutant {number}):\n{text}" for number, name, words, text in bad[:5]
    )
