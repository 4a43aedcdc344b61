"""Detectors find planted defects and leave healthy runs alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollforge.steps.check import CheckOptions, Report, check_evidence
from rollforge.testing import DEFECTS, MadeRun, Shape, healthy_run, sick_run

RANK = {"error": 0, "warning": 1, "note": 2}


def checked(run: MadeRun) -> Report:
    return check_evidence(run.evidence(), CheckOptions())


def is_found(name: str, seed: int) -> bool:
    defect = DEFECTS[name]
    levels = [item.level for item in checked(sick_run(name, seed=seed)).findings if item.id == defect.finding]
    return any(RANK[level] <= RANK[defect.level] for level in levels)


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_by_its_own_check(name: str) -> None:
    assert is_found(name, seed=11)


def test_healthy_runs_get_no_error() -> None:
    accused = {seed: [item.id for item in checked(healthy_run(seed=seed)).at("error")] for seed in range(20)}
    assert not {seed: ids for seed, ids in accused.items() if ids}


@pytest.mark.slow
def test_at_most_one_healthy_run_in_a_hundred_gets_an_error() -> None:
    accused = {
        seed: [item.id for item in checked(healthy_run(seed=seed)).at("error")] for seed in range(100, 200)
    }
    assert sum(map(bool, accused.values())) <= 1, {seed: ids for seed, ids in accused.items() if ids}


@pytest.mark.parametrize("kind", ["binary", "continuous", "graded", "signed", "ten"])
def test_a_healthy_run_of_any_kind_of_reward_is_trusted(kind: str) -> None:
    report = checked(healthy_run(Shape(tasks=150, samples=8, kind=kind), seed=5))  # type: ignore[arg-type]
    assert report.ok and not report.at("error")


def test_tasks_sorted_by_difficulty_are_no_broken_verifier() -> None:
    for seed in range(5):
        run = healthy_run(Shape(tasks=800, samples=4, order="sorted", alike=0.5), seed=seed)
        assert not [item.id for item in checked(run).at("error")]


@pytest.mark.parametrize("seed", [5316, 770366])
def test_rewards_that_fall_off_a_cliff_in_sorted_tasks_are_no_broken_verifier(seed: int) -> None:
    assert not checked(healthy_run(seed=seed)).at("error")


@pytest.mark.parametrize(
    ("seed", "reason"),
    [
        (930042, "the few rewarded tasks come first, and only eleven rollouts lie beside 231 without reward"),
        (930440, "no agent records its output, and the smallest has too few rollouts to tell alone"),
        (930586, "lines are in order of completion, so that a task's late answers are its long ones"),
    ],
)
def test_what_the_order_or_the_recording_explains_is_no_error(seed: int, reason: str) -> None:
    assert not [item.text for item in checked(healthy_run(seed=seed)).at("error")], reason


@pytest.mark.parametrize("seed", [910008, 910010, 910012])
def test_two_versions_of_a_verifier_are_found_also_where_every_task_has_one_sample(seed: int) -> None:
    run = sick_run("two-versions", seed=seed)
    assert run.shape.samples == 1
    (finding,) = [item for item in checked(run).at("error") if item.id == "mixed-verifiers"]
    run.about = replace(
        run.about, runs=2
    )  # pooled: each run has its own tasks and its own options of the verifier
    assert finding.n == run.columns["reward"][np.isfinite(run.columns["reward"])].size
    assert "mixed-verifiers" not in {item.id for item in checked(run).at("error")}


def test_zeros_are_no_proof_before_there_are_many_of_them() -> None:
    levels = {}
    for tasks in (20, 2000):
        run = sick_run("always-zero", seed=1, shape=Shape(tasks=tasks, samples=1, failed=0.0, unjudged=0.0))
        [finding] = [item for item in checked(run).findings if item.id == "identical-rewards"]
        levels[tasks] = finding.level
    assert levels == {20: "note", 2000: "error"}


def test_a_missing_reward_is_never_taken_for_zero() -> None:
    run = healthy_run(Shape(tasks=200, samples=4, mean=0.9, unjudged=0.15, failed=0.0, truncated=0.0), seed=2)
    report = checked(run)
    assert report.counts.unjudged > 80
    assert report.counts.reward.mean > 0.8
