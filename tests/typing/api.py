"""The public API as users write it: `mypy --strict` reads this file, nothing runs it.

Every public name is used once, with the types that users rely on. A change that breaks one of these lines breaks users.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import rollforge as rf
from rollforge.agents.base import Preparation, Trajectory
from rollforge.buffer import Batch, Experience, open_buffer
from rollforge.metrics import StepFold, TrainerBatch, trainer_metrics
from rollforge.operators.chain import pipeline_from_config
from rollforge.rewards import reward
from rollforge.simulate import SimulatedProcess, SimulatedServer, SimulateOptions
from rollforge.sinks.base import SinkOptions, open_sinks
from rollforge.steps.check import check_run
from rollforge.steps.prepare import prepare, trace


def verify(task: rf.Task, response: rf.Response) -> dict[str, float]:
    """A verifier with types."""
    assert_type(task.prompt, str)
    assert_type(response.text, str)
    expected = str(task["expected_answer"])
    return {"reward": float(response.text.endswith(expected)), "calls": float(len(response.tool_calls))}


def collect_and_read() -> None:
    """Collect, then ask the run for everything."""
    run = rf.collect(
        "tasks.jsonl",
        model="Qwen/Qwen3-8B",
        base_url=["http://localhost:8000/v1"],
        verifier=verify,
        samples=8,
        out=Path("runs/math"),
        limit=100,
        concurrency="auto",
    )
    assert_type(run, rf.Run)
    reward = run.metrics(where="turns < 5").fields["reward"]
    assert_type(reward.mean, float | None)
    report = run.check("grpo")
    assert_type(report.ok, bool)
    assert_type(int(report.exit_code), int)
    assert_type([finding.text for finding in report.findings], list[str])
    assert_type(run.metrics()["reward"].n, int)
    assert_type(run.outcome.ok, bool)
    assert_type(len(run.rollouts.where("reward > 0").select("task")), int)
    for one in run.failures:
        assert_type(one, dict[str, object])
    run.query("select 1").to_pylist()
    run.show(suspicious=True, limit=3)
    assert_type(run.verify("exact", verify_timeout="10s", failed_only=True).judged, int)
    run.experiences(out="experiences.jsonl", step_size=8)
    run.profile().tasks.to_pandas()
    run.prepare("dpo", to="trl", out="data/dpo", min_gap=0.3)
    run.status()
    for row in rf.open_run(["runs/a", "runs/b"]):
        assert_type(row, dict[str, Any])
    assert_type(rf.__version__, str)


def keywords() -> None:
    """Keywords of the command line; a wrong name or type is an error of the type checker."""
    rf.collect(
        [{"prompt": "2+2?"}], model="m", out="runs/a", k=8, temperature=0.7, deadline="8h", strict=True
    )
    rf.collect(iter([{}]), model="m", out="runs/a", temprature=0.7)  # type: ignore[call-arg]
    rf.collect([{}], model="m", out="runs/a", attempts="three")  # type: ignore[arg-type]
    rf.open_run("runs/a").prepare("dpo", to="trl", out="data", min_gapp=1)  # type: ignore[call-arg]
    result = rf.evaluate({"sums": "sums.jsonl"}, model="m", k=4, verifier={"sums": "math"}, temperature=0.0)
    assert_type(result.run, rf.Run)
    assert_type(result["sums"].tasks, int)
    benched = rf.bench("sums.jsonl", models=["base=a", "trained=b"], require=["trained > base"])
    assert_type(benched["base"].run, rf.Run)


async def awaited() -> None:
    """The async forms return what the sync ones return."""
    assert_type(await rf.collect_async("tasks.jsonl", model="m", out="runs/a"), rf.Run)
    assert_type((await rf.evaluate_async("a.jsonl", model="m")).run, rf.Run)
    await rf.open_run("runs/a").verify_async("exact")
    await rf.open_run("runs/a").probe_async("exact", limit=20)


def rewards() -> None:
    """A verifier as a trainer's reward."""
    assert_type(reward("math")(prompts=["q"], completions=["a"], expected_answer=["a"]), list[float | None])
    reward.from_dataset("data/grpo", on_change="warn", timeout_s=5)


def judge(verdict: rf.Verdict) -> float | None:
    """A reward that is None is not zero."""
    return verdict.reward


def steps() -> None:
    """Steps without the `Run` object, and errors."""
    try:
        check_run("runs/math", recipe="grpo")
        prepare("dpo", "runs/math", to="trl", out="data/dpo", min_gap=0.3, split=(0.98, 0.02))
        trace("data/dpo/train.jsonl:7")
    except rf.RollforgeError as error:
        assert_type(error.hint, str | None)
        raise


def learn() -> None:
    """A training loop on the buffer."""
    buffer = open_buffer("runs/buffer.db", capacity=50_000)
    batch = buffer.claim(64, sampler="staleness", version=0, timeout=600)
    if batch is not None:
        assert_type(batch, Batch)
        kept, metrics = pipeline_from_config([{"use": "zero_signal_filter"}]).run(batch.experiences)
        assert_type(kept, list[Experience])
        with open_sinks(["jsonl"], SinkOptions(directory=Path("out"))) as sinks:
            sinks.log(metrics, step=1)
        buffer.acknowledge(batch)
    fold = StepFold()
    fold.add("T1", {"accuracy": 0.8})
    assert_type(fold.metrics("rollout"), dict[str, float])
    assert_type(trainer_metrics(TrainerBatch(prompt_lengths=[3], response_lengths=[2])), dict[str, float])


async def simulated() -> None:
    """The embedded model, in this event loop and in a process of its own."""
    async with SimulatedServer(SimulateOptions(latency=0.1)) as server:
        assert_type(server.base_url, str)
    with SimulatedProcess(SimulateOptions(seed=1)) as process:
        assert_type(process.base_url, str)


class TwoTries:
    """An agent with types."""

    name = "two_tries"

    async def prepare(self) -> Preparation:
        return Preparation(fingerprint={"max_turns": 2})

    async def run(self, task: rf.Task, sample: int) -> Trajectory:
        raise NotImplementedError
