"""CPU of short commands, as a ratio against `python -c 'import asyncio'` in the same run, and in seconds.

    python -m benchmarks startup [--rounds 5]

The limit is 0.4 s of CPU for `rollforge --help`, `rollforge --version` and `rollforge status RUN`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rollforge.testing import Shape, healthy_run

LIMIT_S = 0.4


def cpu_seconds(words: list[str], rounds: int) -> float:
    """Least CPU time, user and system, of a process over several rounds."""
    found = []
    for _ in range(rounds):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, _, usage = os.wait4(process.pid, 0)
        process.returncode = 0  # waited for above
        found.append(usage.ru_utime + usage.ru_stime)
    return min(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    command = [sys.executable, "-P", "-m", "rollforge"]
    with tempfile.TemporaryDirectory() as folder:
        healthy_run(Shape(tasks=50, samples=4), seed=1).write(Path(folder) / "run")
        floor = cpu_seconds([sys.executable, "-c", "import asyncio"], rounds)
        print(f"floor: python -c 'import asyncio'   {floor:.3f} s of CPU")
        over = False
        for words in (["--help"], ["--version"], ["status", f"{folder}/run"]):
            seconds = cpu_seconds([*command, *words], rounds)
            over |= seconds > LIMIT_S
            verdict = "within" if seconds <= LIMIT_S else "OVER"
            print(
                f"rollforge {words[0]:<10} {seconds:.3f} s of CPU, {seconds / floor:.1f}x ({verdict} {LIMIT_S} s)"
            )
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
