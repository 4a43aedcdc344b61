"""A killed run loses no acknowledged rollout, doubles none, and resumes to exactly tasks × samples.

Real processes, real kill -9. `make torture` runs many more rounds of the same.
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

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks

IS_TORTURE = bool(os.environ.get("ROLLFORGE_TORTURE"))
TASKS, SAMPLES = (400, 8) if IS_TORTURE else (120, 4)
KILLS = 40 if IS_TORTURE else 6


def command(folder: Path, url: str, *more: str) -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "rollforge",
            "collect",
            "-i",
            str(folder / "tasks.jsonl"),
            "-o",
            str(folder / "run"),
        ),
        *("-m", "simulated", "--base-url", url, "--verifier", "exact", "-k", str(SAMPLES), "-c", "16"),
        *("--progress", "none", *more),
    ]


def write_tasks(folder: Path) -> None:
    rows = example_tasks(TASKS, 0, "math")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def whole_keys(path: Path) -> list[tuple[int, int]]:
    """Keys of the lines that end in a newline: what a reader may rely on."""
    data = path.read_bytes() if path.exists() else b""
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in map(json.loads, lines)]


def assert_exact(path: Path) -> None:
    counted = Counter(whole_keys(path))
    assert counted == {(task, sample): 1 for task in range(TASKS) for sample in range(SAMPLES)}
    assert path.read_bytes().endswith(b"\n")


@pytest.mark.slow
def test_torture_kills_at_random_moments_lose_and_double_nothing(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("ROLLFORGE_TORTURE_SEED", "0")))
    write_tasks(tmp_path)
    rollouts = tmp_path / "run" / "rollouts.jsonl"
    faults = ("500=0.05", "reset=0.02")
    with SimulatedProcess(SimulateOptions(latency=0.03, faults=faults)) as server:
        for _ in range(KILLS):
            before = set(whole_keys(rollouts))
            process = subprocess.Popen(command(tmp_path, server.base_url), stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.1, 1.6))
            process.send_signal(signal.SIGKILL)
            process.wait()
            after = whole_keys(rollouts)
            assert before <= set(after), "a line that was there is gone"
            assert len(after) == len(set(after)), "a rollout was doubled"
        done = subprocess.run(command(tmp_path, server.base_url), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_exact(rollouts)


@pytest.mark.slow
def test_torture_a_file_cut_anywhere_in_its_last_lines_is_resumed_exactly(tmp_path: Path) -> None:
    """Every byte of the last lines for the library, a sample of them with the whole program."""
    write_tasks(tmp_path)
    rollouts = tmp_path / "run" / "rollouts.jsonl"
    with SimulatedProcess(SimulateOptions()) as server:
        subprocess.run(command(tmp_path, server.base_url), check=True, capture_output=True)
        whole = rollouts.read_bytes()
        third_last = whole.rfind(b"\n", 0, whole.rfind(b"\n", 0, len(whole) - 1)) + 1
        cuts = range(third_last, len(whole))
        chance = random.Random(1)
        for cut in [third_last, len(whole) - 1, *chance.sample(cuts, 40 if IS_TORTURE else 4)]:
            rollouts.write_bytes(whole[:cut])
            subprocess.run(command(tmp_path, server.base_url), check=True, capture_output=True)
            assert_exact(rollouts)


def test_two_signals_two_manners(tmp_path: Path) -> None:
    """The first Ctrl-C drains: what is in flight finishes and is kept; the resume command is printed; exit 130."""
    write_tasks(tmp_path)
    with SimulatedProcess(SimulateOptions(latency=0.4)) as server:
        process = subprocess.Popen(command(tmp_path, server.base_url), stderr=subprocess.PIPE, text=True)
        wait_for(tmp_path / "run" / "rollouts.jsonl", 1)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "resume with: rollforge collect" in said
        manifest = json.loads((tmp_path / "run" / "rollouts_run.json").read_text())
        assert manifest["state"] == "interrupted"
        drained = len(whole_keys(tmp_path / "run" / "rollouts.jsonl"))
        assert drained == manifest["finished"] > 0


def test_a_second_interrupt_aborts_at_once_and_leaves_a_resumable_run(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    with SimulatedProcess(SimulateOptions(faults=("hang=1.0,after=1",), latency=0.05)) as server:
        process = subprocess.Popen(command(tmp_path, server.base_url), stderr=subprocess.PIPE, text=True)
        wait_for(tmp_path / "run" / "rollouts.jsonl", 1)
        time.sleep(1.2)  # everything in flight hangs now
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None, "the first one waits for what is in flight"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    kept = whole_keys(tmp_path / "run" / "rollouts.jsonl")
    assert kept and len(kept) == len(set(kept))


def test_two_interrupts_at_once_while_answers_arrive_print_the_resume_command(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    with SimulatedProcess(SimulateOptions(latency=0.02)) as server:
        process = subprocess.Popen(command(tmp_path, server.base_url), stderr=subprocess.PIPE, text=True)
        wait_for(tmp_path / "run" / "rollouts.jsonl", 1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "resume with: rollforge collect" in said and "Traceback" not in said


def test_a_second_collector_on_the_same_run_is_refused(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    with SimulatedProcess(SimulateOptions(latency=0.3)) as server:
        process = subprocess.Popen(command(tmp_path, server.base_url), stderr=subprocess.DEVNULL)
        wait_for(tmp_path / "run" / "rollouts.jsonl", 1)
        second = subprocess.run(
            command(tmp_path, server.base_url), capture_output=True, text=True, check=False
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert second.returncode == 2
    assert f"process {process.pid}" in second.stderr


def test_a_reader_that_never_reads_does_not_hold_the_run_up(tmp_path: Path) -> None:
    """stderr is a pipe that fills up; progress waits, rollouts do not."""
    write_tasks(tmp_path)
    with SimulatedProcess(SimulateOptions(latency=0.02)) as server:
        words = command(tmp_path, server.base_url)
        words[words.index("--progress") + 1] = "json"
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        while True:
            try:
                os.write(writer, b"x" * 4096)
            except BlockingIOError:
                break
        os.set_blocking(writer, True)
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=writer)
        os.close(writer)
        deadline = time.monotonic() + 60
        rollouts = tmp_path / "run" / "rollouts.jsonl"
        while len(whole_keys(rollouts)) < TASKS * SAMPLES and time.monotonic() < deadline:
            time.sleep(0.2)
        process.kill()
        process.wait()
        os.close(reader)
    assert_exact(rollouts)


def wait_for(path: Path, lines: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {lines} lines")
