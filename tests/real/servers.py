"""Starts the real servers as processes, and says why one cannot be started here."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-real"
PYTHON = VENV / "bin" / "python"
WEIGHTS = VENV / "smollm2"
START_S = 120.0
CONTEXT = 1024


@dataclass(frozen=True)
class RealServer:
    """A running server."""

    name: str
    base_url: str
    model: str


def reason_to_skip(name: str) -> str | None:
    """Why the server cannot run here; None when it can."""
    if not (VENV / ".ready").exists():
        return "scripts/real_servers.sh makes the environment"
    if name == "transformers-serve" and not (WEIGHTS / "config.json").exists():
        return "transformers serve was left out of .venv-real"
    return None


@contextlib.contextmanager
def running(name: str, log: Path) -> Iterator[RealServer]:
    """The server as a process of its own; it is killed at the end."""
    port = free_port()
    here = Path(__file__).parent
    if name == "llama.cpp":
        command = [str(PYTHON), str(here / "llama_server.py"), str(port), str(CONTEXT)]
        server = RealServer(name, f"http://127.0.0.1:{port}/v1", "smollm2")
    else:
        command = [
            str(VENV / "bin" / "transformers"),
            "serve",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--device",
            "cpu",
        ]
        server = RealServer(name, f"http://127.0.0.1:{port}/v1", str(WEIGHTS))
    cache = VENV / "hf"
    (cache / "hub").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            _await_answer(process, port, log)
            yield server
        finally:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended: {log.read_text(errors='replace')[-1000:]}")
        with contextlib.suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2):
            return
        time.sleep(0.2)  # another program's start: there is nothing to wait on but its port
    raise RuntimeError(f"the server did not start: {log.read_text(errors='replace')[-1000:]}")
