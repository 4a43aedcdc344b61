"""Intervals over adaptive runs keep their coverage: many simulated runs, each compared with what is true of the tasks."""

from __future__ import annotations

import numpy as np
import pytest

from rollforge.adaptive.design import SamplingDesign
from rollforge.adaptive.sampling_rule import is_audited
from rollforge.adaptive.stage_estimates import over_strata
from rollforge.statistics import at_k, intervals
from rollforge.steps.collect.goal.task_book import TaskJudge
from tests.goal_driver import bimodal, drive, summarize_quickly

POPULATION = 200_000


def truths() -> dict[str, float]:
    rates = np.array(bimodal(POPULATION, np.random.default_rng(0)))
    return {
        "success": float(rates.mean()),
        "pass@2": float((1 - (1 - rates) ** 2).mean()),
        "pass@8": float((1 - (1 - rates) ** 8).mean()),
        "pass^8": float((rates**8).mean()),
    }


def estimates(seed: int, *, tasks: int, target: int) -> dict[str, tuple[list[float] | None, float | None]]:
    """Interval and value of each number after one adaptive run; also the plain mean over all rollouts, which is biased."""
    rates = bimodal(tasks, np.random.default_rng(1000 + seed))
    design = SamplingDesign(
        recipe="grpo", target=target, first=2, whole=8, most=8, audit=0.4, seed=seed, base=0
    )
    _, drawn = drive(rates, design, seed=seed)
    begun = sorted({position for position, _ in drawn})
    first = np.array([[drawn[position, sample][0] for sample in range(2)] for position in begun])
    counts = np.full(len(begun), 2.0)
    success = intervals.clustered_mean(first.sum(axis=1), counts, is_share=True)
    two = at_k.at_k(first.ravel(), np.arange(0, first.size, 2)).best[:, 1]
    pass_two = intervals.mean_of(two, most=float(len(begun)))
    whole = np.full((len(begun), 8), np.nan)
    for row, position in enumerate(begun):
        if (position, 7) in drawn:
            whole[row] = [drawn[position, sample][0] for sample in range(8)]
    audited = np.array([is_audited(position, design.seed, design.audit) for position in begun])
    assert not np.isnan(whole[audited]).any(), "an audited task is always whole"
    stratum = first.sum(axis=1).astype(int)
    eight = over_strata(whole.max(axis=1), stratum, audited, is_certain=stratum > 0)
    all_eight = over_strata(whole.min(axis=1), stratum, audited, is_certain=stratum < 2)
    naive = [
        np.mean([drawn[position, s][0] for s in range(8) if (position, s) in drawn]) for position in begun
    ]
    plain = intervals.mean_of(np.array(naive))
    return {
        "success": (success.ci, success.value),
        "pass@2": (pass_two.ci, pass_two.value),
        "pass@8": (eight.ci, eight.value),
        "pass^8": (all_eight.ci, all_eight.value),
        "plain": (plain.ci, plain.value),
    }


def coverage(runs: int, *, tasks: int, target: int) -> tuple[dict[str, float], dict[str, float]]:
    """Share of intervals that hold the truth, and mean error of the values."""
    truth = truths()
    held = {name: [] for name in truth}
    errors = {name: [] for name in truth}
    for seed in range(runs):
        for name, (ci, value) in estimates(seed, tasks=tasks, target=target).items():
            if ci is None or value is None or name not in truth:
                continue
            held[name].append(ci[0] <= truth[name] <= ci[1])
            errors[name].append(value - truth[name])
    return {name: float(np.mean(each)) for name, each in held.items()}, {
        name: float(np.mean(each)) for name, each in errors.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_95_percent_intervals_over_1000_adaptive_runs_cover_92_to_98_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TaskJudge, "summarize", summarize_quickly)
    monkeypatch.setattr(
        "rollforge.steps.collect.goal.task_book.REFIT", 2.0
    )  # fewer fits: they take most of the time
    shares, errors = coverage(1000, tasks=160, target=17)
    assert all(0.92 <= share <= 0.98 for share in shares.values()), shares
    assert all(abs(error) < 0.01 for error in errors.values()), errors
