"""One peer on a Ray cluster of two nodes on this machine, with or without the kill of a node: rows kept, lost, doubled, and CPU.

Runs in the peer's environment, without rollforge's packages (rollforge itself runs in its own):
`python -m benchmarks.scale_peer_loops {datatrove,ray.data.llm,nemo-gym,rollforge} URL COUNT FOLDER {kill,calm}`.
The peer is a process of its own, `… drive PEER URL COUNT FOLDER ADDRESS`. When it fails after the kill, the same command is given
once more, as a user would.
Prints one JSON line. CPU is that of the peer, its workers and Ray's processes from the first command to the end of the last.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

CONCURRENCY = 64
RANKS = 8
"""Parts of the work, for those who cut it by hand."""
LIMIT_S = 300


# -- the peers, each as its documentation has it ----------------------------------------------------------------------------


def drive_datatrove(url: str, count: int, folder: Path, address: str) -> None:
    """Inference through `RayPipelineExecutor`, with checkpoints: one rank per part, 64 requests at a time."""
    import ray
    from datatrove.data import Document
    from datatrove.executor.ray import RayPipelineExecutor
    from datatrove.pipeline.inference.run_inference import InferenceConfig, InferenceRunner
    from datatrove.pipeline.writers import JsonlWriter

    def documents(data: Any, rank: int = 0, world_size: int = 1) -> Any:
        for number in range(rank, count, world_size):
            yield Document(text=f"Say {number}.", id=str(number))

    async def rollout(document: Any, generate: Any) -> Any:
        answer = await generate({"messages": [{"role": "user", "content": document.text}]})
        return answer.text[:20]

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    config = InferenceConfig(
        server_type="endpoint",
        model_name_or_path="fast",
        endpoint_url=url.removesuffix("/v1"),
        max_concurrent_generations=CONCURRENCY // 2,
    )
    writer = JsonlWriter(str(folder / "out"), "${rank}_${chunk_index}.jsonl", compression=None)
    step = InferenceRunner(
        rollout, config, writer, checkpoints_local_dir=str(folder / "checkpoints"), records_per_chunk=50
    )
    RayPipelineExecutor(
        [documents, step],
        tasks=RANKS,
        workers=2,
        logging_dir=str(folder / "logs"),
        mem_per_cpu_gb=0.1,
        randomize_start_duration=0,
    ).run()


def drive_ray_data(url: str, count: int, folder: Path, address: str) -> None:
    """`build_processor` with the HTTP stage, two actors, results written as JSON."""
    import ray
    from ray.data.llm import HttpRequestProcessorConfig, build_processor

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    config = HttpRequestProcessorConfig(
        url=f"{url}/chat/completions", batch_size=CONCURRENCY // 2, max_retries=3, concurrency=2
    )
    processor = build_processor(
        config,
        preprocess=lambda row: {
            "payload": {
                "model": "fast",
                "messages": [{"role": "user", "content": f"Say {row['id']}."}],
            },
            "id": row["id"],
        },
        postprocess=lambda row: {
            "id": row["id"],
            "text": row["http_response"]["choices"][0]["message"]["content"][:20],
        },
    )
    rows = ray.data.range(count, override_num_blocks=RANKS * 4)
    processor(rows).write_json(str(folder / "out"))


def drive_rollforge(url: str, count: int, folder: Path, address: str) -> None:
    """`collect --on ray`."""
    tasks = folder / "tasks.jsonl"
    if not tasks.exists():
        rows = ({"responses_create_params": {"input": f"Say {number}."}} for number in range(count))
        tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["collect", "-i", str(tasks), "-o", str(folder / "out"), "-m", "fast", "--base-url", url]
    words += ["--api", "chat", "-c", str(CONCURRENCY), "--no-verify", "--progress", "none"]
    os.execv(sys.executable, [sys.executable, "-m", "rollforge", *words, "--on", f"ray:{address}"])


GYM_NODES = 2
GYM_CONFIG = """
policy_model:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: ${policy_base_url}
      openai_api_key: ${policy_api_key}
      openai_model: ${policy_model_name}
answers:
  resources_servers:
    example_single_tool_call: {entrypoint: app.py, domain: agent, verified: false, description: answers}
asker:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: answers}
      model_server: {type: responses_api_models, name: policy_model}
"""
GYM_SERVERS = (
    "resources_servers/example_single_tool_call",
    "responses_api_agents/simple_agent",
    "responses_api_models/openai_model",
    "environment_servers/legacy_agent",
)


def drive_nemo_gym(url: str, count: int, folder: Path, address: str) -> None:
    """A shard per node, each with its own servers and `eval run`; at the end `eval aggregate`. The command resumes."""
    gym = str(Path(sys.executable).with_name("gym"))
    (folder / "gym.yaml").write_text(GYM_CONFIG)
    for server in GYM_SERVERS:  # the environment is there: Gym would install one per server
        (folder / "venvs" / server).mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (folder / "venvs" / server / ".venv").symlink_to(sys.prefix)
    servers = []
    try:
        for node in range(GYM_NODES):
            servers.append(_gym_servers(gym, url, folder, address, node))
        collectors = [_gym_collector(gym, count, folder, node, servers[node][1]) for node in range(GYM_NODES)]
        (folder / "node").write_text(f"{servers[-1][0].pid} {collectors[-1].pid}")
        codes = [one.wait() for one in collectors]
        if any(codes):
            raise SystemExit(f"collectors ended with {codes}")
        words = ["eval", "aggregate", "-i", str(folder / "shards/*/rollouts.jsonl")]
        words += ["-o", str(folder / "out" / "rollouts.jsonl"), f"+head_server.port={servers[0][1]}"]
        subprocess.run([gym, *words], check=True, stdout=subprocess.DEVNULL)
    finally:
        for process, _ in servers:
            end_tree(process.pid)


def _gym_servers(
    gym: str, url: str, folder: Path, address: str, node: int
) -> tuple[subprocess.Popen[bytes], int]:
    """The servers of a node, ready, and the port of their head."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["env", "start", "--config", str(folder / "gym.yaml"), "--model", "fast", "--model-url", url]
    words += ["--model-api-key", "none", f"+uv_venv_dir={folder / 'venvs'}", "+skip_venv_if_present=true"]
    words += [f"+head_server.port={port}", f"+ray_head_node_address={address}"]
    log = folder / f"servers-{node}-{port}.txt"
    with log.open("wb") as out:
        process = subprocess.Popen([gym, *words], stdout=out, stderr=out, cwd=folder)
    while b"servers ready! " not in log.read_bytes():
        if process.poll() is not None:
            raise SystemExit(f"the servers did not start: {log.read_text()[-300:]}")
        time.sleep(0.1)
    return process, port


def _gym_collector(gym: str, count: int, folder: Path, node: int, port: int) -> subprocess.Popen[bytes]:
    """Collects the tasks of a node. The numbers of tasks are those of the whole, as `eval aggregate` wants them."""
    shard = folder / "shards" / str(node)
    shard.mkdir(parents=True, exist_ok=True)
    keys = {"_ng_rollout_index": 0, "agent_ref": {"type": "responses_api_agents", "name": "asker"}}
    rows = (
        {"_ng_task_index": task, **keys, "responses_create_params": {"input": f"Say {task}."}}
        for task in range(node * count // GYM_NODES, (node + 1) * count // GYM_NODES)
    )
    (shard / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["eval", "run", "--no-serve", "--resume", "--disable-aggregation", f"+head_server.port={port}"]
    words += ["--input", str(shard / "tasks.jsonl"), "--output", str(shard / "rollouts.jsonl")]
    words += ["--concurrency", str(CONCURRENCY // GYM_NODES), "--no-health-check"]
    return subprocess.Popen([gym, *words], stdout=subprocess.DEVNULL, cwd=shard)


DRIVERS = {
    "nemo-gym": drive_nemo_gym,
    "datatrove": drive_datatrove,
    "ray.data.llm": drive_ray_data,
    "rollforge": drive_rollforge,
}


# -- what is in the output --------------------------------------------------------------------------------------------------


def rows_in(peer: str, folder: Path) -> Counter[int]:
    """How often each rollout is in the output that counts."""
    names = {
        "datatrove": "out/*.jsonl",
        "nemo-gym": "out/rollouts.jsonl",
        "ray.data.llm": "out/*.json",
        "rollforge": "out/rollouts.jsonl",
    }
    found: Counter[int] = Counter()
    for path in folder.glob(names[peer]):
        for line in path.read_bytes().splitlines():
            row = json.loads(line)
            found[int(row["_ng_task_index"] if "_ng_task_index" in row else row["id"])] += 1
    return found


def has_begun(peer: str, folder: Path) -> bool:
    """Whether there are results on disk, the time to kill a node."""
    parts = {
        "datatrove": "checkpoints/**/*",
        "nemo-gym": f"shards/{GYM_NODES - 1}/rollouts.jsonl",
        "ray.data.llm": "out/*",
        "rollforge": "out/shards/*/e1/rollouts.jsonl",
    }
    return any(path.is_file() and path.stat().st_size > 0 for path in folder.glob(parts[peer]))


# -- the cluster and its CPU ------------------------------------------------------------------------------------------------


class CpuWatch:
    """CPU seconds of everything that this process started, as last seen: a killed node takes its count along."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @property
    def total(self) -> float:
        self._look()
        return sum(self._seen.values())

    def _watch(self) -> None:
        while not self._ended.wait(0.2):
            self._look()

    def _look(self) -> None:
        self._seen |= cpu_below(os.getpid())


def cpu_below(root: int) -> dict[int, float]:
    """CPU seconds of every process below this one."""
    parents, cpu, tick = {}, {}, os.sysconf("SC_CLK_TCK")
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], cpu[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / tick
    below = {}
    for pid, used in cpu.items():
        above = pid
        while above in parents and above != root:
            above = parents[above]
        if above == root and pid != root:
            below[pid] = used
    return below


def end_tree(root: int) -> None:
    """Kill a process and all below it."""
    for pid in (*cpu_below(root), root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def measure(peer: str, url: str, count: int, folder: Path, *, kills: bool) -> dict[str, Any]:
    temporary = tempfile.mkdtemp(prefix="rp", dir="/tmp")  # sockets need short paths
    os.environ |= {"RAY_TMPDIR": temporary, "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    memory = 120 << 20
    head = {"num_cpus": 0, "temp_dir": f"{temporary}/ray", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head | {"object_store_memory": memory})
    try:
        # Ray Data needs CPUs for its own read and write tasks beside the actors; CPUs are only numbers here.
        nodes = [cluster.add_node(num_cpus=4, object_store_memory=memory) for _ in range(2)]
        watch = CpuWatch()
        before, begun, commands, code, said = watch.total, time.monotonic(), 0, -1, ""
        while code != 0 and commands < 2:
            process = _started(peer, url, count, folder, cluster.address)
            commands += 1
            while process.poll() is None:
                time.sleep(0.05)
                if kills and nodes and has_begun(peer, folder):
                    for pid in (folder / "node").read_text().split() if peer == "nemo-gym" else ():
                        end_tree(int(pid))  # what ran on the node; Gym has no Ray workers there
                    cluster.remove_node(nodes.pop(), allow_graceful=False)
                    cluster.add_node(num_cpus=4, object_store_memory=memory)
                    kills = False
                if time.monotonic() - begun > LIMIT_S:
                    end_tree(process.pid)
            code = process.wait()
            said = (folder / "stderr").read_text()[-300:] if code else said
        used, seconds = watch.total - before, time.monotonic() - begun
    finally:
        cluster.shutdown()
    if peer == "rollforge":
        subprocess.run([sys.executable, "-m", "rollforge", "merge", str(folder / "out")], capture_output=True)
    rows = rows_in(peer, folder)
    return {
        "commands": commands,
        "code": code,
        "lost": count - len(rows),
        "doubled": sum(rows.values()) - len(rows),
        "cpu_s": used,
        "seconds": seconds,
        "said": said,
    }


def _started(peer: str, url: str, count: int, folder: Path, address: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "benchmarks.scale_peer_loops", "drive", peer, url, str(count)]
    with (folder / "stderr").open("ab") as stderr:
        return subprocess.Popen([*words, str(folder), address], stdout=stderr, stderr=stderr)


def main() -> None:
    if sys.argv[1] == "drive":
        peer, url, count, folder, address = sys.argv[2:]
        DRIVERS[peer](url, int(count), Path(folder), address)
        return
    peer, url, count, folder, way = sys.argv[1:]
    print(json.dumps(measure(peer, url, int(count), Path(folder), kills=way == "kill")))


if __name__ == "__main__":
    main()
