#!/usr/bin/env bash
# Makes .venv-trainers: the trainers' own loaders, on CPU, apart from rollforge's environment. tests/trainers runs them.
# torch is pinned to a version with a CPU build; OpenRLHF, verl, LLaMA-Factory and Axolotl are installed without what only a GPU
# or a cluster needs, since only their data code runs here.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-trainers
if [ -f "$venv/.ready" ] && [ "$venv/.ready" -nt scripts/trainers.sh ]; then
  exit 0
fi
"${PYTHON:-python3}" -m venv "$venv"
pip="bash scripts/install.sh $venv"
$pip torch==2.13.0
$pip trl==1.16.0 transformers==5.22.2 datasets==5.2.0  # verl 0.9.1 names classes that transformers 5.23 no longer has
$pip msgspec pytest  # with these the monitor's own code runs beside the trainers'
$pip aiohttp xxhash math-verify  # with these rollforge.rewards and its verifier math run inside the trainers
$pip tqdm pylatexenc requests pillow soundfile scipy absl-py && $pip --no-deps openrlhf==0.11.2
$pip tensordict hydra-core omegaconf pandas codetiming ray orjson && $pip --no-deps verl==0.9.1
$pip peft colorama addict && $pip --no-deps axolotl==0.19.0
$pip fire sse-starlette && $pip --no-deps llamafactory==0.9.5
touch "$venv/.ready"
