#!/usr/bin/env bash
# Makes .venv-gym: NeMo Gym 0.7.0 with its servers and shipped files, apart from rollforge's environment. tests/nemo_gym uses it.
# Needs Python 3.13; PYTHON313 names it. The release asks for 3.13.14, earlier ones of 3.13 work.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-gym
if [ -f "$venv/.ready" ] && [ "$venv/.ready" -nt scripts/nemo_gym.sh ]; then
  exit 0
fi
if ! python=$(bash scripts/find_python.sh 3.13); then
  echo "tests/nemo_gym will be skipped" >&2
  exit 0
fi
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --ignore-requires-python nemo-gym==0.7.0
touch "$venv/.ready"
