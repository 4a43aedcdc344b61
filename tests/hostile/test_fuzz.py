"""The compiled modules read generated and mutated input under the sanitizers for a few seconds; `make fuzz` takes longer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz.py"
SECONDS = "120" if "ROLLFORGE_TORTURE" in os.environ else "5"


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs a C compiler on Linux")
def test_the_sanitizers_find_nothing(tried: Callable[..., None]) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--seconds", SECONDS], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout
    tried(lines_under_sanitizers=int(done.stdout.split()[0].replace(",", "")))
