"""Memory and cost as a run grows: peak memory and CPU per rollout at concurrency 1,000, and a plan over a very long task file.

Each size runs in a process of its own against the fast server, eight samples a task. The peak for a run too long to make here is
extrapolated from the slope between the sizes that were made; `--million` makes a million rollouts for real, with short answers.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
from pathlib import Path

from benchmarks.collect import cpu_s, fast_server, measure_part, peak_mb, write_tasks

SAMPLES = 8
CONCURRENCY = 1000
GOAL_TASKS = 1_000_000
GOAL_MB = 1024


def run_part(url: str, count: int) -> dict[str, float]:
    """A whole run with its closing metrics, in this process."""
    from rollforge.runtime.event_loop import run_async
    from rollforge.steps.collect import Collection, CollectOptions
    from rollforge.steps.metrics import summarize_run

    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder) / "tasks.jsonl"
        write_tasks(tasks, count // SAMPLES)
        options = CollectOptions(
            input=str(tasks),
            out=f"{folder}/run",
            model="fast",
            base_urls=(url,),
            api="responses",
            samples=SAMPLES,
            concurrency=str(CONCURRENCY),
            verifier="exact",
        )
        marks: list[float] = []
        result = run_async(Collection(options, on_start=lambda _: marks.append(cpu_s())).run())
        assert result.finished == count, result
        found = {"cpu_ms": (cpu_s() - marks[0]) * 1000 / count, "peak_mb": peak_mb()}
        before = cpu_s()
        summarize_run(options.out)
        return found | {"metrics_ms": (cpu_s() - before) * 1000 / count, "peak_with_metrics_mb": peak_mb()}


def plan_part(tasks: int) -> dict[str, float]:
    """A rehearsal of a long task file with short prompts: everything is read and checked, nothing is sent."""
    from rollforge.steps.collect import CollectOptions
    from rollforge.steps.collect.plan import make_plan

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.jsonl"
        with path.open("w") as file:
            for number in range(tasks):
                file.write(f'{{"prompt":"what is {number} plus one?","expected_answer":"{number + 1}"}}\n')
        before, started = peak_mb(), cpu_s()
        options = CollectOptions(input=str(path), out=f"{folder}/run", model="fast", samples=SAMPLES)
        plan = make_plan(
            options, needs=(), verifier_fingerprint=None, version="0", command=[], is_rehearsal=True
        )
        assert plan.owed(3) == tasks * SAMPLES
        plan.tasks.close()
        return {"growth_mb": peak_mb() - before, "cpu_us": (cpu_s() - started) * 1e6 / tasks}


measure = functools.partial(measure_part, "scale")


def growth(sizes: list[int], characters: int | None = None) -> None:
    """Runs of growing size, each compared with the first."""
    found = []
    with fast_server(characters) as url:
        for size in sizes:
            found.append(measure("run", url, str(size)))
            one = found[-1]
            print(
                f"{size:>9,} rollouts: {one['cpu_ms']:.3f} CPU ms each ({one['cpu_ms'] / found[0]['cpu_ms']:.2f}×), "
                f"peak {one['peak_mb']:.0f} MB, with the closing metrics {one['peak_with_metrics_mb']:.0f} MB "
                f"({one['metrics_ms'] * 1000:.0f} CPU µs each)",
                flush=True,
            )
    for name in ("peak_mb", "peak_with_metrics_mb"):
        # The slope of the last step: at the first sizes the allocator still settles.
        slope = max(0.0, (found[-1][name] - found[-2][name]) / (sizes[-1] - sizes[-2]))
        goal = found[-1][name] + slope * (GOAL_TASKS * SAMPLES - sizes[-1])
        print(
            f"{name}: {slope * 2**20:.0f} bytes a rollout; {GOAL_TASKS:,} tasks × {SAMPLES} would reach {goal:.0f} MB "
            f"(goal: under {GOAL_MB} MB)"
        )


def plans(sizes: list[int]) -> None:
    """A plan's memory per task."""
    for size in sizes:
        found = measure("plan", "", str(size))
        print(
            f"a plan over {size:,} tasks × {SAMPLES}: +{found['growth_mb']:.0f} MB "
            f"({found['growth_mb'] * 2**20 / size:.0f} bytes a task), {found['cpu_us']:.1f} CPU µs a task"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="+")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 40_000, 100_000])
    parser.add_argument("--plans", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--million", action="store_true", help="also a million rollouts, with short answers")
    parser.add_argument("--characters", type=int, help="of an answer (default: about 6 KB in all)")
    words = parser.parse_args()
    if words.part:
        kind, url, count = words.part
        print(json.dumps(run_part(url, int(count)) if kind == "run" else plan_part(int(count))))
        return
    plans(words.plans)
    growth(words.sizes, words.characters)
    if words.million:
        growth([words.sizes[0], 1_000_000], characters=200)


if __name__ == "__main__":
    main()
