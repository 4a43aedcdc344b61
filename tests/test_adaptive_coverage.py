"""Intervals over adaptive runs keep their coverage: many simulated runs, each compared with what is true of the tasks."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from rollforge.adaptive.design import SamplingDesign
from rollforge.index import ByTask, Index, response_facts
from rollforge.index.arrow import floats
from rollforge.steps.collect.goal import goal_schedule, task_book
from rollforge.steps.collect.goal.task_book import TaskJudge
from rollforge.steps.metrics.metric_records import AtKValue
from rollforge.steps.metrics.run_metrics import _at_k, _success
from rollforge.steps.metrics.stages import beyond_first_stage
from tests.goal_driver import Drawn, _response, drive, summarize_quickly

FIRST, WHOLE, TASKS = 2, 8, 160


class Part(NamedTuple):
    """Tasks whose pass rates are uniform between two numbers."""

    share: float
    low: float
    high: float

    def mean_power(self, k: int) -> float:
        """The mean of rate^k."""
        if self.low == self.high:
            return self.low**k
        return (self.high ** (k + 1) - self.low ** (k + 1)) / ((k + 1) * (self.high - self.low))

    def mirrored(self) -> Part:
        return Part(self.share, 1 - self.high, 1 - self.low)


BIMODAL = (Part(0.4, 0, 0), Part(0.4, 1, 1), Part(0.2, 0.1, 0.9))
"""Mostly never or always solved."""

GRADED = (Part(0.2, 1, 1), Part(0.8, 0, 0.8))
"""Mostly in between, and no task that is never solved: every outcome of the first stage says little about the rest."""


def truths(mix: tuple[Part, ...]) -> dict[str, float]:
    """Success rate, pass@k and pass^k for every k up to the group size: exact means over the mix."""
    values = {"success": sum(part.share * part.mean_power(1) for part in mix)}
    for k in range(1, WHOLE + 1):
        values[f"pass@{k}"] = 1 - sum(part.share * part.mirrored().mean_power(k) for part in mix)
        values[f"pass^{k}"] = sum(part.share * part.mean_power(k) for part in mix)
    return values


def draw_rates(mix: tuple[Part, ...], rng: np.random.Generator) -> list[float]:
    part = np.minimum(
        np.searchsorted(np.cumsum([part.share for part in mix]), rng.random(TASKS)), len(mix) - 1
    )
    low, high = np.array([part.low for part in mix])[part], np.array([part.high for part in mix])[part]
    return cast(list[float], (low + (high - low) * rng.random(TASKS)).tolist())


class IndexInMemory:
    """What the estimates need of an index, over rollouts in memory: a thousand runs are not written and read again."""

    has_failures = False

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"threads": "1"})

    def hold(self, drawn: Drawn) -> None:
        """Replace the rollouts."""
        task, rollout = np.array(list(drawn)).T
        self._rollouts = pa.table(
            {"task": task, "rollout": rollout, "reward": np.array([reward for reward, _ in drawn.values()])}
        )
        self._connection.register("rollouts", self._rollouts)

    def select(self, sql: str) -> pa.Table:
        return self._connection.sql(sql).to_arrow_table()

    def table(self, columns: list[str], where: str | None = None) -> pa.Table:
        return self.select(f"SELECT {', '.join(columns)} FROM rollouts WHERE {where or 'true'}")

    def floats(self, columns: list[str], where: str | None = None) -> dict[str, Any]:
        table = self.table(columns, where)
        return {name: floats(table.column(name)) for name in columns}


def estimates(mix: tuple[Part, ...], seed: int, *, target: int, memory: IndexInMemory) -> dict[str, AtKValue]:
    """The numbers that `rollforge metrics` gives after one simulated run."""
    rates = draw_rates(mix, np.random.default_rng(1000 + seed))
    design = SamplingDesign(
        recipe="grpo", target=target, first=FIRST, whole=WHOLE, most=WHOLE, audit=0.4, seed=seed, base=0
    )
    memory.hold(drive(rates, design, seed=seed)[1])
    index = cast(Index, memory)
    first = ByTask(index, f"rollout < {FIRST}")
    hits = first.one("reward")
    success = _success(first, hits, 0.5)
    beyond, _ = beyond_first_stage(index, None, design, first, hits, 0.5)
    return {
        "success": AtKValue(value=success.value, ci=success.ci, tasks=len(first.tasks)),
        **_at_k(first, hits, 0.5, None),
        **beyond,
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("mix", "target", "seeds"),
    [(BIMODAL, 17, range(1000)), (GRADED, 80, range(10_000, 10_400))],
    ids=["bimodal", "graded"],
)
def test_95_percent_intervals_over_adaptive_runs_cover_92_to_98_percent_at_every_k(
    monkeypatch: pytest.MonkeyPatch, mix: tuple[Part, ...], target: int, seeds: range
) -> None:
    """No truth of these mixes is so near 0 or 1 that an interval, which is cut off there, covers it more often.

    Errors are weighted by the tasks that a run began. Runs that happen to find usable groups early reach the goal with fewer tasks,
    so the plain mean of any estimate, even of a first stage, is off by the order of 1/tasks; the weighted one is not (Wald).
    """
    answer = response_facts(_response(0, 0))
    monkeypatch.setattr(TaskJudge, "summarize", summarize_quickly)
    monkeypatch.setattr(goal_schedule, "response_facts", lambda response: answer)  # the summaries ignore it
    monkeypatch.setattr(task_book, "REFIT", 4.0)  # fewer fits: they take most of the time
    truth, memory = truths(mix), IndexInMemory()
    runs = [estimates(mix, seed, target=target, memory=memory) for seed in seeds]
    shares: dict[str, float] = {}
    deviations: dict[str, float] = {}
    for name, true in truth.items():
        made = [(run[name], run["success"].tasks) for run in runs if name in run]
        assert len(made) > 0.96 * len(runs), f"{name}: runs with an estimate are no random sample of the runs"
        shares[name] = float(
            np.mean([each.ci is not None and each.ci[0] <= true <= each.ci[1] for each, _ in made])
        )
        errors = np.array([begun * (each.value - true) for each, begun in made])
        deviations[name] = float(errors.mean() / (errors.std(ddof=1) / len(errors) ** 0.5))
    assert all(0.92 <= share <= 0.98 for share in shares.values()), shares
    assert all(abs(deviation) <= 3 for deviation in deviations.values()), deviations
