"""Exit codes that another signal must not replace."""

from __future__ import annotations

import subprocess
import sys

IMPATIENT = """
import atexit, os, signal, sys
from rollforge import cli

def interrupted(words):
    raise KeyboardInterrupt

cli.run = interrupted
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["rollforge", "list"]
cli.main()
"""


def test_a_further_interrupt_while_the_process_ends_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "")
