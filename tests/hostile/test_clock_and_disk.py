"""Clocks that jump, new folders that must survive a power cut, control characters in what `status` prints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rollforge.simulate import example_tasks

JUMPING = """
import random, time
real, chance = time.time, random.Random(0)
time.time = lambda: real() + chance.choice((-86400.0, -3600.0, 0.0, 3600.0, 86400.0))
"""
SYNCED = """
import os
real = os.fsync
def fsync(handle):
    with open("synced", "a") as file:
        file.write(os.readlink(f"/proc/self/fd/{handle}") + "\\n")
    return real(handle)
os.fsync = fsync
"""


def collect(folder: Path, before: str, out: str, *more: str) -> subprocess.CompletedProcess[str]:
    rows = example_tasks(4, 0, "math")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [
        "collect",
        "-i",
        "tasks.jsonl",
        "-o",
        out,
        "-m",
        "simulated",
        "--verifier",
        "exact",
        "-k",
        "2",
        "--json",
        *more,
    ]
    return subprocess.run(
        [sys.executable, "-c", f"{before}\nfrom rollforge.cli import main\nmain({words!r})"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_a_clock_that_jumps_changes_no_duration(tmp_path: Path) -> None:
    """The wall clock jumps by hours between any two looks at it."""
    done = collect(tmp_path, JUMPING, "run")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0 <= result["elapsed_s"] < 120 and result["rollouts_per_s"] > 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    own = [row["_rf"] for row in rows]
    assert len(own) == 8 and all(
        0 <= one["seconds"] < 120 and 0 <= one["verify_seconds"] < 120 for one in own
    )


def test_every_new_folder_is_synced_with_its_parent(tmp_path: Path) -> None:
    """A folder whose parent is not on disk is gone after a power cut, with all that is in it."""
    done = collect(tmp_path, SYNCED, "deep/er/run")
    assert done.returncode == 0, done.stderr
    synced = set((tmp_path / "synced").read_text().splitlines())
    wanted = {tmp_path, tmp_path / "deep", tmp_path / "deep" / "er", tmp_path / "deep" / "er" / "run"}
    assert {str(path) for path in wanted} <= synced


def test_what_is_moved_aside_and_new_folders_of_a_buffer_and_a_sink_are_synced(tmp_path: Path) -> None:
    assert collect(tmp_path, "", "run").returncode == 0
    more = [
        "--fresh",
        "--step-size",
        "2",
        "--buffer",
        "buffers/new/b.db",
        "--sink",
        "jsonl=sinks/new/m.jsonl",
    ]
    done = collect(tmp_path, SYNCED, "run", *more)
    assert done.returncode == 0, done.stderr
    synced = set((tmp_path / "synced").read_text().splitlines())
    (aside,) = (tmp_path / "run").glob("rollouts_2*")
    wanted = {aside, aside.parent, tmp_path, tmp_path / "buffers", tmp_path / "sinks"}
    assert {str(path) for path in wanted} <= synced


def test_status_prints_no_control_characters_of_servers_and_files(tmp_path: Path) -> None:
    assert collect(tmp_path, "", "run").returncode == 0
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    failure = {
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "class": f"transient{evil}",
        "message": evil,
        "attempt": 1,
    }
    (tmp_path / "run" / "rollouts_failures.jsonl").write_text(json.dumps(failure) + "\n")
    manifest = json.loads((tmp_path / "run" / "rollouts_run.json").read_text())
    manifest["state"], manifest["host"] = "incomplete", f"host{evil}"
    (tmp_path / "run" / "rollouts_run.json").write_text(json.dumps(manifest))
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", "status", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert said.strip() and not any(character in said for character in "\x1b\x07\x9b"), repr(said)
