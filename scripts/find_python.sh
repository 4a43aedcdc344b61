#!/usr/bin/env bash
# find_python.sh 3.13: print an interpreter of that version, or nothing with exit code 1. PYTHON313 names one; otherwise one on the path
# or one of pyenv's. A name on the path may be a shim that leads nowhere, so each candidate is started.
set -euo pipefail
version=$1
named=PYTHON${version/./}
for one in "${!named:-}" "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
  if [ "$("$one" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
    echo "$one"
    exit 0
  fi
done
echo "no Python $version here ($named names another place)" >&2
exit 1
