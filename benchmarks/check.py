"""Measures `check`: how often it finds each defect, how often it accuses a healthy run, and its cost at scale.

python -m benchmarks.check rates --runs 100
python -m benchmarks.check rates --runs 100 --healthy 0 --defects breaks-halfway times-out
python -m benchmarks.check stream
python -m benchmarks.check speed --rollouts 200000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Sequence

from rollforge.checks.building_blocks.stream import Watch
from rollforge.index import open_index
from rollforge.steps.check import CheckOptions, check_evidence, check_run
from rollforge.testing import DEFECTS, Shape, healthy_run, sick_run

_RANK = {"error": 0, "warning": 1, "note": 2}


def rates(runs: int, first_seed: int, healthy: int, defects: Sequence[str]) -> None:
    """Print the table of detection and false-alarm rates per check, and the seed of every run that was judged wrongly."""
    accused: Counter[str] = Counter()
    warned: Counter[str] = Counter()
    guilty = 0
    begun = time.process_time()
    for seed in range(first_seed, first_seed + healthy):
        report = check_evidence(healthy_run(seed=seed).evidence(), CheckOptions())
        errors = {finding.id for finding in report.at("error")}
        accused.update(errors)
        warned.update({finding.id for finding in report.at("warning")})
        guilty += bool(errors)
        for finding in report.at("error"):
            print(f"  healthy {seed}: {finding.id}: {finding.text[:150]}")
    print(
        f"healthy runs: {healthy}, with an error: {guilty} ({time.process_time() - begun:.0f} s CPU)",
        flush=True,
    )
    print(f"{'defect':<22} {'finding':<24} {'level':<8} {'found':>6} {'at all':>6} {'other errors'}")
    for defect in (DEFECTS[name] for name in defects or DEFECTS):
        found = at_all = 0
        others: Counter[str] = Counter()
        for seed in range(first_seed, first_seed + runs):
            report = check_evidence(sick_run(defect.name, seed=seed).evidence(), CheckOptions())
            levels = [item.level for item in report.findings if item.id == defect.finding]
            at_all += bool(levels)
            is_found = any(_RANK[level] <= _RANK[defect.level] for level in levels)
            found += is_found
            if not is_found:
                print(f"  {defect.name} {seed}: {', '.join(levels) or 'nothing'}")
            others.update({item.id for item in report.at("error")} - {defect.finding})
        more = ", ".join(f"{name} {count}" for name, count in others.most_common(3))
        print(
            f"{defect.name:<22} {defect.finding:<24} {defect.level:<8} {found:>6} {at_all:>6} {more}",
            flush=True,
        )
    print(f"{'check':<26} {'false errors':>12} {'warnings on healthy runs':>26}")
    for name in sorted(set(accused) | set(warned)):
        print(f"{name:<26} {accused[name]:>12} {warned[name]:>26}")


def speed(rollouts: int) -> None:
    """Print the CPU time of a whole check on a built index against one group-by over the same columns."""
    with tempfile.TemporaryDirectory() as folder:
        healthy_run(Shape(tasks=rollouts // 8, samples=8), seed=1).write(folder)
        with open_index(folder) as index:
            described = index.connection().execute("DESCRIBE rollouts").fetchall()
        numbers = [
            name
            for name, kind, *_ in described
            if kind in ("DOUBLE", "BIGINT") and name not in ("row", "task")
        ]
        chosen = ", ".join(f'avg("{name}"), min("{name}"), max("{name}")' for name in numbers)
        check_run(folder)  # imports, and files into the cache of the disk
        begun = time.process_time()
        with open_index(folder) as index:
            index.connection().execute(
                f"SELECT task, count(*), {chosen} FROM rollouts GROUP BY task"
            ).fetchnumpy()
        floor = time.process_time() - begun
        begun = time.process_time()
        check_run(folder)
        spent = time.process_time() - begun
    print(f"{rollouts:,} rollouts: group-by {floor:.2f} s CPU, check {spent:.2f} s CPU: {spent / floor:.1f}×")


def stream() -> None:
    """Print what the detectors of `collect` cost per rollout."""
    run = healthy_run(Shape(tasks=5000, samples=8), seed=1)
    names = ("task", "reward", "answer_hash", "is_empty", "verify_seconds")
    columns = [run.columns[name].tolist() for name in names]
    watch = Watch()
    begun = time.process_time()
    for task, reward, answer_hash, is_empty, seconds in zip(*columns, strict=True):
        watch.observe(
            task,
            None if reward != reward else reward,
            answer_hash=answer_hash,
            is_empty=is_empty,
            verify_seconds=seconds,
            at=begun,
            looks_right=lambda: False,
        )
    spent = (time.process_time() - begun) / len(run)
    print(f"watching: {spent * 1e6:.1f} µs CPU per rollout, light {watch.light}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rates", "speed", "stream"])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--healthy", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--defects", nargs="*", choices=list(DEFECTS), default=[])
    parser.add_argument("--rollouts", type=int, default=200_000)
    options = parser.parse_args()
    if options.what == "rates":
        rates(options.runs, options.seed, options.healthy, options.defects)
    elif options.what == "stream":
        stream()
    else:
        speed(options.rollouts)


if __name__ == "__main__":
    main()
