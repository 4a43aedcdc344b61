#!/usr/bin/env bash
# Builds the wheel and lists it with everything it brings along (no extras) as a CycloneDX bill of materials, in dist/.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/release"
"${PYTHON:-python3}" -m venv "$folder/tool"
"$folder/tool/bin/python" -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7,<8'
mkdir -p dist
"$folder/release/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .
wheel=$(ls -t dist/rollforge-*.whl | head -1)
"$folder/release/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel"
version=$("$folder/release/bin/rollforge" --version | sed -n "1s/^rollforge //p")
"$folder/tool/bin/cyclonedx-py" environment "$folder/release/bin/python" --pyproject pyproject.toml --mc-type application \
  --output-reproducible --of JSON -o "dist/rollforge-$version.cdx.json"
echo "wrote $wheel and dist/rollforge-$version.cdx.json"
