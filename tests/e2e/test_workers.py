"""What several workers share: budgets, allowances, the watch of broken verification, verdicts. Real processes, real HTTP."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from rollforge.steps.collect.shards.allotment import BURST_S, CALM_S, Allotment
from rollforge.steps.collect.shards.shard_worker import Totals, WorkerReport, combined, shares
from tests.e2e.test_shards import SAMPLES, TASKS, children, collect, keys, rollforge, run, start, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with SimulatedProcess(SimulateOptions(seed=3, latency=0.02)) as running:
        yield running.base_url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    folder = tmp_path_factory.mktemp("workers")
    (folder / "tasks.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in example_tasks(TASKS, 0, "math"))
    )
    run(collect(folder, "one", server))
    return folder


def test_the_token_budget_is_that_of_all_workers_and_the_run_resumes(folder: Path, server: str) -> None:
    words = collect(folder, "budget", server, "--workers", "2", "--max-total-tokens", "2000", "--json", c=2)
    output = json.loads(run(words, code=6).stdout)
    assert output["ending"] == "tokens" and 0 < output["finished"] < TASKS * SAMPLES
    run(collect(folder, "budget", server, "--workers", "2"))
    assert set(keys(folder / "budget").values()) == {1} and len(keys(folder / "budget")) == TASKS * SAMPLES


def test_a_verifier_that_always_fails_stops_all_workers_with_5(folder: Path, server: str) -> None:
    (folder / "broken.py").write_text("def verify(task, response):\n    raise ValueError('no')\n")
    words = collect(folder, "broken", server, "--workers", "2", "--json", c=4)
    words[words.index("exact")] = str(folder / "broken.py") + ":verify"
    output = json.loads(run(words, code=5).stdout)
    assert output["ending"] == "broken" and output["suspect"]["rollouts"] >= 20


def test_more_workers_judge_what_one_would_and_survive_a_kill(folder: Path) -> None:
    (folder / "slow.py").write_text(
        "import time\ndef verify(task, response):\n    time.sleep(0.05)\n    return float(len(str(response)) % 7)\n"
    )
    verifier = str(folder / "slow.py") + ":verify"
    words = ["verify", str(folder / "one"), "--verifier", verifier]
    rollforge(*words)
    path = folder / "one" / "rollouts_verdicts.jsonl"
    one = verdicts(path)
    path.unlink()
    import sys

    driver = start([sys.executable, "-m", "rollforge", *words, "--workers", "2"])
    parts = folder / "one" / "rollouts_verdicts.parts"
    wait_for(
        lambda: (
            any(file.stat().st_size for file in parts.glob("*/verdicts.jsonl")) or driver.poll() is not None
        )
    )
    workers = children(driver.pid)
    if workers:
        os.kill(random.Random(1).choice(workers), signal.SIGKILL)
    assert driver.wait(240) == 0
    assert verdicts(path) == one and not parts.exists()


def test_every_step_that_reads_text_takes_workers_and_answers_the_same(folder: Path, server: str) -> None:
    run(collect(folder, "parts", server, "--workers", "2"))
    one, data = str(folder / "parts"), folder / "parts-dataset"
    for words in (
        ["check", one, "--json"],
        ["profile", one, "--json"],
        ["prepare", "grpo", one, "--to", "trl", "-o", str(data), "--force", "--json"],
    ):
        answers = []
        for flags in ([], ["--workers", "2"], ["--workers", "2", "--on", "processes"]):
            for index in (folder / "parts" / "index", folder / "parts" / "rollouts_index"):
                shutil.rmtree(index, ignore_errors=True)
            answer = json.loads(rollforge(*words, *flags, code=None).stdout)
            answers.append({key: value for key, value in answer.items() if key not in ("created", "command")})
        assert answers[1:] == answers[:1] * 2


def verdicts(path: Path) -> dict[tuple[int, int], float]:
    rows = map(json.loads, path.read_text().splitlines())
    return {(row["_ng_task_index"], row["_ng_rollout_index"]): row["reward"] for row in rows}


def test_no_number_of_metrics_or_profile_depends_on_the_order_of_lines(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "one" / "rollouts.jsonl").read_text().splitlines()]
    chance = random.Random(3)
    for row in rows:
        row["reward"], row["score"] = chance.random() / 3, chance.random() * 1e9
    output = []
    for name in ("ordered", "shuffled"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        metrics = json.loads(rollforge("metrics", str(folder / f"{name}.jsonl"), "--json").stdout)
        profile = json.loads(rollforge("profile", str(folder / f"{name}.jsonl"), "--json").stdout)
        output.append(
            [
                {k: v for k, v in one.items() if k not in ("run", "files", "throughput")}
                for one in (metrics, profile)
            ]
        )
        chance.shuffle(rows)
    assert output[0] == output[1]


# -- arithmetic -----------------------------------------------------------------------------------------------------------


def test_a_limit_is_split_into_shares_that_add_up() -> None:
    assert shares(512, 3) == [171, 171, 170]
    assert shares(2, 4) == [1, 1, 1, 1]


def test_idle_workers_leave_their_share_to_the_others() -> None:
    allotment = Allotment("100")
    allotment.workers = 2
    reports = {"a": WorkerReport(in_flight=5), "b": WorkerReport(is_hungry=True)}
    assert allotment.share("a", reports, 0.0) == 100
    assert allotment.share("a", {"a": reports["a"], "b": WorkerReport(in_flight=1)}, 0.0) == 50


def test_workers_that_have_not_reported_yet_have_their_share() -> None:
    """The first to ask gets no more than its part: nobody takes requests back that are under way."""
    allotment = Allotment("4")
    allotment.workers = 3
    assert [allotment.share(name, {}, 0.0) for name in ("c", "a", "b")] == [2, 1, 1]
    allotment.lost("c")
    reports = {name: WorkerReport(in_flight=1) for name in ("a", "b")}
    assert [allotment.share(name, reports, 0.0) for name in reports] == [2, 2]


def test_a_429_halves_all_shares_once_and_they_grow_again() -> None:
    allotment = Allotment("1-100")
    allotment.workers = 2
    reports = {name: WorkerReport(in_flight=1) for name in ("a", "b")}
    now = time.monotonic()
    for _ in range(10):
        allotment.rate_limited(now)
    assert [allotment.share(name, reports, now) for name in reports] == [25, 25]
    allotment.rate_limited(now + BURST_S + 1)
    assert allotment.share("a", reports, now + BURST_S + 1) == 12 + 1
    later = now + BURST_S + CALM_S + 2
    assert (allotment.share("a", reports, later) or 0) > 13


def test_counters_of_workers_add_up() -> None:
    one, two = (
        Totals(fresh=2, tokens=5, failures={"timeout": 1}),
        Totals(fresh=3, failures={"timeout": 2, "auth": 1}),
    )
    total = combined([one, two])
    assert (total.fresh, total.tokens, total.failures) == (5, 5, {"timeout": 3, "auth": 1})
