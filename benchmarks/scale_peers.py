"""Spread work side by side: `collect --on ray` against datatrove's Ray executor, `ray.data.llm`'s HTTP stage and NeMo Gym's shards.

The same fast server, the same number of rollouts, a cluster of two nodes on this machine. Calm runs give rollouts per CPU-second,
start-up included; runs with a killed node give the rows that are lost and doubled in the end. The peers live in `.venv-scale-peers`,
made here when it is absent (Python 3.13; PYTHON313 names it). A peer that does not run here is printed with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.collect import fast_server

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / ".venv-scale-peers"
PINS = Path(__file__).with_suffix(".txt")
"""datatrove 0.10.1, ray 2.60.0, nemo-gym 0.7.0 and what they need, frozen."""
PEERS = ("rollforge", "datatrove", "ray.data.llm", "nemo-gym")


def peer_python() -> str:
    """The interpreter of the peers' environment, installed on first use."""
    python, done = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".done"
    if not done.exists():
        found = subprocess.run(
            ["bash", str(ROOT / "scripts" / "find_python.sh"), "3.13"],
            check=True,
            capture_output=True,
            text=True,
        )
        print(f"making {ENVIRONMENT.name} (some minutes)", flush=True)
        subprocess.run([found.stdout.strip(), "-m", "venv", str(ENVIRONMENT)], check=True)
        install = ["-m", "pip", "install", "-q", "--no-deps", "--ignore-requires-python", "-r", str(PINS)]
        subprocess.run([str(python), *install], check=True)
        done.touch()
    return str(python)


def measured(peer: str, url: str, count: int, way: str) -> dict[str, Any]:
    """What one run of a peer gave; `why` when it gave nothing."""
    python = sys.executable if peer == "rollforge" else peer_python()
    with tempfile.TemporaryDirectory(prefix="rf-peers") as folder:
        words = [python, "-m", "benchmarks.scale_peer_loops", peer, url, str(count), folder, way]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"why": done.stderr.strip()[-300:]}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4_000, help="rollouts")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    options = parser.parse_args()
    with fast_server() as url:
        for peer in options.peers:
            for way in ("calm", "kill"):
                show(peer, way, options.count, measured(peer, url, options.count, way))


def show(peer: str, way: str, count: int, result: dict[str, Any]) -> None:
    """One line."""
    if "why" in result:
        print(f"{peer:<14} {way}: does not run here: {result['why']}", flush=True)
        return
    kept = count - result["lost"]
    if not kept:  # nothing ran: that is no loss by a kill
        print(f"{peer:<14} {way}: does not run here: no row was written; {result['said']}", flush=True)
        return
    print(
        f"{peer:<14} {way}: {kept / result['cpu_s']:,.0f} rollouts per CPU-second, {result['lost']:,} lost, "
        f"{result['doubled']:,} doubled, {result['commands']} commands, last exit code {result['code']}, "
        f"{result['seconds']:.0f} s, load {os.getloadavg()[0]:.0f}"
        + (f"; {result['said']}" if result["said"] else ""),
        flush=True,
    )


if __name__ == "__main__":
    main()
