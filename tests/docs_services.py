"""What some pages of the documentation need beside the embedded model: a Hub, a bucket, NeMo Gym's servers, an offline engine.

Each service says which printed addresses lead to it and which environment variables its commands need.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.agents.fake_gym import FakeAgent, FakeHead
from tests.fake_hub import TOKEN, FakeHub
from tests.servers import answers, free_port, running

GSM8K = [{"question": f"What is {n} + 1?", "answer": f"Add one.\n#### {n + 1}"} for n in range(12)]
CARD = b"""---
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train.jsonl
  - split: test
    path: main/test.jsonl
---
"""


@dataclass(frozen=True)
class Service:
    """One running service."""

    addresses: dict[str, str] = field(default_factory=dict)
    """What the page prints → where it really is."""
    environment: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def served(app: web.Application) -> Iterator[str]:
    """An application of aiohttp in a thread; its address."""
    loop, port = asyncio.new_event_loop(), free_port()
    runner = web.AppRunner(app)

    async def begin() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


@contextlib.contextmanager
def hub(folder: Path, python: str) -> Iterator[Service]:
    """A Hub that has openai/gsm8k and takes pushes."""
    with FakeHub() as fake:
        rows = b"".join(json.dumps(row).encode() + b"\n" for row in GSM8K)
        fake.add("openai/gsm8k", {"README.md": CARD, "main/train.jsonl": rows, "main/test.jsonl": rows})
        own = {"HF_ENDPOINT": fake.url, "HF_TOKEN": TOKEN, "HF_HOME": str(folder / "hf")}
        yield Service(
            environment={**own, "HF_HUB_DISABLE_XET": "1", "XDG_CACHE_HOME": str(folder / "hub-cache")}
        )


@contextlib.contextmanager
def bucket(folder: Path, python: str) -> Iterator[Service]:
    """An S3 server with the bucket `data`, in which tasks.jsonl is."""
    words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p"]
    with running(lambda port: [*words, str(port)], folder / "moto.log") as port:
        address = f"http://127.0.0.1:{port}"
        for path, body in (("data", b""), ("data/tasks.jsonl", (folder / "tasks.jsonl").read_bytes())):
            headers = {"Content-Type": "application/octet-stream"}  # a form is parsed, and lost
            put = urllib.request.Request(f"{address}/{path}", body, headers, method="PUT")
            urllib.request.urlopen(put).close()
        keys = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "a-secret-for-tests",
            "AWS_REGION": "us-east-1",
        }
        yield Service(
            environment={
                **keys,
                "AWS_ENDPOINT_URL": address,
                "AWS_ALLOW_HTTP": "true",
                "XDG_CACHE_HOME": str(folder / "bucket-cache"),
            }
        )


@contextlib.contextmanager
def gym(folder: Path, python: str) -> Iterator[Service]:
    """A resources server (our own `serve-verifier`), an agent server, and a head server that knows the first."""
    words = [python, "-m", "rollforge", "serve-verifier", "exact", "--port"]
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(
            running(lambda port: [*words, str(port)], folder / "verifier.log", cwd=folder)
        )
        parts = {
            "math_resources": {
                "resources_servers": {"math": {"entrypoint": "app.py", "host": "127.0.0.1", "port": port}}
            },
            "math_agent": {
                "responses_api_agents": {
                    "simple_agent": {
                        "entrypoint": "app.py",
                        "host": "127.0.0.1",
                        "port": 9,
                        "resources_server": {"type": "resources_servers", "name": "math_resources"},
                    }
                }
            },
        }
        head = stack.enter_context(served(FakeHead(parts).app))
        agent = stack.enter_context(served(FakeAgent().app))
        yield Service(
            {
                "http://localhost:11000": head,
                "http://localhost:12000": f"http://127.0.0.1:{port}",
                "http://localhost:13000": agent,
            }
        )


@contextlib.contextmanager
def ray(folder: Path, python: str) -> Iterator[Service]:
    """A Ray cluster of one node, and a folder that it shares with the driver."""
    place = Path(tempfile.mkdtemp(prefix="rf-ray"))  # its sockets need a short path
    log = folder / "ray.log"

    def words(port: int) -> list[str]:
        flags = {
            "num-cpus": 2,
            "include-dashboard": "false",
            "object-store-memory": 80 << 20,
            "port": port,
            "temp-dir": place / str(port),
            "dashboard-agent-listen-port": free_port(),
            # Ports of workers from the system, not from 10002 up as every other cluster of this machine takes them.
            "min-worker-port": 0,
            "max-worker-port": 0,
        }
        if _has(python, "grpc"):  # Ray refuses the port of a server that it cannot start
            flags["ray-client-server-port"] = free_port()
        given = [f"--{name}={value}" for name, value in flags.items()]
        return [
            python,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
            *given,
        ]

    def is_ready(port: int) -> bool:
        """The head answers before its node does."""
        return answers(port) and b"Ray runtime started" in log.read_bytes()

    try:
        # The token of another cluster of this user would be asked for.
        own = {"RAY_AUTH_MODE": "disabled"}
        with running(words, log, is_ready=is_ready, environment=own) as port:
            address = f"127.0.0.1:{port}"
            addresses = {"/shared/": f"{folder}/shared/", "10.0.0.5:6379": address}
            yield Service(addresses, {**own, "RAY_ADDRESS": address})
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def keys(folder: Path, python: str) -> Iterator[Service]:
    """Two keys, as a page names their variables."""
    yield Service(environment={"TEAM_A_KEY": "key-of-team-a", "TEAM_B_KEY": "key-of-team-b"})


@contextlib.contextmanager
def nothing(folder: Path, python: str) -> Iterator[Service]:
    """For programs that are installed or not."""
    yield Service()


SERVICES: dict[str, Callable[[Path, str], AbstractContextManager[Service]]] = {
    "hub": hub, "bucket": bucket, "gym": gym, "ray": ray, "keys": keys, "bwrap": nothing,
}  # fmt: skip


def missing(name: str, python: str) -> bool:
    """Whether the service cannot be had on this machine."""
    match name:
        case "bwrap":
            return shutil.which("bwrap") is None
        case "bucket":
            return importlib.util.find_spec("moto") is None or not _has(python, "obstore")
        case "ray":
            return not _has(python, "ray")
        case _:
            return False


def _has(python: str, package: str) -> bool:
    return not subprocess.run(
        [python, "-c", f"import {package}"], capture_output=True, check=False
    ).returncode


def run_batch(words: list[str], folder: Path, server: str) -> None:
    """`vllm run-batch -i REQUESTS -o RESULTS`, answered by the embedded model, the last request first."""
    source, target = (folder / words[words.index(flag) + 1] for flag in ("-i", "-o"))
    results = []
    for line in reversed(source.read_text().splitlines()):
        request = json.loads(line)
        call = urllib.request.Request(
            server.removesuffix("/v1") + request["url"],
            json.dumps(request["body"]).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(call, timeout=60) as answer:
            data = answer.read()
        body = json.loads(gzip.decompress(data) if answer.headers.get("Content-Encoding") == "gzip" else data)
        response = {"status_code": 200, "request_id": "1", "body": body}
        results.append(
            json.dumps({"id": "1", "custom_id": request["custom_id"], "response": response, "error": None})
        )
    target.write_text("\n".join(results) + "\n")


def environment_of(services: list[Service]) -> dict[str, str]:
    """This process's environment with what the services add, and without any real key of a Hub or a store."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "AWS_"))}
    return {**kept, **{key: value for service in services for key, value in service.environment.items()}}
