"""Collect against a bare client loop: CPU per rollout, cost as rollouts grow, the resume scan, peak memory.

Each measured part runs in a process of its own, so that CPU and memory are its alone (children included).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROMPT_CHARACTERS = 2000


FILLER = ("Consider the following statement carefully before you answer. " * 40)[:PROMPT_CHARACTERS]


def prompt(number: int) -> str:
    """A prompt of about 2 KB."""
    return f"{number}: {FILLER}"


def write_tasks(path: Path, count: int) -> None:
    with path.open("w") as file:
        for number in range(count):
            file.write(json.dumps({"prompt": prompt(number), "expected_answer": "42"}) + "\n")


@contextlib.contextmanager
def fast_server(characters: int | None = None) -> Iterator[str]:
    """The base URL of a fast server in a child process; its answers are of about 6 KB by default."""
    words = [] if characters is None else ["--characters", str(characters)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.fast_server", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout and process.stdin
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
    finally:
        process.stdin.close()
        process.wait(10)


def measure_part(benchmark: str, *words: str) -> dict[str, float]:
    """Run one part of a benchmark in a child and return what it measured."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{benchmark}", "--part", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


measure = functools.partial(measure_part, "collect")


def cpu_s() -> float:
    return sum(
        use.ru_utime + use.ru_stime
        for use in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def bare_loop(url: str, count: int, concurrency: int) -> None:
    """Send the same requests and read the bytes; nothing else."""
    import aiohttp

    body = json.dumps(
        {"input": [{"role": "user", "content": "x" * PROMPT_CHARACTERS, "type": "message"}], "model": "fast"}
    ).encode()
    numbers = iter(range(count))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def work() -> None:
            for _ in numbers:
                async with session.post(
                    url + "/responses", data=body, headers={"Content-Type": "application/json"}
                ) as answer:
                    await answer.read()

        await asyncio.gather(*(work() for _ in range(concurrency)))


def part(kind: str, url: str, count: int, concurrency: int, verifier: str) -> None:
    """One measured part, in a process of its own; prints one JSON line."""
    from rollforge.runtime.event_loop import run_async

    if kind == "bare":
        started = cpu_s()
        run_async(bare_loop(url, count, concurrency))
        print(json.dumps({"cpu_ms": (cpu_s() - started) * 1000 / count, "peak_mb": peak_mb()}))
        return
    from rollforge.steps.collect import Collection, CollectOptions

    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder) / "tasks.jsonl"
        write_tasks(tasks, count)
        options = CollectOptions(
            input=str(tasks),
            out=f"{folder}/run",
            model="fast",
            base_urls=(url,),
            api="responses",
            concurrency=str(concurrency),
            verifier=verifier or None,
        )
        marks: list[float] = []
        began = time.monotonic()
        collection = Collection(options, on_start=lambda _: marks.append(cpu_s()))
        result = run_async(collection.run())
        assert result.finished == count, result
        spent = (cpu_s() - marks[0]) * 1000 / count
    print(json.dumps({"cpu_ms": spent, "peak_mb": peak_mb(), "wall_s": time.monotonic() - began}))


def compare(count: int, rounds: int) -> None:
    """CPU per rollout as a multiple of the bare loop, best of several rounds taken in turn."""
    with fast_server() as url:
        for concurrency in (64, 1024):
            bare, ours, isolated = [], [], []
            for _ in range(rounds):
                bare.append(measure("bare", url, str(count), str(concurrency), "")["cpu_ms"])
                ours.append(measure("ours", url, str(count), str(concurrency), "exact")["cpu_ms"])
                isolated.append(
                    measure("ours", url, str(count), str(concurrency), "benchmarks/verifier.py:verify")[
                        "cpu_ms"
                    ]
                )
            print(
                f"concurrency {concurrency:5d}: bare {min(bare):.3f} ms, collect {min(ours):.3f} ms "
                f"({min(ours) / min(bare):.2f}×), with a user's verifier in worker processes {min(isolated):.3f} ms "
                f"({min(isolated) / min(bare):.2f}×)"
            )


def growth(small: int, large: int) -> None:
    """Cost per rollout and peak memory as the run grows."""
    with fast_server() as url:
        first = measure("ours", url, str(small), "1000", "exact")
        second = measure("ours", url, str(large), "1000", "exact")
    print(
        f"growth {small:,} → {large:,}: {second['cpu_ms'] / first['cpu_ms']:.2f}× CPU per rollout; "
        f"peak {first['peak_mb']:.0f} → {second['peak_mb']:.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs=5)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--growth", type=int, default=50_000, help="rollouts of the larger run")
    words = parser.parse_args()
    if words.part:
        kind, url, count, concurrency, verifier = words.part
        part(kind, url, int(count), int(concurrency), verifier)
        return
    compare(words.count, words.rounds)
    growth(words.count, words.growth)


if __name__ == "__main__":
    main()
