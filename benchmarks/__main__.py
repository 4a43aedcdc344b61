"""Every benchmark in its quick version, or one of them: `python -m benchmarks [NAME [--full | its own options]]`.

A benchmark is a module with a `main()` that reads its options from the command line. One that is absent is said to be.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

QUICK: dict[str, list[str]] = {
    "collect": ["--count", "4000", "--rounds", "2", "--growth", "20000"],
    "resume": ["--rows", "30000", "--rounds", "2"],
    "goal": ["--tasks", "600"],
    "server_metrics": ["--seeds", "1"],
    "scale": ["--sizes", "8000", "32000", "--plans", "100000", "400000"],
    "shards": ["--rows", "20000", "--count", "2000", "--verdicts", "100"],
    "programs": ["--calls", "1000", "--rollouts", "50", "200"],
    "verifiers": [],
    "verify": [],
    "profile": [],
    "prepare": [],
    "check": [],
    "monitor": [],
    "startup": [],
    "look": ["--rows", "100000"],
    "peers": ["--rollouts", "100", "300", "--concurrency", "64"],
}
"""What each is given for a quick run; `peers` comes last, because it installs the peers first."""

FULL: dict[str, list[str]] = {"look": ["--rows", "1000000"], "resume": ["--million"], "scale": ["--million"]}
"""What `--full` gives; the others' own defaults are their full version."""


def run(name: str, words: list[str]) -> int:
    """One benchmark in a process of its own."""
    if importlib.util.find_spec(f"benchmarks.{name}") is None:
        print(f"== {name}: not here, skipped", flush=True)
        return 0
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"== {name} {' '.join(words)} (load average {load})", flush=True)
    return subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *words], check=False).returncode


def main() -> int:
    words = sys.argv[1:]
    if not words:
        failed = [name for name, quick in QUICK.items() if run(name, quick)]
        if failed:
            print(f"failed: {', '.join(failed)}")
        return bool(failed)
    name, *rest = words
    if name not in QUICK:
        print(f"no benchmark {name!r}; there are {', '.join(QUICK)}")
        return 2
    if "--full" in rest:
        return run(name, [*FULL.get(name, []), *(word for word in rest if word != "--full")])
    return run(name, rest or QUICK[name])


if __name__ == "__main__":
    sys.exit(main())
