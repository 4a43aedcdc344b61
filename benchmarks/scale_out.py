"""Ray and buckets as ratios: CPU of one actor against one process, what the driver costs, take-over, the index of a bucket run.

Everything is measured as a slope between a small and a large run, so that starting up does not count. Needs the extras `ray` and
`cloud` and SeaweedFS; what is missing is left out and said.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.collect import fast_server
from benchmarks.limits import Limit
from benchmarks.rows import write as write_rows
from rollforge.store.object_lines import pack, piece_name

PROGRAM = (sys.executable, "-m", "rollforge")
SMALL = 400
"""Rollouts of the run that only shows what starting costs."""
REPEATS = 3
"""Runs of which the least counts: starting Ray takes seconds of CPU, which vary by more than a driver needs for its rollouts."""


class Cost(NamedTuple):
    """What one command cost."""

    cpu_s: float
    actors_s: float
    """CPU of Ray's actors, as last seen."""
    peak_mb: float


def ray_limits(folder: Path, count: int) -> list[Limit]:
    """One actor against one process, and the driver beside it."""
    try:
        import ray  # noqa: F401
    except ImportError:
        print("ray        not installed: left out")
        return []
    with fast_server() as url, _cluster(1) as cluster:
        local = [
            _least(_collect(folder, f"local-{n}-{repeat}", url, n) for repeat in range(REPEATS))
            for n in (SMALL, count)
        ]
        spread = [
            _least(
                _collect(
                    folder,
                    f"ray-{n}-{repeat}",
                    url,
                    n,
                    "--on",
                    f"ray:{cluster.address}",
                    cluster=os.environ["RAY_TMPDIR"],
                )
                for repeat in range(REPEATS)
            )
            for n in (SMALL, count)
        ]
        bare = _bare_driver_mb(cluster.address)
        used = _object_store_bytes(cluster)
    per = count - SMALL
    one, actor = (local[1].cpu_s - local[0].cpu_s) / per, (spread[1].actors_s - spread[0].actors_s) / per
    driver = (spread[1].cpu_s - spread[0].cpu_s) / per
    growth = (spread[1].peak_mb - spread[0].peak_mb) * 1e6 / per
    print(
        f"ray        {count:,} rollouts: one process {one * 1e6:,.0f} µs, one actor {actor * 1e6:,.0f} µs of CPU per rollout"
    )
    print(
        f"           driver {driver * 1e6:.1f} µs, {spread[1].peak_mb:.0f} MB (Ray alone {bare:.0f} MB), "
        f"{growth:.0f} bytes more per rollout"
    )
    return [
        Limit("Ray, one worker: CPU per rollout against one process", actor / one, 1.05),
        Limit("Ray driver: µs of CPU per rollout", driver * 1e6, 20),
        Limit(
            "Ray driver: MB above Ray's own and 1 byte per rollout",
            spread[1].peak_mb - bare - count / 1e6,
            100,
        ),
        Limit("Ray object store: bytes", used, 0),
    ]


def _least(costs: Iterable[Cost]) -> Cost:
    """The least CPU of each kind, and the highest peak."""
    all_costs = list(costs)
    return Cost(
        min(one.cpu_s for one in all_costs),
        min(one.actors_s for one in all_costs),
        max(one.peak_mb for one in all_costs),
    )


def take_over_limits(folder: Path) -> list[Limit]:
    """Seconds from a killed node until another one owns its shards."""
    try:
        import ray  # noqa: F401
    except ImportError:
        return []
    run = folder / "taken"
    with fast_server() as url, _cluster(2) as cluster:
        words = _words(folder, "taken", url, 400_000, "--on", f"ray:{cluster.address}", "-c", "8")
        driver = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _until(lambda: len(list(run.glob("shards/*/e1/rollouts.jsonl"))) >= 2, 120)
            node = next(one for one in cluster.list_all_nodes() if one is not cluster.head_node)
            killed = time.monotonic()
            cluster.remove_node(node, allow_graceful=False)
            _until(lambda: next(iter(run.glob("shards/*/e2.owner")), None) is not None, 120)
            seconds = time.monotonic() - killed
        finally:
            driver.kill()
            driver.wait()
    print(f"take-over  {seconds:.1f} s after a killed node")
    return [Limit("take-over after a killed node: seconds", seconds, 5)]


def bucket_limits(folder: Path, rows: int) -> list[Limit]:
    """CPU of a first index of a run in a bucket against the same run on disk: rows of 10 KB, in the objects that `collect` makes."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent))
    if weed is None:
        print("bucket     SeaweedFS is not installed: left out")
        return []
    from tests.object_stores import seaweed_store

    (folder / "weed").mkdir()
    local, bucket = [], []
    with seaweed_store(folder / "weed") as store:
        for count in (SMALL, rows):
            run = folder / f"indexed-{count}"
            run.mkdir()
            write_rows(run / "rollouts.jsonl", count // 8, 8)
            _upload(run / "rollouts.jsonl", store.objects(), run.name)
            env = store.env(folder / f"cache-{count}")
            local.append(_cpu(_query(str(run)), env))
            bucket.append(_cpu(_query(f"s3://data/{run.name}"), env))
    ratio = bucket[1] / local[1]
    print(
        f"bucket     first index of {rows:,} rollouts: {bucket[1]:.2f} s of CPU, on disk {local[1]:.2f} s: {ratio:.2f}×; "
        f"without the start {(bucket[1] - bucket[0]) / (local[1] - local[0]):.2f}×"
    )
    return [Limit("index of a bucket run: CPU against disk", ratio, 1.3)]


def _query(run: str) -> list[str]:
    return [*PROGRAM, "query", run, "select count(*) from rollouts"]


def _upload(path: Path, objects: Any, run: str) -> None:
    """Store a rollouts file as pieces of about 8 MB."""
    import obstore

    with path.open("rb") as file:
        number = 0
        while lines := file.read(8 << 20) + file.readline():
            number += 1
            obstore.put(objects, f"{run}/{piece_name(path.name, number)}", pack(lines))


def _bare_driver_mb(address: str) -> float:
    """Peak memory of a driver that imports Ray, asks one actor once, and knows nothing of rollforge."""
    code = (
        "import ray, resource, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR');"
        "ray.get(ray.remote(num_cpus=0)(type('Echo', (), {'say': lambda self: 1})).remote().say.remote());"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, address], check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _words(folder: Path, name: str, url: str, count: int, *more: str) -> list[str]:
    tasks = folder / f"tasks-{count}.jsonl"
    if not tasks.exists():
        row = {"responses_create_params": {"input": "Say 1."}, "expected_answer": "1"}
        tasks.write_text((json.dumps(row) + "\n") * (count // 4))
    where = ["-i", str(tasks), "-o", str(folder / name), "-m", "fast", "--base-url", url, "-k", "4"]
    limit = [] if "-c" in more else ["-c", "64"]
    return [*PROGRAM, "collect", *where, *limit, "--no-verify", "--progress", "none", *more]


def _collect(folder: Path, name: str, url: str, count: int, *more: str, cluster: str = "") -> Cost:
    """Run a collection by itself and see what it and the actors of a cluster used."""
    ended, seen = threading.Event(), [0.0]

    def watch() -> None:
        while not ended.wait(0.1):
            seen[0] = max(seen[0], _actors_cpu(cluster)) if cluster else 0.0

    before = _actors_cpu(cluster) if cluster else 0.0
    watcher = threading.Thread(target=watch)
    watcher.start()
    code = (
        "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "use = resource.getrusage(resource.RUSAGE_CHILDREN); print(use.ru_utime + use.ru_stime, use.ru_maxrss);"
        "sys.exit(done.returncode)"
    )
    words = [sys.executable, "-c", code, *_words(folder, name, url, count, *more)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    ended.set()
    watcher.join()
    cpu, memory = done.stdout.split()[-2:]
    return Cost(float(cpu), max(0.0, seen[0] - before), int(memory) / 1024)


def _actors_cpu(folder: str) -> float:
    """CPU seconds of our actors on the cluster whose files are in this folder."""
    total, tick = 0.0, os.sysconf("SC_CLK_TCK")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"ray::_ActorWorker" not in (process / "cmdline").read_bytes():
                continue
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            raylet = Path("/proc") / fields[1] / "cmdline"
            if folder.encode() not in raylet.read_bytes():
                continue
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def _cpu(words: list[str], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _until(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("it did not happen in time")
        time.sleep(0.05)


def _object_store_bytes(cluster: Any) -> float:
    import ray

    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        total, free = ray.cluster_resources(), ray.available_resources()
        return float(total["object_store_memory"] - free["object_store_memory"])
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _cluster(nodes: int) -> Iterator[Any]:
    """A Ray cluster with a folder of its own: a head without CPUs, and some nodes."""
    folder = tempfile.mkdtemp(prefix="rf", dir="/tmp")
    os.environ |= {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.pop("RAY_ADDRESS", None)
    from ray.cluster_utils import Cluster

    memory = 80 << 20
    head = {
        "num_cpus": 0,
        "temp_dir": f"{folder}/ray",
        "include_dashboard": False,
        "object_store_memory": memory,
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, object_store_memory=memory)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
