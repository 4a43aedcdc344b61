"""Shards and workers as ratios in one run: merge against `cat` + fsync, collecting by two processes, verdicts by more workers.

The machine's cores bound what can be shown: a CPU-bound ratio of 1.8 needs two idle ones. Verdicts that wait scale beyond that.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.collect import fast_server
from benchmarks.limits import Limit, show
from benchmarks.scale_out import bucket_limits, ray_limits, take_over_limits
from rollforge.store.shard_plan import ShardPlan, create_plan, even_ranges
from rollforge.store.shard_storage import DiskStorage
from rollforge.store.shards import take

ROW_BYTES = 2_000
REPEATS = 5
"""Times that a merge and its floor are measured in turn; the least of each counts."""
PROGRAM = (sys.executable, "-m", "rollforge")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rollouts of the merged run")
    parser.add_argument(
        "--count", type=int, default=4_000, help="rollouts collected by one and by two processes"
    )
    parser.add_argument(
        "--verdicts",
        type=int,
        default=2_000,
        help="verdicts given by one and eight waiting workers; four times as many by one and two busy ones",
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help="some parts: merge collect verify bucket ray take-over"
    )
    options = parser.parse_args()
    limits = []
    with tempfile.TemporaryDirectory(prefix="rf-shards") as name:
        folder = Path(name)
        parts = {
            "merge": lambda: merge(folder, options.rows),
            "collect": lambda: collect(folder, options.count),
            "verify": lambda: verify(folder, options.verdicts),
            "bucket": lambda: bucket_limits(folder, min(options.rows, 16_000)),
            "ray": lambda: ray_limits(folder, options.count),
            "take-over": lambda: take_over_limits(folder),
        }
        for part in options.only or parts:
            limits += parts[part]()
    show(limits)


def merge(folder: Path, rows: int) -> list[Limit]:
    """`merge` in a process of its own: time against `cat` + fsync, and its peak memory."""
    run = folder / "merged"
    write_shards(run, rows)
    parts = sorted(run.glob("shards/*/e1/rollouts.jsonl"))
    code = (
        "import resource, sys, time; from rollforge.steps.merge import merge_run; begun = time.perf_counter();"
        "merge_run(sys.argv[1]); print(time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    floors, output = [], []
    for _ in range(REPEATS):  # in turn, so that other work on the machine meets both
        floors.append(timed(lambda: concatenate(parts, folder / "all.jsonl")))
        words = [sys.executable, "-c", code, str(run)]
        output.append(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())
        (run / "rollouts.jsonl").unlink()
    best, seconds = min(floors), min(float(one[0]) for one in output)
    memory = max(int(one[1]) for one in output)
    size = sum(path.stat().st_size for path in parts)
    print(
        f"merge      {rows:,} rollouts, {size / 1e6:,.0f} MB: {seconds:.2f} s, cat + fsync {best:.2f} s: "
        f"{seconds / best:.2f}× (1.5); {memory / 1024:,.0f} MB (200)"
    )
    shutil.rmtree(run)
    return [
        Limit("merge against cat + fsync", seconds / best, 1.5),
        Limit("merge: MB", memory / 1024, 200),
    ]


def write_shards(run: Path, rows: int, samples: int = 8) -> None:
    """A finished run of shards, its rows in the order in which they might have arrived."""
    tasks = rows // samples
    run.mkdir()
    (run / "rollouts_tasks.jsonl").write_text(
        "".join(f'{{"_ng_task_index":{task}}}\n' for task in range(tasks))
    )
    (run / "rollouts_run.json").write_text(json.dumps({"rollforge": "0"}))
    size = (run / "rollouts_tasks.jsonl").stat().st_size
    place = DiskStorage(run / "shards")
    ranges = even_ranges(tasks, max(1, rows // 2000))
    plan = ShardPlan(
        run="r",
        created=1.0,
        fingerprint={},
        tasks=tasks,
        samples=samples,
        tasks_bytes=size,
        tasks_sha256="",
        ranges=ranges,
    )
    create_plan(place, plan)
    filler = "x" * (ROW_BYTES - 60)
    for shard, within in enumerate(plan.ranges):
        lease = take(place, plan, shard)
        assert lease is not None
        path = place.root / lease.folder / "rollouts.jsonl"
        path.parent.mkdir(parents=True)
        keys = [(task, sample) for sample in range(samples) for task in range(within.first, within.end)]
        path.write_text(
            "".join(f'{{"_ng_task_index":{t},"_ng_rollout_index":{s},"text":"{filler}"}}\n' for t, s in keys)
        )
        lease.end("complete", finished=len(keys))


def concatenate(parts: list[Path], target: Path) -> None:
    """The floor: the same bytes, copied and synced."""
    with target.open("wb") as file:
        subprocess.run(["cat", *map(str, parts)], stdout=file, check=True)
        os.fsync(file.fileno())
    target.unlink()


def timed(work: object) -> float:
    begun = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - begun


def collect(folder: Path, count: int) -> list[Limit]:
    """Rollouts per second of one process, one worker and two, on a server that costs next to nothing."""
    tasks = folder / "tasks.jsonl"
    row = {"responses_create_params": {"input": "Say 1."}, "expected_answer": "1"}
    tasks.write_text((json.dumps(row) + "\n") * (count // 4))
    speeds, cpus = {}, {}
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    with fast_server() as url:
        for name, more in (
            ("one process", ()),
            ("1 worker", ("--workers", "1")),
            ("2 workers", ("--workers", "2")),
        ):
            out = folder / name.replace(" ", "-")
            words = [
                *PROGRAM,
                "collect",
                "-i",
                str(tasks),
                "-o",
                str(out),
                "-m",
                "fast",
                "--base-url",
                url,
                "-k",
                "4",
                "-c",
                "64",
            ]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            output = subprocess.run(
                [*words, "--no-verify", "--json", *more], check=True, capture_output=True, text=True
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            metrics = json.loads(output.stdout)["metrics"]["throughput"]
            speeds[name], cpus[name] = metrics["rollouts_per_s"], cpu / count
            print(
                f"collect    {name:<12} {metrics['rollouts_per_s']:,.0f} rollouts/s, {cpu / count * 1e6:,.0f} µs of CPU per rollout"
            )
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    all_cpu = ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime
    server = all_cpu / count / len(cpus) - sum(cpus.values()) / len(cpus)
    ratio, load = speeds["2 workers"] / speeds["1 worker"], os.getloadavg()[0]
    print(
        f"           load {load:.1f} on {os.cpu_count()} cores; the server took {server * 1e6:,.0f} µs of CPU per rollout, and"
        " the ratio needs two idle cores beside its own"
    )
    return [
        Limit("collect, two processes: rollouts per second against one", ratio, 1.8, is_floor=True),
        Limit(
            "collect, two processes: CPU per rollout against one", cpus["2 workers"] / cpus["1 worker"], 1.1
        ),
    ]


def verify(folder: Path, count: int) -> list[Limit]:
    """A verifier that computes, by 1 and 2 workers, and one that waits, by 1 and 8: seconds of the whole command.

    Starting eight processes on two cores takes seconds of its own, so few verdicts (`--verdicts`) measure mostly that. The rate
    between the first and the last verdict is printed beside it.
    """
    limits = []
    run = folder / "verified"
    run.mkdir()
    answer = {
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "1"}]}
        ]
    }
    (folder / "busy.py").write_text(
        "def verify(task, response):\n    return float(sum(range(400_000)) > 0)\n"
    )
    (folder / "waits.py").write_text(
        "import time\ndef verify(task, response):\n    time.sleep(0.1)\n    return 1.0\n"
    )
    for name, counts, goal, verdicts in (("busy", (1, 2), 1.8, 4 * count), ("waits", (1, 8), 7.0, count)):
        rows = [
            {
                "_ng_task_index": n,
                "_ng_rollout_index": 0,
                "responses_create_params": {"input": f"{n}"},
                "response": answer,
            }
            for n in range(verdicts)
        ]
        (run / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        rates, seconds = [], []
        for workers in counts:
            words = [
                *PROGRAM,
                "verify",
                str(run),
                "--verifier",
                f"{folder / name}.py:verify",
                "--fresh",
                "--json",
            ]
            words += ["--workers", str(workers), "--verify-workers", "1"]
            output = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            seconds.append(output["seconds"])
            rates.append(verdicts_per_s(run / "rollouts_verdicts.jsonl"))
            (run / "rollouts_verdicts.jsonl").unlink()
        print(
            f"verify     {name:<12} {counts[0]} → {counts[1]} workers: {seconds[0]:.1f} → {seconds[1]:.1f} s; "
            f"without the start {rates[1] / rates[0]:.2f}×"
        )
        limits.append(
            Limit(
                f"verify, {name}: {counts[0]} → {counts[1]} workers",
                seconds[0] / seconds[1],
                goal,
                is_floor=True,
            )
        )
    return limits


def verdicts_per_s(path: Path) -> float:
    """The rate between the first and the last verdict of a file."""
    at = sorted(json.loads(line)["at"] for line in path.read_bytes().splitlines())
    return (len(at) - 1) / (at[-1] - at[0])


if __name__ == "__main__":
    main()
