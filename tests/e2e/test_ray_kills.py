"""Random kills on a real Ray cluster: actors, verifiers, raylets, whole nodes, drivers. `make torture` makes twenty per way.

CI kills one actor.

The server counts its requests, so that a rollout made twice shows: no more than were in flight at each kill.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rollforge.simulate import SimulatedServer, SimulateOptions, example_tasks
from tests.e2e.test_shards import (
    IS_TORTURE,
    SAMPLES,
    TASKS,
    assert_exact,
    collect,
    datasets,
    keys,
    rows_of,
    run,
    start,
)
from tests.executors.ray_cluster import ray_cluster

pytestmark = pytest.mark.slow
KILLS = 20 if IS_TORTURE else 1
WAYS = ("actor", "verifier", "raylet", "node", "driver") if IS_TORTURE else ("actor",)
IN_FLIGHT = 4
LIMIT_S = 400
VERIFIER = """import time


def verify(task, response):
    time.sleep(0.05)
    return float(len(response.text) % 3 > 0)
"""
"""Slow enough to be killed at work, and judged in processes of its own."""


@contextmanager
def counting_server() -> Iterator[SimulatedServer]:
    """A model in a thread of this process, which knows how often it was asked."""
    loop = asyncio.new_event_loop()
    server = SimulatedServer(SimulateOptions(seed=3, latency=0.1))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_cluster(3 if IS_TORTURE else 2, cpus=1) as running:
        yield running


@pytest.fixture(scope="module")
def server() -> Iterator[SimulatedServer]:
    with counting_server() as running:
        yield running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: SimulatedServer) -> Path:
    folder = tmp_path_factory.mktemp("kills")
    rows = example_tasks(TASKS, 0, "math")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "judged.py").write_text(VERIFIER)
    return folder


@pytest.fixture
def expected(way: str, folder: Path, server: SimulatedServer) -> dict[str, str]:
    """Datasets of the run that one process makes with the same verifier."""
    name = f"one-{way}"
    run(words_of(way, folder, name, server.base_url))
    return datasets(folder, name)


def words_of(way: str, folder: Path, name: str, url: str, *more: str) -> list[str]:
    words = collect(folder, name, url, *more, c=IN_FLIGHT)
    if way == "verifier":
        words[words.index("exact")] = f"{folder / 'judged.py'}:verify"
    return words


class Killer:
    """Kills one thing of a kind, and puts back what a cluster would need a new machine for."""

    def __init__(self, cluster: Any, chance: random.Random) -> None:
        self._cluster = cluster
        self._chance = chance

    def kill(self, way: str, driver: subprocess.Popen[bytes]) -> bool:
        """Whether there was one to kill."""
        match way:
            case "actor":
                return self._kill_one(actors(self._cluster))
            case "verifier":
                return self._kill_one([pid for actor in actors(self._cluster) for pid in descendants(actor)])
            case "driver":
                driver.kill()
                driver.wait()
            case _:
                self._kill_node(only_raylet=way == "raylet")
        return True

    def _kill_one(self, pids: list[int]) -> bool:
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(pids), signal.SIGKILL)
        return bool(pids)

    def _kill_node(self, *, only_raylet: bool) -> None:
        nodes = [node for node in self._cluster.list_all_nodes() if node is not self._cluster.head_node]
        node = self._chance.choice(nodes)
        if only_raylet:
            raylet = node.all_processes["raylet"][0].process
            raylet.kill()
            raylet.wait()  # a zombie would count as alive
            time.sleep(2)
        self._cluster.remove_node(node, allow_graceful=False)
        for attempt in range(3):
            try:
                self._cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
            except Exception:  # Ray raises a bare one when a node needs more than 30 seconds
                if attempt == 2:
                    raise
            else:
                return


def actors(cluster: Any) -> list[int]:
    """Processes of this cluster that hold one of our actors."""
    raylets = {
        node.all_processes["raylet"][0].process.pid
        for node in cluster.list_all_nodes()
        if "raylet" in node.all_processes
    }
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in raylets and b"ray::_ActorWorker" in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    found = []
    with suppress(OSError):
        for tasks in Path(f"/proc/{pid}/task").glob("[0-9]*"):
            for child in map(int, (tasks / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


@pytest.mark.parametrize("way", WAYS)
def test_torture_random_kills_lose_nothing_and_double_nothing(
    way: str, cluster: Any, folder: Path, server: SimulatedServer, expected: dict[str, str]
) -> None:
    chance = random.Random(way)
    killer, killed, runs = Killer(cluster, chance), 0, 0
    while killed < KILLS:
        name, asked = f"{way}-{runs}", server.stats.requests
        in_this_run = tortured(folder, name, server.base_url, way, cluster, killer, chance, KILLS - killed)
        killed, runs = killed + in_this_run, runs + 1
        assert_exact(folder / name)
        extra = server.stats.requests - asked - TASKS * SAMPLES
        print(f"{way}: {in_this_run} kills, {extra} rollouts made twice")
        assert 0 <= extra <= in_this_run * IN_FLIGHT
        assert datasets(folder, name) == expected
        assert runs <= KILLS, "runs end before anything can be killed"
    print(f"{way}: {killed} kills in {runs} runs")


def tortured(
    folder: Path,
    name: str,
    url: str,
    way: str,
    cluster: Any,
    killer: Killer,
    chance: random.Random,
    most: int,
) -> int:
    """Collect a run to its end; how often something was killed on the way."""
    words = words_of(way, folder, name, url, "--on", f"ray:{cluster.address}")
    path, killed, seen, acknowledged = folder / name, 0, 0, None
    said = folder / f"{name}.stderr"
    driver, begun = start(words, said), time.monotonic()
    while driver.poll() is None:
        assert time.monotonic() - begun < LIMIT_S, f"the run hangs\n{said.read_text()[-4000:]}"
        time.sleep(0.2 + chance.random() * 0.5)
        if killed == most or rows_of(path) <= seen:
            continue  # one kill at a time: the run must have gone on since the last one
        acknowledged, seen = keys(path), rows_of(path)
        killed += killer.kill(way, driver)
        if way == "driver":
            driver = start(words, said)
    assert driver.returncode == 0, said.read_text()[-4000:]
    assert acknowledged is None or not acknowledged - keys(path)
    return killed
