"""The peers' own evaluation loops over the same tasks as ours: one model call and a trivial check of its text.

Runs in the peers' environment, without rollforge: `python -m benchmarks.peer_loops {verifiers,inspect_ai} URL COUNT CONCURRENCY`.
Prints one JSON line: how many rollouts were scored, and their mean. The CPU is measured from outside.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

from benchmarks.collect import prompt

ANSWER = "{42}"


def with_verifiers(url: str, count: int, concurrency: int) -> tuple[int, float]:
    """`evaluate` of a single-turn environment; results stay in memory, nothing is saved."""
    import asyncio

    from datasets import Dataset
    from verifiers.types import ClientConfig

    import verifiers as vf

    def has_answer(completion, answer) -> float:  # type: ignore[no-untyped-def]
        return float(answer in str(completion[-1]["content"]))

    rows = [{"question": prompt(number), "answer": ANSWER} for number in range(count)]
    environment = vf.SingleTurnEnv(eval_dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[has_answer]))
    client = ClientConfig(api_key_var="OPENAI_API_KEY", api_base_url=url)

    async def evaluate():  # type: ignore[no-untyped-def]
        return await environment.evaluate(client, "fast", max_concurrent=concurrency)

    rewards = [float(output["reward"]) for output in asyncio.run(evaluate())["outputs"]]
    return len(rewards), sum(rewards) / max(len(rewards), 1)


def with_inspect_ai(url: str, count: int, concurrency: int) -> tuple[int, float]:
    """`eval` of a task with `generate` and the `includes` scorer; its log goes to a temporary folder."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    samples = [Sample(input=prompt(number), target=ANSWER, id=number) for number in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        [log] = eval(
            Task(dataset=MemoryDataset(samples), solver=generate(), scorer=includes()),
            model="openai/fast",
            model_base_url=url,
            max_connections=concurrency,
            max_samples=concurrency,
            display="none",
            log_dir=folder,
        )
    # The log's own totals: its samples would be read back from disk, which is no part of the loop.
    if log.status != "success" or log.results is None:
        raise SystemExit(f"inspect_ai: {log.status}: {log.error}")
    return log.results.completed_samples, float(log.results.scores[0].metrics["accuracy"].value)


LOOPS = {"verifiers": with_verifiers, "inspect_ai": with_inspect_ai}


if __name__ == "__main__":
    os.environ["OPENAI_API_KEY"] = "none"
    peer, url, count, concurrency = sys.argv[1:]
    scored, mean = LOOPS[peer](url, int(count), int(concurrency))
    print(json.dumps({"scored": scored, "mean": mean}))
