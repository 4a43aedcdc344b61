"""Profile against the profiler people have today and against the floor: CPU and memory as ratios, measured in one run.

Every way runs in a process of its own; CPU is that of the process and its children, memory the peak of the largest. The baseline
needs pandas, orjson and wandb: give the Python that has them with --baseline-python, or leave it out to measure ours alone. It was
written for pandas 2; with pandas 3 it takes two thirds of the time. Ours are to be compiled before (`python -m compileall src`)
where Python may not write what it compiles.

    python -m benchmarks.profile                      2,000 rows, a quick look
    python -m benchmarks.profile --tasks 6250 --samples 16 --baseline-python .venv-pandas/bin/python
    python -m benchmarks.profile --tasks 100000 --samples 1 --baseline-tasks 4000 --baseline-python .venv-pandas/bin/python

With --baseline-tasks the baseline profiles that many tasks and half as many, and its cost for all of them is reckoned from the
difference: it grows with the tasks, and a hundred thousand of them take it half an hour.
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
from benchmarks.limits import Limit, share, show

ROOT = Path(__file__).resolve().parent.parent

ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "OPENBLAS_NUM_THREADS": "1"}
"""Modules stay compiled, as an installation has them."""

SKIP = """
import sys, msgspec
class Nothing(msgspec.Struct): pass
skip = msgspec.json.Decoder(Nothing).decode
for line in open(sys.argv[1], "rb"): skip(line)
"""


OPEN = """
import sys, time
from rollforge.index import open_index
cpu, wall = time.process_time(), time.perf_counter()
open_index(sys.argv[1], workers=int(sys.argv[2])).close()
print(time.process_time() - cpu, time.perf_counter() - wall)
"""
"""Brings the index up to date; prints what that alone took, after imports."""

PROFILE = """
import sys, time
from pathlib import Path
from rollforge.index import open_index
from rollforge.steps.profile import profile_index, write_profile

def profile(run):
    with open_index(run) as index:
        write_profile(profile_index(index), index, out=Path(sys.argv[3]))

profile(sys.argv[1])
cpu, wall = time.process_time(), time.perf_counter()
profile(sys.argv[2])
print(time.process_time() - cpu, time.perf_counter() - wall)
"""
"""Profiles a small run, which imports everything, then a run from its index; prints what the second took, writing included."""


class Cost(NamedTuple):
    """What one process took."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def measure(command: list[str]) -> Cost:
    """Run a command to its end; its output is dropped."""
    before = time.perf_counter()
    child = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ENVIRONMENT
    )
    _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - before
    if status != 0:
        raise SystemExit(
            f"{' '.join(command)} failed: {child.stderr.read().decode()[-2000:] if child.stderr else ''}"
        )
    child.returncode = 0
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024)


class Way(NamedTuple):
    """One way of doing the work."""

    command: list[str]
    clear: Path | None = None
    """What is removed before."""


def best(ways: dict[str, Way], rounds: int) -> dict[str, Cost]:
    """The cheapest of several rounds: other work on the machine only ever adds.

    The ways take turns, so that what slows the machine down for a while slows all of them.
    """
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            if way.clear is not None:
                shutil.rmtree(way.clear, ignore_errors=True)
            found[name].append(measure(way.command))
    return {
        name: Cost(*(min(getattr(cost, field) for cost in costs) for field in Cost._fields))
        for name, costs in found.items()
    }


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
    ways = {
        "skip": Way([sys.executable, "-c", SKIP, str(text)]),
        "from text": Way([*ours, "--workers", "1"], clear=index),
        "from text, 2 workers": Way([*ours, "--workers", "2"], clear=index),
        "from index": Way(ours),
    }
    costs = best(ways, options.rounds)
    in_process = profile_in_process(text, folder, options.rounds)
    two_readers = gain_of_two_readers(text, index, options.rounds)
    extension = extend(text, index, options.rounds)
    if options.baseline_python:
        costs["baseline"] = baseline(options, folder)
    return report(costs, in_process, two_readers, extension, text, options)


def baseline(options: argparse.Namespace, folder: Path) -> Cost:
    """The profiler people have today, on all tasks or reckoned from some of them."""
    if not options.baseline_tasks:
        return measure_baseline(options, folder, options.tasks)
    half, whole = (measure_baseline(options, folder, options.baseline_tasks // part) for part in (2, 1))
    beyond = (options.tasks - options.baseline_tasks) / (options.baseline_tasks - options.baseline_tasks // 2)
    return Cost(*(many + beyond * (many - few) for few, many in zip(half, whole, strict=True)))


def measure_baseline(options: argparse.Namespace, folder: Path, tasks: int) -> Cost:
    text, inputs = folder / "baseline.jsonl", folder / "inputs.jsonl"
    rows.write(text, tasks, options.samples)
    write_inputs(inputs, tasks, options.samples)
    command = [options.baseline_python, "-m", "benchmarks.seed_profiler", str(inputs), str(text)]
    return measure([*command, str(folder / "seed")])


class Pass(NamedTuple):
    """What bringing the index up to date took."""

    cpu_s: float
    wall_s: float


def timed(code: str, *words: str) -> Pass:
    done = subprocess.run(
        [sys.executable, "-c", code, *words], check=True, capture_output=True, env=ENVIRONMENT
    )
    return Pass(*map(float, done.stdout.split()))


def bring_up_to_date(text: Path, workers: int = 1) -> Pass:
    return timed(OPEN, str(text), str(workers))


def profile_in_process(text: Path, folder: Path, rounds: int) -> Pass:
    """The profile of an up-to-date index, after imports."""
    small = folder / "small.jsonl"
    rows.write(small, 4, 4)
    bring_up_to_date(text)
    passes = [timed(PROFILE, str(small), str(text), str(folder / "profile")) for _ in range(rounds)]
    return Pass(min(one.cpu_s for one in passes), min(one.wall_s for one in passes))


def gain_of_two_readers(text: Path, index: Path, rounds: int) -> float:
    """How many times as long one reader takes as two, by the clock."""
    walls: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, found in walls.items():
            shutil.rmtree(index, ignore_errors=True)
            found.append(bring_up_to_date(text, workers).wall_s)
    return min(walls[1]) / min(walls[2])


def extend(text: Path, index: Path, rounds: int) -> float:
    """What one per cent more costs, as a share of the pass, CPU."""
    shares, size = [], text.stat().st_size
    for _ in range(rounds):
        shutil.rmtree(index, ignore_errors=True)
        whole = bring_up_to_date(text).cpu_s
        grow(text)
        shares.append((bring_up_to_date(text).cpu_s - bring_up_to_date(text).cpu_s) / whole)
        os.truncate(text, size)
    shutil.rmtree(index, ignore_errors=True)
    return min(shares)


def grow(text: Path) -> None:
    """Add one per cent to the file: more rollouts of its first tasks."""
    with text.open("rb") as file:
        lines = file.read(text.stat().st_size // 100).rsplit(b"\n", 1)[0]
    with text.open("ab") as file:
        file.write(lines.replace(b'"_ng_rollout_index":', b'"_ng_rollout_index":9') + b"\n")


def report(
    costs: dict[str, Cost],
    in_process: Pass,
    two_readers: float,
    extension: float,
    text: Path,
    options: argparse.Namespace,
) -> dict[str, object]:
    """Costs and the ratios that matter; prints the limits first."""
    made, floor = costs["from text"], costs["skip"]
    limits = [
        Limit("from text / skipping the JSON, CPU", made.cpu_s / floor.cpu_s, 1.5),
        Limit("one reader / two, wall of the pass in process", two_readers, 1.6, is_floor=True),
        Limit("peak memory from text, MB (a limit at 1M rows)", made.peak_mb, 400),
    ]
    if "baseline" in costs:
        base = costs["baseline"]
        limits.append(share("from text, CPU", made.cpu_s, base.cpu_s, 150 if options.samples == 1 else 50))
        limits.append(share("from text, memory", made.peak_mb, base.peak_mb, 20))
        limits.append(share("from an index in process, CPU", in_process.cpu_s, base.cpu_s, 200))
    show(limits)
    ratios = {
        "one worker / two workers, wall of the whole command": made.wall_s
        / costs["from text, 2 workers"].wall_s,
        "extending by 1 % / build, CPU": extension,
        **{one.name: one.measured for one in limits},
    }
    return {
        "rows": options.tasks * options.samples,
        "tasks": options.tasks,
        "bytes": text.stat().st_size,
        "profile from index, in process": {
            "cpu_s": round(in_process.cpu_s, 3),
            "wall_s": round(in_process.wall_s, 3),
        },
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
    parser.add_argument("--baseline-tasks", type=int, help="profile only so many with the baseline")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(run(options, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
