"""The example `improve`, made short: from a real model to a trained one that is served and compared."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge import Response, Task

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "improve"
SHORT = {"TRAIN_PAIRS": "6", "HELDOUT_PAIRS": "5", "SAMPLES": "3", "BENCH_SAMPLES": "1", "STEPS": "2"}


def environment() -> Path | None:
    """The interpreter of the example's environment, if it was made."""
    named = os.environ.get("IMPROVE_PYTHON")
    python = Path(named) if named else EXAMPLE / ".venv" / "bin" / "python"
    is_ready = bool(named) or (EXAMPLE / ".venv" / ".ready").exists()
    return python if is_ready and python.exists() else None


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    environment() is None, reason="`bash examples/improve/setup.sh` makes its environment (1.6 GB)"
)
@pytest.mark.parametrize("variant", os.environ.get("IMPROVE_VARIANTS", "sft").split(","))
def test_a_real_model_is_collected_from_trained_served_and_compared(tmp_path: Path, variant: str) -> None:
    folder = tmp_path / "improve"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".venv", "work"))
    unpacked = Path(os.environ.get("IMPROVE_BASE", EXAMPLE / "work" / "base"))
    work = tmp_path / "work"
    work.mkdir()
    if (unpacked / "config.json").exists():
        (work / "base").symlink_to(unpacked)  # unpacking takes half a minute
    own = {"IMPROVE_PYTHON": str(environment()), "WORK": str(work), **SHORT}
    rollforge = tmp_path / "rollforge"
    rollforge.write_text(f'#!/bin/sh\nexec {sys.executable} -m rollforge "$@"\n')
    rollforge.chmod(0o755)
    done = subprocess.run(
        ["bash", str(folder / "improve.sh"), variant, "1"],
        env={**os.environ, **own, "ROLLFORGE": str(rollforge)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )
    # Two steps prove the way, not the gain: the gate may say either.
    assert done.returncode in (0, 4), done.stdout[-3000:] + done.stderr[-3000:]
    bench = json.loads((work / f"bench/{variant}1.json").read_text())
    assert set(bench["models"]) == {"base", "trained"}
    assert bench["required"][0]["claim"] == "trained > base"
    assert bench["required"][0]["holds"] == (done.returncode == 0)
    assert bench["differences"][0]["tasks"] == 10
    manifest = json.loads((work / f"data/{variant}1/manifest.json").read_text())
    assert manifest["decontamination"][0]["prompts"] == 10 and manifest["decontamination"][0]["tasks"] == 0


def test_no_held_out_task_has_a_mirror_in_training(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLE / "tasks.py"), "36", "20", "3", str(tmp_path)], check=True)
    rows = {
        name: [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("train", "heldout")
    }
    assert (len(rows["train"]), len(rows["heldout"])) == (72, 40)
    pairs = {name: {row["pair"] for row in part} for name, part in rows.items()}
    assert not pairs["train"] & pairs["heldout"]


@pytest.mark.parametrize(
    ("answer", "reward", "mentions"),
    [
        ("9 + 4 = 13", 1.0, 1.0),
        ("The answer is 13.", 1.0, 1.0),
        ("13", 1.0, 1.0),
        ("It is 13, or 12 if you", 0.0, 1.0),
        ("9 - 4 = 5", 0.0, 0.0),
        ("9 + 4 = -13", 0.0, 0.0),
        ("I like 1,300 things", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("9 + 4", 0.0, 0.0),
    ],
)
def test_the_examples_verifier(answer: str, reward: float, mentions: float) -> None:
    task = Task({"responses_create_params": {"input": "What is 9 + 4?"}, "expected_answer": "13"})
    verify = runpy.run_path(str(EXAMPLE / "number.py"))["verify"]
    found = verify(task, Response.from_text(answer))
    assert (found["reward"], found["mentions"]) == (reward, mentions)
