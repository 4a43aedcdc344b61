"""A Ray cluster of several nodes on this machine, with a temporary folder and ports of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.servers import free_port


@contextmanager
def ray_cluster(nodes: int, cpus: int = 2) -> Iterator[Any]:
    """A cluster of a head without CPUs and some nodes; skips the test where Ray is not installed."""
    folder = tempfile.mkdtemp(prefix="rf", dir="/tmp")  # sockets need short paths
    before = {name: os.environ.get(name) for name in ("RAY_TMPDIR", "RAY_USAGE_STATS_ENABLED", "RAY_ADDRESS")}
    os.environ |= {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    os.environ.pop("RAY_ADDRESS", None)
    pytest.importorskip("ray")
    started: list[Any] = []
    try:
        yield _started(Path(folder), nodes, cpus, started)
    finally:
        import ray

        ray.shutdown()
        for cluster in started:
            cluster.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)


def _started(folder: Path, nodes: int, cpus: int, started: list[Any]) -> Any:
    """A cluster that came up. Ray gives a node 30 seconds, and a busy machine may need more: the second try is often quicker."""
    said = ""
    for name in ("ray", "again"):
        try:
            return _cluster(folder / name, nodes, cpus, started)
        except Exception as error:  # noqa: BLE001  # Ray raises bare ones
            said += f"{error}\n{_logs(folder / name)}\n"
    raise AssertionError(f"Ray does not start:\n{said}")


def _cluster(temp: Path, nodes: int, cpus: int, started: list[Any]) -> Any:
    from ray.cluster_utils import Cluster

    temp.mkdir()
    head = {
        "num_cpus": 0,
        "temp_dir": str(temp),
        "include_dashboard": False,
        "object_store_memory": 80 << 20,
        "gcs_server_port": free_port(),
        "dashboard_agent_listen_port": free_port(),
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    started.append(cluster)
    for _ in range(nodes):
        cluster.add_node(num_cpus=cpus, object_store_memory=80 << 20)
    return cluster


def _logs(temp: Path) -> str:
    """What Ray's processes said, shortened."""
    files = (temp / "session_latest" / "logs").glob("*.err")
    return "".join(f"{path.name}: {path.read_text(errors='replace')[-1000:]}\n" for path in files)
