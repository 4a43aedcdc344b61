"""Starts the real servers as processes, and says why one cannot be started here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests import servers

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
    here = Path(__file__).parent
    if name == "llama.cpp":
        words, model = [str(PYTHON), str(here / "llama_server.py")], "smollm2"
        after = [str(CONTEXT)]
    else:
        words = [
            str(VENV / "bin" / "transformers"),
            "serve",
            "--host",
            "127.0.0.1",
            "--device",
            "cpu",
            "--port",
        ]
        model, after = str(WEIGHTS), []
    cache = VENV / "hf"
    (cache / "hub").mkdir(parents=True, exist_ok=True)
    with servers.running(
        lambda port: [*words, str(port), *after],
        log,
        is_ready=_lists_models,
        environment={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)},
        seconds=START_S,
    ) as port:
        yield RealServer(name, f"http://127.0.0.1:{port}/v1", model)


def _lists_models(port: int) -> bool:
    with contextlib.suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=2):
        return True
    return False
