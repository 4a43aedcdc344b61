"""On a real Ray cluster of three nodes: the same bytes as one process, whatever is killed on the way.

`make torture` runs more kills. The cluster has a temporary folder and ports of its own; addresses are always named.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from tests.e2e.test_shards import (
    IS_TORTURE,
    assert_exact,
    collect,
    datasets,
    keys,
    rollforge,
    rows_of,
    run,
    start,
    wait_for,
)
from tests.executors.ray_cluster import ray_cluster

pytestmark = pytest.mark.slow
KILLS = 20 if IS_TORTURE else 2
LIMIT_S = 400


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster(3, cpus=1) as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with SimulatedProcess(SimulateOptions(seed=3, latency=0.05)) as running:
        yield running.base_url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    import json

    from tests.e2e.test_shards import TASKS

    folder = tmp_path_factory.mktemp("ray")
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in example_tasks(TASKS, 0, "math"))
    )
    run(collect(folder, "one", server))
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, str]:
    return datasets(folder, "one")


def actors(cluster: Any) -> list[int]:
    """Processes of the cluster's workers that hold one of our actors."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"ray::_ActorWorker" in words and cluster.address.encode() in _environment(path.parent):
            found.append(int(path.parent.name))
    return found


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_one_actor_per_node_gives_the_same_datasets_and_leaves_the_object_store_empty(
    cluster: Any, folder: Path, server: str, expected: dict[str, str]
) -> None:
    import ray

    run(collect(folder, "ray", server, "--on", f"ray:{cluster.address}"))
    assert_exact(folder / "ray")
    assert datasets(folder, "ray") == expected
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        total, free = ray.cluster_resources(), ray.available_resources()
        assert total["object_store_memory"] - free["object_store_memory"] < 1 << 20
    finally:
        ray.shutdown()


def test_verdicts_and_the_index_are_made_on_the_cluster(cluster: Any, folder: Path) -> None:
    on = f"ray:{cluster.address}"
    rollforge("verify", str(folder / "one"), "--verifier", "math", "--on", on)
    assert not (folder / "one" / "rollouts_verdicts.parts").exists()
    assert ": index " in rollforge("index", str(folder / "one"), "--on", on).stdout
    rollforge("profile", str(folder / "one"), "--verifier", "math", "--on", on)


def test_torture_killed_nodes_are_made_up_for(
    cluster: Any, folder: Path, server: str, expected: dict[str, str]
) -> None:
    path = folder / "nodes"
    for _ in range(KILLS):
        nodes = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
        victim = random.Random(len(nodes)).choice(nodes)
        before = rows_of(path)
        driver = start(collect(folder, "nodes", server, "--on", f"ray:{cluster.address}", c=3))
        wait_for(
            lambda before=before, driver=driver: rows_of(path) > before or driver.poll() is not None, 120
        )
        cluster.remove_node(victim, allow_graceful=False)
        assert driver.wait(LIMIT_S) == 0
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        if not IS_TORTURE:
            break
    assert_exact(path)
    assert datasets(folder, "nodes") == expected


def test_torture_a_killed_driver_is_resumed_without_ray(
    cluster: Any, folder: Path, server: str, expected: dict[str, str]
) -> None:
    path = folder / "driver"
    driver = start(collect(folder, "driver", server, "--on", f"ray:{cluster.address}", c=3))
    wait_for(lambda: rows_of(path) > 5 or driver.poll() is not None, 120)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    time.sleep(3)
    acknowledged = keys(path)
    run(collect(folder, "driver", server, "--on", "local"))
    assert_exact(path)
    assert not acknowledged - keys(path)
    assert datasets(folder, "driver") == expected
