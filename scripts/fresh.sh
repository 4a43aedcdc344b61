#!/usr/bin/env bash
# Makes .venv-fresh: the wheel and the extras that the pages name, as a newcomer installs them. The code blocks of README and docs run in it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --clear .venv-fresh
.venv-fresh/bin/python -m pip --quiet --disable-pip-version-check wheel --no-deps --wheel-dir "$folder" .
bash scripts/install.sh .venv-fresh "$(ls "$folder"/rollforge-*.whl)[math,json-schema,template,tokenizer,reasoning-gym,tensorboard,prices,hub,cloud,ray]"
