"""`ray job submit -- rollforge collect … --on ray`: the driver runs on the cluster, the files are those of any other run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from tests.e2e.test_shards import IS_TORTURE, SAMPLES, TASKS, assert_exact, collect
from tests.servers import answers, free_port, running

pytest.importorskip("aiohttp_cors", reason="jobs need Ray's dashboard: pip install 'ray[default]'")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not IS_TORTURE, reason="make torture")]
RAY = (sys.executable, "-m", "ray.scripts.scripts")
OWN = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
"""The token of another cluster of this user would be asked for."""


def test_torture_a_submitted_job_collects_on_the_cluster_that_runs_it(tmp_path: Path) -> None:
    rows = example_tasks(TASKS, 0, "math")
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    place, log, dashboard = Path(tempfile.mkdtemp(prefix="rf")), tmp_path / "ray.log", free_port()

    def head(port: int) -> list[str]:
        flags = {
            "num-cpus": 2, "object-store-memory": 80 << 20, "port": port, "temp-dir": place / str(port),
            "dashboard-port": dashboard, "dashboard-agent-listen-port": free_port(),
            "ray-client-server-port": free_port(), "min-worker-port": 0, "max-worker-port": 0,
        }  # fmt: skip
        return [*RAY, "start", "--head", "--block", *(f"--{name}={value}" for name, value in flags.items())]

    def is_ready(port: int) -> bool:
        return answers(dashboard) and b"Ray runtime started" in log.read_bytes()

    try:
        with (
            SimulatedProcess(SimulateOptions(seed=3)) as server,
            running(head, log, is_ready=is_ready, environment=OWN),
        ):
            words = collect(tmp_path, "job", server.base_url, "--on", "ray")
            submit = [*RAY, "job", "submit", "--address", f"http://127.0.0.1:{dashboard}", "--", *words]
            done = subprocess.run(submit, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{TASKS * SAMPLES:,} of {TASKS * SAMPLES:,} rollouts" in done.stdout
        assert_exact(tmp_path / "job")
    finally:
        shutil.rmtree(place, ignore_errors=True)
