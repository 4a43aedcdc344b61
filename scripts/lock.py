"""Writes requirements-ci.txt: every package CI installs, at one version, with the hashes of its files.

The versions suit every Python from 3.11 on and every platform; `make locked` installs them with `--require-hashes`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements-ci.txt"
HEADER = "# What CI installs, with hashes. Written by `make lock`; do not edit.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder) / "build.in"
        build.write_text(
            "hatchling>=1.25\neditables>=0.5\n"
        )  # without build isolation, an editable install needs both
        words = ["--universal", "--python-version", "3.11", "--extra", "dev", "--extra", "sinks-test"]
        words += ["--extra", "integration"]
        words += ["--generate-hashes", "--no-header", "--no-annotate", "--upgrade", "--quiet"]
        made = Path(folder) / "made.txt"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "uv",
                "pip",
                "compile",
                "pyproject.toml",
                str(build),
                *words,
                "-o",
                str(made),
            ],
            cwd=ROOT,
            check=True,
        )
        LOCK.write_text(HEADER + made.read_text())
    print(f"wrote {LOCK.name}")


if __name__ == "__main__":
    main()
