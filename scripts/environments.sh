#!/usr/bin/env bash
# Makes .venv-environments and .venv-environments-v1: rollforge beside the environment packages that `--env` speaks to, at exact
# versions. Their pins clash with ours and with each other (verifiers 0.3.1 is the last with version 0, 0.4.0 has version 1 alone), so
# they have environments of their own; tests/environments runs `rollforge` in them. Harbor, whose logs tests/importers reads, wants
# Python 3.12 or later (PYTHON312 names it) and is left out where there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
make_venv() {  # name, packages...
  local venv=$1
  shift
  if [ -f "$venv/.ready" ] && [ "$venv/.ready" -nt scripts/environments.sh ]; then
    return
  fi
  "${PYTHON:-python3}" -m venv "$venv"
  bash scripts/install.sh "$venv" "$@"
  bash scripts/install.sh "$venv" -e .
  touch "$venv/.ready"
}
make_venv .venv-environments verifiers==0.3.1 textarena==0.7.4 openenv==0.10.0 reasoning-gym
make_venv .venv-environments-v1 verifiers==0.4.0
if ! python312=$(bash scripts/find_python.sh 3.12 || bash scripts/find_python.sh 3.13); then
  echo "Harbor is not installed" >&2
elif [ ! -f .venv-harbor/.ready ] || [ scripts/environments.sh -nt .venv-harbor/.ready ]; then
  "$python312" -m venv .venv-harbor
  if bash scripts/install.sh .venv-harbor harbor==0.24.0; then
    touch .venv-harbor/.ready
  else
    echo "not installed: harbor" >&2
  fi
fi
