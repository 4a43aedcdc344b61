"""The trainers' own code beside the monitor's: verl's metric functions, a TRL run that logs through our callback."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = ROOT / ".venv-trainers" / "bin" / "python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ROOT / ".venv-trainers" / ".ready").exists(), reason="scripts/trainers.sh makes the environment"
    ),
]


def test_trainer_and_validation_metrics_are_those_of_verls_own_code() -> None:
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "-c",
        os.devnull,
        "--rootdir",
        ROOT,
    ]
    files = [ROOT / "tests" / "metrics" / name for name in ("test_against_verl.py", "test_callback.py")]
    done = subprocess.run(
        [PYTHON, *words, *files],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "9 passed" in done.stdout, done.stdout[-500:]


def test_trl_trains_from_a_buffer_and_logs_under_our_names(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, HERE / "train_from_buffer.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    seen = json.loads(lines[-1].removeprefix("RESULT "))
    assert seen["counters"]["acknowledged"] == 16
    assert seen["steps"]
    assert {"actor/loss", "actor/lr"} <= set(seen["first"])
