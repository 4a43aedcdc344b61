"""Verification against its floor: the bare call of the verifier in a loop.

CPU seconds of this process and its children, so that a worker's share counts too; each part runs in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rollforge.records import Response, Task
from rollforge.steps.verify import Verification, VerifyOptions
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.running.calling import LiveVerifier
from rollforge.verifiers.running.ready_verifier import make_judge

LANES = 64
SAMPLES = 16
DISTINCT = 4

TRIVIAL = "def verify(task, response):\n    return 1.0\n"
SLOW = """
import time
def verify(task, response):
    end = time.process_time() + 0.002
    while time.process_time() < end:
        pass
    return 1.0
"""


def cpu_seconds() -> float:
    """Of this process and of every child that has ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def response(text: str, number: int) -> Response:
    """An answer of about 2 KB, as a server sends it."""
    part = {
        "type": "output_text",
        "text": "Let me think about it step by step. " * 55 + text,
        "annotations": [],
    }
    item = {
        "type": "message",
        "id": f"msg_{number}",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    usage = {"input_tokens": 100, "output_tokens": 500, "total_tokens": 600}
    return Response({"id": f"resp_{number}", "status": "completed", "output": [item], "usage": usage})


def material(count: int, distinct: int) -> list[tuple[Task, Response]]:
    """Rollouts, 16 of each task, of which `distinct` differ."""
    found = []
    for number in range(count):
        index, sample = divmod(number, SAMPLES)
        if sample == 0:
            params = {"input": [{"role": "user", "content": f"{index}: " + "What is it, then? " * 100}]}
            options = [{"A": "one"}, {"B": "two"}, {"C": "three"}, {"D": "four"}]
            row = {"responses_create_params": params, "expected_answer": "B", "options": options}
            task = Task({**row, "grading_mode": "strict_single_letter_boxed"}, index)
        found.append((task, response(f"It is \\boxed{{{'ABCD'[sample % 4]}}} {sample % distinct}", number)))
    return found


async def judged(verifier: str, rollouts: list[tuple[Task, Response]], workers: int, **changes: Any) -> float:
    """CPU seconds for judging all of them, start and end of workers left out."""
    import msgspec

    judge = make_judge(msgspec.structs.replace(load_verifier(verifier), **changes), workers=workers)
    await judge.start()
    waiting = iter(rollouts)

    async def lane() -> None:
        for task, answer in waiting:
            await judge.judge(task, answer)

    for task, answer in rollouts[:64]:
        await judge.call_once(task, answer)
    before = cpu_seconds() + _live_children()
    await asyncio.gather(*(lane() for _ in range(LANES)))
    spent = cpu_seconds() + _live_children() - before
    await judge.close()
    return spent


def _live_children() -> float:
    """CPU seconds of workers that are still alive: children, and children of theirs."""
    ticks, total, waiting = 100, 0.0, ["self"]
    while waiting:
        pid = waiting.pop()
        for name in Path(f"/proc/{pid}/task").iterdir():
            waiting += (name / "children").read_text().split()
        if pid != "self":
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(words[11]) + int(words[12])) / ticks
    return total


def bare(verifier: str, rollouts: list[tuple[Task, Response]]) -> float:
    """CPU seconds for calling the verifier in a loop."""
    live = LiveVerifier(load_verifier(verifier))
    before = time.process_time()
    for task, answer in rollouts:
        live.judge_now(task, [answer])
    return time.process_time() - before


def part_handing(count: int, directory: Path) -> dict[str, float]:
    """What handing a verdict to a worker costs beyond the verifier, sharing included."""
    path = directory / "trivial.py"
    path.write_text(TRIVIAL)
    rollouts = material(count, SAMPLES)
    return {
        "bare_us": bare(f"{path}:verify", rollouts) / count * 1e6,
        "worker_us": asyncio.run(judged(f"{path}:verify", rollouts, 1)) / count * 1e6,
        "worker_unshared_us": asyncio.run(judged(f"{path}:verify", rollouts, 1, is_deterministic=False))
        / count
        * 1e6,
    }


def part_in_process(count: int, directory: Path) -> dict[str, float]:
    """Verdicts per CPU second of the ready verifiers, as `collect` runs them."""
    rollouts = material(count, SAMPLES)
    return {name: count / asyncio.run(judged(name, rollouts, 0)) for name in ("exact", "mcqa")}


def part_sharing(count: int, directory: Path) -> dict[str, float]:
    """16 samples with 4 distinct answers against judging each."""
    path = directory / "slow.py"
    path.write_text(SLOW)
    rollouts = material(count, DISTINCT)
    each = asyncio.run(judged(f"{path}:verify", rollouts, 1, is_deterministic=False))
    shared = asyncio.run(judged(f"{path}:verify", rollouts, 1))
    return {"shared_over_each": shared / each}


def part_step(count: int, directory: Path) -> dict[str, float]:
    """The whole of `rollforge verify` with a ready verifier against reading and judging the file in a plain loop."""
    with (
        (directory / "rollouts.jsonl").open("w") as rows,
        (directory / "rollouts_tasks.jsonl").open("w") as tasks,
    ):
        for number, (task, answer) in enumerate(material(count, DISTINCT)):
            row = {
                "_ng_task_index": task.index,
                "_ng_rollout_index": number % SAMPLES,
                "response": answer.raw,
            }
            rows.write(json.dumps({**row, "responses_create_params": task.params, "reward": None}) + "\n")
            if number % SAMPLES == 0:
                tasks.write(json.dumps({**task, "_ng_task_index": task.index}) + "\n")
    live = LiveVerifier(load_verifier("mcqa"))
    before = cpu_seconds()
    by_index = {
        row["_ng_task_index"]: Task(row)
        for row in map(json.loads, (directory / "rollouts_tasks.jsonl").open())
    }
    with (directory / "rollouts.jsonl").open() as file, (directory / "plain.jsonl").open("w") as out:
        for line in file:
            row = json.loads(line)
            (verdict,) = live.judge_now(by_index[row["_ng_task_index"]], [Response(row["response"])])
            out.write(json.dumps(verdict.to_fields()) + "\n")
    plain = cpu_seconds() - before
    before = cpu_seconds()
    asyncio.run(Verification(VerifyOptions(run=directory, verifier="mcqa")).run())
    return {"ours_over_plain_loop": (cpu_seconds() - before) / plain}


PARTS = {"handing": part_handing, "in-process": part_in_process, "sharing": part_sharing, "step": part_step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS)
    parser.add_argument("--count", type=int, default=16_000)
    words = parser.parse_args()
    if words.part:
        with tempfile.TemporaryDirectory() as directory:
            print(json.dumps(PARTS[words.part](words.count, Path(directory))))
        return
    found: dict[str, float] = {}
    for name in PARTS:
        count = words.count // 10 if name == "sharing" else words.count
        command = [sys.executable, "-m", "benchmarks.verify", "--part", name, "--count", str(count)]
        found |= json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    beyond = found["worker_us"] - found["bare_us"]
    print(f"handing a verdict to a worker: {beyond:.0f} µs of CPU beyond the verifier (at most 150)")
    print(f"  without looking for equal answers: {found['worker_unshared_us'] - found['bare_us']:.0f} µs")
    for name in ("exact", "mcqa"):
        print(f"{name} in process: {found[name]:,.0f} verdicts per CPU second (at least 20,000)")
    print(f"16 samples, 4 distinct answers: {found['shared_over_each']:.2f}× of judging each (about 0.25)")
    print(
        f"rollforge verify with mcqa: {found['ours_over_plain_loop']:.2f}× the CPU of a plain loop over json.loads"
    )


if __name__ == "__main__":
    main()
