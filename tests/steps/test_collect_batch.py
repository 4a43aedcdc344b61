"""`collect --batch`: every rollout once, paid once, whatever the provider and the process do."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import Exit, UsageError
from rollforge.simulate import SimulatedProcess, SimulatedServer, SimulateOptions
from rollforge.steps.collect import CollectResult
from rollforge.steps.status import read_status
from rollforge.store import RunFiles
from rollforge.store.batches import read_batches
from tests.steps.test_collect import collect, grid, keys, read_rows, write_tasks


async def batch(folder: Path, server: SimulatedServer, **more: Any) -> CollectResult:
    settings: dict[str, Any] = {"batch": True, "batch_poll_s": 0.05, "samples": 2, "max_failures": "100%"}
    return await collect(folder, server, **{**settings, **more})


async def test_a_batch_makes_the_same_rollouts_as_single_requests(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await batch(tmp_path, server, batch_size=5)
        alone = await collect(tmp_path, server, out=str(tmp_path / "alone"), samples=2)
    assert (result.exit_code, alone.exit_code) == (Exit.DONE, Exit.DONE)
    rows, others = (
        read_rows(RunFiles(tmp_path / "run").rollouts),
        read_rows(RunFiles(tmp_path / "alone").rollouts),
    )
    assert keys(rows) == grid(6, 2)
    answers = [
        {
            (row["_ng_task_index"], row["_ng_rollout_index"]): row["response"]["output"][-1]["content"]
            for row in some
        }
        for some in (rows, others)
    ]
    assert answers[0] == answers[1]
    assert (server.stats.batches.created, server.stats.batches.paid, server.stats.batches.paid_twice) == (
        3,
        12,
        0,
    )
    batches = read_batches(RunFiles(tmp_path / "run").batches)
    assert [one.step for one in batches.values()] == ["settled"] * 3
    assert not RunFiles(tmp_path / "run").batch_files.exists(), "nothing is left of the files"


async def test_half_the_price_is_what_a_batch_costs(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    async with SimulatedServer(SimulateOptions()) as server:
        cheap = await batch(tmp_path, server, price="4/8")
        dear = await collect(tmp_path, server, out=str(tmp_path / "alone"), samples=2, price="4/8")
    assert cheap.cost is not None and dear.cost is not None and dear.cost.total is not None
    assert cheap.cost.total == pytest.approx(dear.cost.total / 2)
    assert any("half" in note for note in cheap.notes)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        # Half of the lines: the ids differ from run to run, and 16 lines without a failure must not happen.
        ("batch-partial=0.5", "transient"),
        ("batch-expired=0.6,share=0.4", "timeout"),
        ("batch-error=0.5,status=500", "transient"),
        ("batch-error=0.5,status=429", "rate-limited"),
    ],
)
async def test_what_a_batch_leaves_out_comes_in_a_later_round(tmp_path: Path, fault: str, kind: str) -> None:
    write_tasks(tmp_path, 8)
    async with SimulatedServer(SimulateOptions(faults=(fault,))) as server:
        result = await batch(tmp_path, server, attempts=20, price="1/1", batch_size=4)
    assert (result.exit_code, result.finished) == (Exit.DONE, 16)
    failures = read_rows(RunFiles(tmp_path / "run").failures)
    assert failures and {row["class"] for row in failures} == {kind}
    assert keys(read_rows(RunFiles(tmp_path / "run").rollouts)) == grid(8, 2)
    assert (server.stats.batches.paid, server.stats.batches.paid_twice) == (16, 0)
    assert {row["_rf"]["cost"] for row in failures} == {0.0}, "nobody pays for an error"


async def test_a_permanent_error_of_a_line_is_given_up_and_the_run_is_incomplete(tmp_path: Path) -> None:
    write_tasks(tmp_path, 8)
    async with SimulatedServer(SimulateOptions(faults=("batch-error=0.5,status=400",))) as server:
        result = await batch(tmp_path, server)
    assert result.exit_code == Exit.INCOMPLETE
    assert set(result.failed) == {"permanent"} and sum(result.failed.values()) + result.finished == 16


@pytest.mark.parametrize("fault", ["batch-lost=1", "batch-lost=0.7,when=before", "batch-lost-upload=0.5"])
async def test_a_lost_answer_to_a_create_call_never_makes_a_second_batch(tmp_path: Path, fault: str) -> None:
    write_tasks(tmp_path, 4)
    async with SimulatedServer(SimulateOptions(faults=(fault,))) as server:
        result = await batch(tmp_path, server, batch_size=4)
    assert (result.exit_code, result.finished) == (Exit.DONE, 8)
    assert (server.stats.batches.paid, server.stats.batches.paid_twice) == (8, 0)


async def test_a_full_queue_of_the_provider_is_waited_for(tmp_path: Path) -> None:
    write_tasks(tmp_path, 8)
    async with SimulatedServer(SimulateOptions(seed=3, faults=("batch-failed=0.4",))) as server:
        result = await batch(tmp_path, server, batch_size=2)
    assert (result.exit_code, result.finished) == (Exit.DONE, 16)
    assert (server.stats.batches.paid, server.stats.batches.paid_twice) == (16, 0)
    steps = [one.step for one in read_batches(RunFiles(tmp_path / "run").batches).values()]
    assert set(steps) == {"settled", "dropped"}


async def test_a_refused_batch_says_why_and_can_be_sent_again(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    async with SimulatedServer(SimulateOptions(faults=("batch-failed=1,code=model_not_found",))) as server:
        with pytest.raises(UsageError, match="refused the batch: refused on demand: model_not_found"):
            await batch(tmp_path, server)
    async with SimulatedServer(SimulateOptions()) as server:
        assert (await batch(tmp_path, server)).exit_code == Exit.DONE


async def test_a_deadline_leaves_the_batch_with_the_provider_and_a_resume_takes_its_answers(
    tmp_path: Path,
) -> None:
    write_tasks(tmp_path, 4)
    async with SimulatedServer(SimulateOptions(faults=("batch-delay=1,seconds=0.7",))) as server:
        first = await batch(tmp_path, server, deadline_s=0.2)
        assert (first.exit_code, first.finished) == (Exit.BUDGET_REACHED, 0)
        (waiting,) = read_status(tmp_path / "run").batches
        assert (waiting.state, waiting.requests) == ("created", 8) and waiting.id and waiting.age_s >= 0
        second = await batch(tmp_path, server)
    assert (second.exit_code, second.finished) == (Exit.DONE, 8)
    assert (server.stats.batches.created, server.stats.batches.paid) == (1, 8)
    assert read_status(tmp_path / "run").batches == []


async def test_a_budget_makes_small_rounds_and_stops_between_groups(tmp_path: Path) -> None:
    write_tasks(tmp_path, 30)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await batch(tmp_path, server, price="4/20", max_cost=0.02, batch_size=100)
    rows = read_rows(RunFiles(tmp_path / "run").rollouts)
    tasks = {row["_ng_task_index"] for row in rows}
    assert (
        result.exit_code == Exit.BUDGET_REACHED and result.cost is not None and result.cost.total is not None
    )
    assert keys(rows) == [(task, sample) for task in sorted(tasks) for sample in range(2)]
    assert 0.02 <= result.cost.total < 0.03


async def test_a_wrong_key_is_told_at_once(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    async with SimulatedServer(SimulateOptions(api_key="right")) as server:
        with pytest.raises(UsageError, match="refuses the key"):
            await batch(tmp_path, server)


async def test_a_failure_on_disk_of_a_batch_that_was_not_settled_is_asked_again(tmp_path: Path) -> None:
    """Killed between the record of a failure and that of its batch's end."""
    write_tasks(tmp_path, 6)
    batches = RunFiles(tmp_path / "run").batches
    async with SimulatedServer(SimulateOptions(seed=3, faults=("batch-error=0.4,status=503",))) as server:
        first = await batch(tmp_path, server, attempts=1)
        assert first.exit_code == Exit.INCOMPLETE and len(first.failed) > 0
        lines = batches.read_bytes().splitlines(keepends=True)
        assert b'"settled"' in lines[-1]
        batches.write_bytes(b"".join(lines[:-1]))
        second = await batch(tmp_path, server, attempts=50)
    assert second.exit_code == Exit.DONE
    assert keys(read_rows(RunFiles(tmp_path / "run").rollouts)) == grid(6, 2)
    assert server.stats.batches.paid_twice == 0


def _stats(base_url: str) -> dict[str, Any]:
    with urllib.request.urlopen(base_url.removesuffix("/v1") + "/stats", timeout=10) as answer:
        stats: dict[str, Any] = json.load(answer)
    return stats


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_paid_twice_or_lost_over_kills_at_random_moments(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, seed, kills=5)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("ROLLFORGE_TORTURE"), reason="minutes of kills: make torture")
@pytest.mark.parametrize("seed", range(10, 18))
def test_nothing_is_paid_twice_or_lost_over_many_kills(tmp_path: Path, seed: int) -> None:
    kill_at_random(tmp_path, seed, kills=25)


def kill_at_random(folder: Path, seed: int, kills: int) -> None:
    """Run `collect --batch` against a faulty provider, kill -9 it again and again, and let it finish."""
    chance = random.Random(seed)
    write_tasks(folder, 12)
    faults = (
        "batch-delay=0.7,seconds=0.4",
        "batch-partial=0.1",
        "batch-error=0.1,status=503",
        "batch-expired=0.2,share=0.5",
        "batch-lost=0.3",
        "batch-lost-upload=0.2",
    )
    with SimulatedProcess(SimulateOptions(seed=seed, faults=faults)) as server:
        words = [sys.executable, "-P", "-m", "rollforge", "collect", "-i", str(folder / "tasks.jsonl")]
        words += ["-o", str(folder / "run"), "-m", "simulated", "--base-url", server.base_url, "-k", "3"]
        words += ["--verifier", "exact", "--batch", "--batch-size", "9", "--batch-poll", "0.1s"]
        words += [
            "--attempts",
            "50",
            "--max-failures",
            "100%",
            "--price",
            "2/8",
            "--progress",
            "none",
            "--json",
        ]
        environment = {**os.environ, "ROLLFORGE_NO_COLOR": "1"}
        for _ in range(kills):
            process = subprocess.Popen(
                words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
            )
            try:
                process.wait(chance.uniform(0.2, 1.6))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
        deadline = time.monotonic() + 120
        done = subprocess.run(
            words, capture_output=True, timeout=deadline - time.monotonic(), env=environment, check=False
        )
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
        stats = _stats(server.base_url)["batches"]
    files = RunFiles(folder / "run")
    rows = read_rows(files.rollouts)
    assert keys(rows) == grid(12, 3)
    assert (stats["paid"], stats["paid_twice"]) == (36, 0)
    total = json.loads(done.stdout)["cost"]["total"]
    paid = sum(round(row["_rf"]["cost"] * 10**12) for row in rows)
    assert round(total * 10**12) == paid


async def test_a_goal_is_reached_by_rounds_of_batches(tmp_path: Path) -> None:
    write_tasks(tmp_path, 60)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await batch(tmp_path, server, samples=4, goal="grpo=6")
    assert result.exit_code == Exit.DONE and result.goal is not None and result.goal.usable >= 6
    assert server.stats.batches.created > 1, "the first answers decide what is asked for next"
    assert (server.stats.batches.paid, server.stats.batches.paid_twice) == (result.finished, 0)
