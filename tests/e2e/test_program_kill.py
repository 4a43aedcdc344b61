"""A killed run with programs: every answered call is on disk, no finished rollout is made again, no program is left behind.

Real processes, real kill -9. `make torture` runs more rounds of the same.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions
from tests.hostile.test_program_agents import survivors
from tests.programs.running import ASK

IS_TORTURE = bool(os.environ.get("ROLLFORGE_TORTURE"))
TASKS, SAMPLES = 12, 2
KILLS = 20 if IS_TORTURE else 4

PROGRAM = (
    ASK
    + """
import uuid
log, marker = sys.argv[1:3]
for turn in range(3):
    name = uuid.uuid4().hex
    ask(user(name))
    with open(log, "a") as file:  # only what was answered
        file.write(name + "\\n")
        file.flush()
        os.fsync(file.fileno())
"""
)


def whole_lines(path: Path) -> list[dict[str, object]]:
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def keys_of(path: Path) -> list[tuple[object, object]]:
    return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in whole_lines(path)]


@pytest.mark.slow
def test_torture_every_answered_call_is_on_disk_and_resume_repeats_no_finished_rollout(
    tmp_path: Path,
) -> None:
    chance = random.Random(int(os.environ.get("ROLLFORGE_TORTURE_SEED", "1")))
    (tmp_path / "agent.py").write_text(PROGRAM)
    (tmp_path / "tasks.jsonl").write_text(
        "".join(json.dumps({"prompt": f"Task {number}"}) + "\n" for number in range(TASKS))
    )
    log, run, marker = tmp_path / "answered.log", tmp_path / "run", f"marker-{os.getpid()}"
    python = Path(sys.executable).resolve()
    with SimulatedProcess(SimulateOptions(latency=0.05)) as server:
        words = [
            sys.executable,
            "-m",
            "rollforge",
            "collect",
            "-i",
            str(tmp_path / "tasks.jsonl"),
            "-o",
            str(run),
        ]
        words += [
            "-m",
            "simulated",
            "--base-url",
            server.base_url,
            "--no-verify",
            "-k",
            str(SAMPLES),
            "-c",
            "6",
        ]
        words += ["--agent", f"program:{python} {tmp_path / 'agent.py'} {log} {marker}"]
        words += ["--sandbox", "off", "--progress", "none", "--rollout-deadline", "60"]
        for _ in range(KILLS):
            before = keys_of(run / "rollouts.jsonl")
            process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(1.0, 4.0))
            process.send_signal(signal.SIGKILL)
            process.wait()
            _wait_for_none(marker)
            answered = set(log.read_text().split()) if log.exists() else set()
            kept = (run / "rollouts_calls.jsonl").read_text() if answered else ""
            assert not [name for name in answered if name not in kept], "an answered call is lost"
            after = keys_of(run / "rollouts.jsonl")
            assert after[: len(before)] == before and len(after) == len(set(after))
        finished = Counter(keys_of(run / "rollouts.jsonl"))
        sessions = {row["_rf"]["program"]["session"] for row in whole_lines(run / "rollouts.jsonl")}  # type: ignore[index]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = whole_lines(run / "rollouts.jsonl")
    assert Counter(keys_of(run / "rollouts.jsonl")) == {
        (task, sample): 1 for task in range(TASKS) for sample in range(SAMPLES)
    }
    assert sessions <= {row["_rf"]["program"]["session"] for row in rows}, finished  # type: ignore[index]
    calls = Counter(row["session"] for row in whole_lines(run / "rollouts_calls.jsonl"))
    assert all(calls[row["_rf"]["program"]["session"]] == 3 for row in rows)  # type: ignore[index]


def _wait_for_none(marker: str) -> None:
    """The supervisor ends the programs when the process that collects is gone."""
    for _ in range(200):
        if not survivors(marker):
            return
        time.sleep(0.1)
    raise AssertionError(f"programs outlived the run: {survivors(marker)}")
