"""A cluster whose head dies, a node that hangs and wakes up: the files hold the truth, and `--on local` goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from tests.e2e.test_shards import (
    IS_TORTURE,
    TASKS,
    assert_exact,
    collect,
    datasets,
    keys,
    rows_of,
    run,
    start,
    wait_for,
)
from tests.executors.ray_cluster import ray_cluster

pytestmark = pytest.mark.slow
LIMIT_S = 400
HEADS = 20 if IS_TORTURE else 1


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with SimulatedProcess(SimulateOptions(seed=3, latency=0.2)) as running:
        yield running.base_url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    folder = tmp_path_factory.mktemp("head")
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in example_tasks(TASKS, 0, "math"))
    )
    run(collect(folder, "one", server))
    return folder


def raylet_of(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def ended(driver: subprocess.Popen[bytes], seconds: float) -> int | None:
    """The exit code; None when the driver had to be killed."""
    try:
        return driver.wait(seconds)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()
        return None


def test_torture_a_killed_head_loses_nothing_and_the_run_goes_on_without_ray(
    folder: Path, server: str
) -> None:
    path, acknowledged, killed = folder / "head", Counter[tuple[int, int]](), 0
    for head in range(HEADS):
        seen = rows_of(path)
        with ray_cluster(2, cpus=1) as cluster:
            driver = start(collect(folder, "head", server, "--on", f"ray:{cluster.address}", c=2))
            wait_for(
                lambda seen=seen, driver=driver: rows_of(path) > seen + 3 or driver.poll() is not None, 120
            )
            killed += driver.poll() is None
            cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
            code = ended(driver, 120 if head == HEADS - 1 else 3)  # it may go on for long
        found = keys(path)
        print(
            f"the driver ended with {code}; {sum(found.values())} rollouts"
        )  # actors may go on without a head
        assert not acknowledged - found
        acknowledged = found
    run(collect(folder, "head", server, "--on", "local"))
    print(f"{killed} heads killed at work")
    assert killed == HEADS
    assert_exact(path)
    assert not acknowledged - keys(path)
    assert datasets(folder, "head") == datasets(folder, "one")


@pytest.mark.skipif(not IS_TORTURE, reason="a node hangs for 90 seconds: make torture")
def test_torture_a_node_that_hangs_for_90_seconds_and_wakes_up_harms_nothing(
    folder: Path, server: str
) -> None:
    path = folder / "hung"
    with ray_cluster(2, cpus=1) as cluster:
        driver = start(collect(folder, "hung", server, "--on", f"ray:{cluster.address}", c=3))
        wait_for(lambda: rows_of(path) > 3 or driver.poll() is not None, 120)
        node = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
        raylet = raylet_of(node)
        os.kill(raylet, signal.SIGSTOP)
        time.sleep(90)
        os.kill(raylet, signal.SIGCONT)
        code = ended(driver, LIMIT_S)
    print(f"the driver ended with {code}; {sum(keys(path).values())} rollouts")
    run(collect(folder, "hung", server, "--on", "local"))
    assert_exact(path)
    assert datasets(folder, "hung") == datasets(folder, "one")
