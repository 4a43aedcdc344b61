"""Profile against the profiler people have today and against the floor: CPU and memory as ratios, measured in one run.

Every way runs in a process of its own; CPU is that of the process and its children, memory the peak of the largest. The baseline
needs pandas, orjson and wandb: give the Python that has them with --baseline-python, or leave it out to measure ours alone.

    python -m benchmarks.profile                      2,000 rows, a quick look
    python -m benchmarks.profile --tasks 6250 --samples 16 --baseline-python .venv-pandas/bin/python
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks import rows

ROOT = Path(__file__).resolve().parent.parent

SKIP = """
import sys, msgspec
class Nothing(msgspec.Struct): pass
skip = msgspec.json.Decoder(Nothing).decode
for line in open(sys.argv[1], "rb"): skip(line)
"""


class Cost(NamedTuple):
    """What one process took."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def measure(command: list[str]) -> Cost:
    """Run a command to its end; its output is dropped."""
    before = time.perf_counter()
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - before
    if status != 0:
        raise SystemExit(
            f"{' '.join(command)} failed: {child.stderr.read().decode()[-2000:] if child.stderr else ''}"
        )
    child.returncode = 0
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024)


def best(command: list[str], rounds: int, *, clear: Path | None = None) -> Cost:
    """The cheapest of several rounds: other work on the machine only ever adds."""
    found = []
    for _ in range(rounds):
        if clear is not None:
            shutil.rmtree(clear, ignore_errors=True)
        found.append(measure(command))
    return Cost(*(min(getattr(cost, name) for cost in found) for name in Cost._fields))


def write_inputs(path: Path, tasks: int, samples: int) -> None:
    """NeMo Gym's materialized inputs, which the baseline needs: the task once per rollout."""
    encode = rows._encode
    with path.open("wb") as file:
        for row in rows.rows(tasks, samples):
            kept = (
                "responses_create_params",
                "agent_ref",
                "expected_answer",
                "_ng_task_index",
                "_ng_rollout_index",
            )
            file.write(encode({key: row[key] for key in kept}) + b"\n")


def run(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """All measurements."""
    text = folder / "rollouts.jsonl"
    rows.write(text, options.tasks, options.samples)
    index = folder / "rollouts_index"
    ours = [sys.executable, "-m", "rollforge", "profile", str(text)]
    costs = {"skip": best([sys.executable, "-c", SKIP, str(text)], options.rounds)}
    costs["from text"] = best([*ours, "--workers", "1"], options.rounds, clear=index)
    costs["from text, 2 workers"] = best([*ours, "--workers", "2"], options.rounds, clear=index)
    costs["from index"] = best(ours, options.rounds)
    grow(text)
    costs["extend"] = measure(ours)
    costs["from the extended index"] = best(ours, options.rounds)
    if options.baseline_python:
        inputs = folder / "inputs.jsonl"
        write_inputs(inputs, options.tasks, options.samples)
        command = [
            options.baseline_python,
            "-m",
            "benchmarks.seed_profiler",
            str(inputs),
            str(text),
            str(folder / "seed"),
        ]
        costs["baseline"] = best(command, 1)
    return report(costs, text, options)


def grow(text: Path) -> None:
    """Add one per cent to the file: more rollouts of its first tasks."""
    with text.open("rb") as file:
        lines = file.read(text.stat().st_size // 100).rsplit(b"\n", 1)[0]
    with text.open("ab") as file:
        file.write(lines.replace(b'"_ng_rollout_index":', b'"_ng_rollout_index":9') + b"\n")


def report(costs: dict[str, Cost], text: Path, options: argparse.Namespace) -> dict[str, object]:
    """Costs and the ratios that matter."""
    made, indexed, floor = costs["from text"], costs["from index"], costs["skip"]
    ratios: dict[str, float] = {
        "from text / skipping the JSON, CPU": made.cpu_s / floor.cpu_s,
        "one worker / two workers, wall": made.wall_s / costs["from text, 2 workers"].wall_s,
        "extending by 1 % beyond a read / build": max(
            0.0, costs["extend"].cpu_s - costs["from the extended index"].cpu_s
        )
        / (made.cpu_s - indexed.cpu_s),
    }
    if "baseline" in costs:
        base = costs["baseline"]
        ratios |= {
            "baseline / from text, CPU": base.cpu_s / made.cpu_s,
            "baseline / from text, memory": base.peak_mb / made.peak_mb,
            "baseline / from index, CPU": base.cpu_s / indexed.cpu_s,
        }
    return {
        "rows": options.tasks * options.samples,
        "tasks": options.tasks,
        "bytes": text.stat().st_size,
        "costs": {
            name: {field: round(value, 3) for field, value in cost._asdict().items()}
            for name, cost in costs.items()
        },
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=125)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--baseline-python", help="a Python with pandas, orjson and wandb")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(options, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
