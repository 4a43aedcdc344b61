"""Shards, workers and Ray that share nothing but a bucket: the same bytes as on one disk, whoever is killed on the way.

Real S3 servers, real processes, real kill -9. Every machine has a cache of its own, and a lost machine loses it. `make torture` runs
twenty kills.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from tests.e2e.test_shards import IS_TORTURE, SAMPLES, TASKS, children, datasets, wait_for
from tests.object_stores import Store, rclone_store, seaweed_store

obstore = pytest.importorskip("obstore", reason="obstore is not installed: pip install 'rollforge[cloud]'")
pytestmark = pytest.mark.slow
KILLS = 20 if IS_TORTURE else 2
LIMIT_S = 400


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with SimulatedProcess(SimulateOptions(seed=3, latency=0.1)) as running:
        yield running.base_url


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with seaweed_store(tmp_path_factory.mktemp("weed")) as running:
        yield running


class Hosts:
    """Machines that share a bucket and nothing else."""

    def __init__(self, folder: Path, store: Store, server: str) -> None:
        self.folder, self.store, self.server = folder, store, server
        rows = example_tasks(TASKS, 0, "math")
        (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.expected: dict[str, str] = {}

    def collect(self, name: str, *more: str, c: int = 8) -> list[str]:
        return [
            *(sys.executable, "-m", "rollforge", "collect", "-i", "tasks.jsonl", "-o", f"s3://data/{name}"),
            *("-m", "simulated", "--base-url", self.server, "--verifier", "exact", "-k", str(SAMPLES)),
            *("-c", str(c), "--progress", "none", *more),
        ]

    def run(self, words: list[str], machine: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        env = self.store.env(self.folder / machine)
        done = subprocess.run(
            words, cwd=self.folder, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == code, done.stderr
        return done

    def rollforge(self, line: str, machine: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-m", "rollforge", *line.split()], machine, code)

    def start(self, words: list[str], machine: str) -> subprocess.Popen[bytes]:
        env = self.store.env(self.folder / machine)
        return subprocess.Popen(
            words, cwd=self.folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def lose(self, machine: str) -> None:
        """The machine is gone with all that it had."""
        shutil.rmtree(self.folder / machine, ignore_errors=True)

    def pieces(self, name: str) -> int:
        """Objects with rollouts."""
        found = (one["path"] for batch in obstore.list(self.store.objects(), name) for one in batch)
        return sum("/rollouts.jsonl.parts/" in path for path in found)

    def keys(self, name: str, machine: str) -> dict[tuple[int, int], int]:
        sql = "select_task,rollout,count(*)_from_rollouts_group_by_1,2".replace("_", " ")
        words = [sys.executable, "-m", "rollforge", "query", f"s3://data/{name}", sql, "--json"]
        return {
            (task, sample): count
            for task, sample, count in json.loads(self.run(words, machine).stdout)["rows"]
        }

    def assert_exact(self, name: str, machine: str) -> None:
        """Everything once; and the datasets of one process on a disk."""
        everything = {(task, sample): 1 for task in range(TASKS) for sample in range(SAMPLES)}
        assert self.keys(name, machine) == everything
        for recipe, digest in self.expected.items():
            out = f"sets/{name.replace('/', '-')}-{recipe}"
            self.rollforge(f"prepare {recipe} s3://data/{name} --to trl -o s3://data/{out} --force", machine)
            found = sorted(
                one["path"]
                for batch in obstore.list(self.store.objects(), f"{out}/")
                for one in batch
                if one["path"].rpartition("/")[2].startswith("train")
            )
            data = b"".join(bytes(obstore.get(self.store.objects(), path).bytes()) for path in found)
            assert hashlib.sha256(data).hexdigest() == digest, recipe


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory, store: Store, server: str) -> Hosts:
    made = Hosts(tmp_path_factory.mktemp("hosts"), store, server)
    words = made.collect("unused")
    words[words.index("s3://data/unused")] = str(made.folder / "disk")
    made.run(words, "disk-cache")
    made.expected = datasets(made.folder, "disk")
    return made


def test_hosts_that_share_only_a_bucket_make_the_run_of_one_disk(hosts: Hosts) -> None:
    name = "a/run"
    hosts.run(hosts.collect(name, "--shard", "1/3"), "second")
    assert hosts.rollforge(f"status s3://data/{name} --owed", "reader").stdout == "0,2\n"
    hosts.run(hosts.collect(name, "--shard", "0/3"), "first")
    told = json.loads(hosts.rollforge(f"merge s3://data/{name} --json", "reader", code=3).stdout)
    assert told["owed_shards"] == "2"
    hosts.run(hosts.collect(name, "--shard", "2/3"), "third")
    hosts.assert_exact(name, "reader")
    told = json.loads(hosts.rollforge(f"merge s3://data/{name} --json", "another").stdout)
    assert (told["written"], told["missing"], told["doubled"]) == (TASKS * SAMPLES, 0, 0)
    merged = bytes(obstore.get(hosts.store.objects(), f"{name}/rollouts.jsonl").bytes())
    assert merged.count(b"\n") == TASKS * SAMPLES
    status = json.loads(hosts.rollforge(f"status s3://data/{name} --json", "fourth").stdout)
    assert status["state"] == "done" and status["shards"]["finished"] == 3
    refused = hosts.run(hosts.collect(name, "--shard", "0/4"), "fifth", code=7)
    assert "3 shards, not 4" in refused.stderr
    assert not [
        path
        for path in hosts.folder.glob("*/rollforge/buckets/**/*.jsonl")
        if b"a-secret" in path.read_bytes()
    ]


def test_torture_a_lost_machine_is_taken_over_by_one_that_has_no_copy(hosts: Hosts) -> None:
    name, chance, killed = "b/run", random.Random(11), 0
    for attempt in range(KILLS):
        machine = f"lost{attempt}"
        before = hosts.pieces(name)
        process = hosts.start(hosts.collect(name, "--shard", "0/1", c=2), machine)
        wait_for(
            lambda before=before, process=process: hosts.pieces(name) > before or process.poll() is not None
        )
        time.sleep(chance.random())
        killed += process.poll() is None
        process.kill()
        process.wait()
        hosts.lose(machine)
        acknowledged = hosts.keys(name, "watcher")
        assert set(acknowledged.values()) <= {1}
    hosts.run(hosts.collect(name, "--shard", "0/1"), "last")
    print(f"{killed} machines lost, {len(acknowledged)} rollouts acknowledged before the last")
    assert acknowledged.keys() <= hosts.keys(name, "last").keys()
    hosts.assert_exact(name, "reader")


def test_torture_killed_workers_of_a_bucket_run_are_replaced(hosts: Hosts) -> None:
    name, chance, killed = "c/run", random.Random(13), 0
    driver = hosts.start(hosts.collect(name, "--workers", "2", c=4), "one")
    while driver.poll() is None and killed < min(KILLS, 5):
        time.sleep(0.5 + chance.random())
        workers = children(driver.pid)
        if hosts.pieces(name) and workers:
            os.kill(chance.choice(workers), signal.SIGKILL)
            killed += 1
    assert driver.wait(LIMIT_S) == 0
    print(f"{killed} workers killed")
    hosts.assert_exact(name, "reader")


def test_torture_a_bucket_that_is_gone_for_a_while_delays_the_run_and_loses_nothing(hosts: Hosts) -> None:
    name = "d/run"
    driver = hosts.start(hosts.collect(name, "--shard", "0/1", c=4), "one")
    wait_for(lambda: hosts.pieces(name) > 0 or driver.poll() is not None)
    hosts.store.pause()
    waking = threading.Timer(60 if IS_TORTURE else 6, hosts.store.go_on)
    waking.start()
    code = driver.wait(LIMIT_S)
    waking.join()
    if code == 3:  # it gave up waiting: the same command resumes
        hosts.run(hosts.collect(name, "--shard", "0/1"), "two")
    else:
        assert code == 0
    hosts.assert_exact(name, "reader")


def test_verdicts_of_several_workers_reach_the_bucket(hosts: Hosts) -> None:
    name = "a/run"
    hosts.rollforge(f"verify s3://data/{name} --verifier math --workers 2", "judge")
    found = json.loads(
        hosts.rollforge(f"metrics s3://data/{name} --verifier math --json", "elsewhere").stdout
    )
    assert found["counts"]["judged"] == TASKS * SAMPLES


def test_a_store_that_ignores_conditions_is_refused_for_shards_too(hosts: Hosts, tmp_path: Path) -> None:
    with rclone_store(tmp_path / "store") as lying:
        env = lying.env(tmp_path / "cache")
        words = hosts.collect("run", "--shard", "0/2")
        done = subprocess.run(words, cwd=hosts.folder, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "ignores conditional writes" in done.stderr
        assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_actors_on_a_cluster_write_to_the_bucket_without_a_shared_disk(hosts: Hosts) -> None:
    from tests.executors.ray_cluster import ray_cluster

    name, before = "e/run", dict(os.environ)
    os.environ |= hosts.store.env(hosts.folder / "ray-nodes")
    try:
        with ray_cluster(2, cpus=1) as cluster:
            words = hosts.collect(name, "--on", f"ray:{cluster.address}")
            hosts.run(words, "driver")
    finally:
        os.environ.clear()
        os.environ |= before
    assert list((hosts.folder / "ray-nodes").rglob("rollouts_tasks.jsonl")), "actors had a copy of their own"
    hosts.assert_exact(name, "reader")
