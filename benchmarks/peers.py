"""CPU per rollout of collect against verifiers' and inspect_ai's own evaluation loops, on the same server in the same run.

The peers live in an environment of their own, `.venv-peers`, made here when it is absent. Each loop is a whole process; two sizes
are run, and their difference leaves out start-up and imports, which are printed as well. CPU is that of the process and its children.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.collect import fast_server, write_tasks

ENVIRONMENT = Path(__file__).parent.parent / ".venv-peers"
PINS = Path(__file__).with_suffix(".txt")
"""verifiers 0.1.14, inspect_ai 0.3.285 and what they need, frozen: resolving it anew takes minutes of CPU."""
PEERS = ("verifiers", "inspect_ai")
GOAL = 30
OUR_FACTOR = 10
"""Our runs are this many times longer: a few hundred rollouts of ours are lost in the noise."""


def peer_python() -> str:
    """The interpreter of the peers' environment, installed on first use."""
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / ".done"
    if not done.exists():
        print(f"making {ENVIRONMENT.name} with {' and '.join(PEERS)} (some minutes)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", "-r", str(PINS)], check=True)
        done.touch()
    return str(python)


def cpu_of(command: list[str]) -> tuple[float, str]:
    """CPU seconds of a process and the children it waited for, and its last line."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
        _, status, use = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        text = out.read().strip()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command[:4])} failed:\n{errors.read()[-3000:]}")
        return use.ru_utime + use.ru_stime, text.splitlines()[-1] if text else ""


def peer_cpu(peer: str, url: str, count: int, concurrency: int) -> float:
    cpu, line = cpu_of(
        [peer_python(), "-m", "benchmarks.peer_loops", peer, url, str(count), str(concurrency)]
    )
    found = json.loads(line)
    if found != {"scored": count, "mean": 1.0}:
        raise RuntimeError(f"{peer} did not score every rollout: {found}")
    return cpu


def our_cpu(url: str, count: int, concurrency: int, workers: str) -> float:
    """`rollforge collect` as a user runs it, closing metrics included."""
    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder) / "tasks.jsonl"
        write_tasks(tasks, count)
        words = ["-i", str(tasks), "-o", f"{folder}/run", "-m", "fast", "--base-url", url]
        words += ["--api", "responses", "-c", str(concurrency), "--progress", "none", "--json"]
        words += ["--verifier", "benchmarks/verifier.py:verify", "--verify-workers", workers]
        return cpu_of([sys.executable, "-m", "rollforge", "collect", *words])[0]


def compare(sizes: list[int], concurrency: int, peers: list[str]) -> None:
    """One table: CPU ms per rollout by slope and with start-up, and the peers' as multiples of ours."""
    small, large = sizes
    with fast_server() as url:
        ours = {}
        for label, workers in (("collect, verifier inline", "0"), ("collect, verifier isolated", "auto")):
            first = our_cpu(url, small * OUR_FACTOR, concurrency, workers)
            last = our_cpu(url, large * OUR_FACTOR, concurrency, workers)
            slope = (last - first) * 1000 / ((large - small) * OUR_FACTOR)
            whole = our_cpu(url, large, concurrency, workers) * 1000 / large
            ours[label] = slope, whole
            print(
                f"concurrency {concurrency}: {label}: {slope:.2f} ms ({whole:.2f} with start-up over {large} rollouts)",
                flush=True,
            )
        for peer in peers:
            try:
                first, last = (peer_cpu(peer, url, size, concurrency) for size in (small, large))
            except RuntimeError as error:
                print(f"{peer}: could not be measured: {error}")
                continue
            slope, whole = (last - first) * 1000 / (large - small), last * 1000 / large
            ratios = ", ".join(
                f"{slope / mine:.0f}× {label} ({whole / mine_whole:.0f}× with start-up)"
                for label, (mine, mine_whole) in ours.items()
            )
            print(
                f"concurrency {concurrency}: {peer}: {slope:.1f} ms ({whole:.1f} with start-up) = {ratios}; goal {GOAL}×",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rollouts", type=int, nargs=2, default=[200, 600], help="the two sizes for the peers"
    )
    parser.add_argument("--concurrency", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    words = parser.parse_args()
    peer_python()
    for concurrency in words.concurrency:
        compare(words.rollouts, concurrency, words.peers)


if __name__ == "__main__":
    main()
