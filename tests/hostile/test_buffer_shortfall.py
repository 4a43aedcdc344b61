"""What was asked to be in the buffer is there, or the exit code says so and the next start brings it."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rollforge.buffer import open_buffer
from rollforge.experience import Experience, experiences_from_row
from rollforge.simulate import example_tasks


def collect(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(6, 0, "math")))
    words = ["-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "exact", "--step-size", "2"]
    words += ["--json", *more, *(() if "--buffer" in more else ("--buffer", "buffer.db"))]
    return subprocess.run(
        [sys.executable, "-m", "rollforge", "collect", *words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_steps_that_did_not_reach_the_buffer_are_exit_3_and_come_with_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from pathlib import Path\n"
        "def broken(experiences):\n"
        "    if not Path('mended').exists():\n"
        "        raise ZeroDivisionError('half')\n"
        "    return list(experiences)\n"
    )
    (tmp_path / "pipeline.toml").write_text('[[operator]]\nuse = "mine.py:broken"\n')
    done = collect(tmp_path, "--pipeline", "pipeline.toml")
    if done.returncode == 2:
        pytest.skip(f"operators of a user's own are written otherwise: {done.stderr}")
    assert done.returncode == 3, done.stderr
    result = json.loads(done.stdout)
    assert "did not reach the buffer" in result["message"] and "half" in result["message"]
    (tmp_path / "mended").touch()
    again = collect(tmp_path, "--pipeline", "pipeline.toml")
    assert again.returncode == 0, again.stderr
    with open_buffer(tmp_path / "buffer.db") as buffer:
        assert len(buffer) == 6


def test_steps_that_were_reported_without_this_buffer_come_with_the_next_start(tmp_path: Path) -> None:
    assert collect(tmp_path, "--buffer", "other.db").returncode == 0
    for name in ("other.db", "new.db", "new.db"):
        done = collect(tmp_path, "--buffer", name)
        assert done.returncode == 0, done.stderr
        with open_buffer(tmp_path / name) as buffer:
            assert len(buffer) == 6, name
            assert buffer.counters()["duplicates"] == 0, "what it has is not brought again"


@pytest.mark.parametrize(
    "logprobs", [[None, -0.1], [float("nan"), -0.1], ["x", -0.1], [-0.1], [[], {}], "text", [math.inf, 0.0]]
)
def test_a_bad_logprob_never_keeps_its_rollout_out(logprobs: Any) -> None:
    item = {
        "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}],
        "prompt_token_ids": [1, 2], "generation_token_ids": [3, 4], "generation_log_probs": logprobs,
    }  # fmt: skip
    (made,) = experiences_from_row(
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "response": {"output": [item]}}
    )
    assert made.logprobs is None and made.tokens is not None and made.response == "ok"


@pytest.mark.parametrize("ids", [[3, None], ["x"], [2**40], [-1], [1.5], "text", {"a": 1}])
def test_token_ids_that_are_none_leave_the_text(ids: Any) -> None:
    item = {
        "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}],
        "prompt_token_ids": [1, 2], "generation_token_ids": ids, "generation_log_probs": [-0.1],
    }  # fmt: skip
    (made,) = experiences_from_row(
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "response": {"output": [item]}}
    )
    assert made.fidelity == "text" and made.tokens is None and made.response == "ok"


def test_an_append_waits_for_a_postgresql_server_that_restarts(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    if not found or (not shutil.which("setpriv") and os.geteuid() == 0):
        pytest.skip("no PostgreSQL server on this machine")
    import pwd
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="rollforge-pg-"))
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    control = [str(found[0]), "-D", str(folder / "data"), "-w", "-l", str(folder / "log")]
    options = ["-o", f"-k {folder} -c listen_addresses= -c fsync=off"]

    def run(*words: str) -> None:
        subprocess.run(
            [*control, *words], check=True, capture_output=True, cwd=folder, timeout=60, **identity
        )

    run("initdb", "-o", "-U rollforge -A trust --no-sync")
    try:
        run("start", *options)
        with open_buffer(f"postgresql://rollforge@/postgres?host={folder}") as buffer:
            buffer.append([Experience(id="a", task="t", run="a")])
            run("stop", "-m", "immediate")
            starter = threading.Timer(1.0, lambda: run("start", *options))
            starter.start()
            assert (
                buffer.append([Experience(id="a", task="t", run="a"), Experience(id="b", task="t", run="b")])
                == 1
            )
            starter.join()
            assert len(buffer) == 2
    finally:
        subprocess.run(
            [*control, "stop", "-m", "immediate"], capture_output=True, cwd=folder, check=False, **identity
        )
        shutil.rmtree(folder, ignore_errors=True)
