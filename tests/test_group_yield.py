"""Group yield: exact for the samples there are, an estimate that grows with k beyond."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge.adaptive.group_yield import ANY_RATE, Chain, Pattern, _matching, fit, group_yields
from rollforge.steps.profile import ProfileOptions, profile_run
from tests.builders import make_rollout, write_rows

EVERY_K = (2, 4, 8, 16, 32, 64)
patterns = st.dictionaries(
    st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple), st.integers(1, 9), min_size=1, max_size=6
)


def test_group_yield_counts_mixed_groups() -> None:
    assert group_yields({(2, 2): 1}, [2]) == [pytest.approx(4 / 6)]
    assert group_yields({(4,): 1, (2, 2): 1}, [4]) == [pytest.approx(0.5)]
    [beyond] = group_yields({(1, 1): 1, (2,): 1}, [4])
    assert (
        beyond is not None and 0.5 < beyond < 1
    )  # the task whose two samples agreed may still differ in four
    assert group_yields({}, [4]) == [None]


@given(patterns)
@settings(max_examples=60, deadline=None)
def test_group_yield_is_a_share_that_never_falls_with_k(found: dict[Pattern, int]) -> None:
    values = group_yields(found, EVERY_K)
    if all(sum(pattern) == 1 for pattern in found):
        assert values == [None] * len(EVERY_K)
        return
    known = [value for value in values if value is not None]
    assert len(known) == len(EVERY_K) and known == sorted(known) and known[0] >= 0 and known[-1] <= 1


@given(patterns, st.integers(1, 50))
@settings(max_examples=20, deadline=None)
def test_tasks_with_one_sample_do_not_lower_the_group_yield(found: dict[Pattern, int], more: int) -> None:
    found = {pattern: tasks for pattern, tasks in found.items() if sum(pattern) > 1}
    assert group_yields(found | {(1,): more}, EVERY_K) == group_yields(found, EVERY_K)


@pytest.mark.parametrize("samples", [4, 8])
@pytest.mark.parametrize("shape", [(1, 1), (0.5, 2), (1, 9), (5, 2), (0.2, 0.2)])
def test_the_estimate_is_within_five_points_of_the_truth_when_pass_rates_are_beta(
    samples: int, shape: tuple[float, float]
) -> None:
    rng = np.random.default_rng(7)
    rates = rng.beta(*shape, size=4000)
    found = Counter((hits, samples - hits) for hits in rng.binomial(samples, rates).tolist())
    truth = [float(np.mean(1 - rates**k - (1 - rates) ** k)) for k in EVERY_K]
    assert group_yields(found, EVERY_K, are_two=True) == pytest.approx(truth, abs=0.05)


def test_the_estimate_is_within_five_points_of_the_truth_for_rewards_of_three_values() -> None:
    rng = np.random.default_rng(7)
    rates = rng.dirichlet([0.5, 0.5, 0.5], size=4000)
    drawn = [[count for count in rng.multinomial(6, rate).tolist() if count] for rate in rates]
    found = Counter(tuple(sorted(counts, reverse=True)) for counts in drawn)
    truth = [float(np.mean(1 - (rates**k).sum(axis=1))) for k in EVERY_K]
    assert group_yields(found, EVERY_K) == pytest.approx(truth, abs=0.05)


def test_the_fit_finds_the_distribution_that_made_the_samples() -> None:
    rng = np.random.default_rng(3)
    hits = rng.binomial(16, rng.beta(2.0, 5.0, size=8000))
    found = fit([(16, hit, 1.0) for hit in hits.tolist()], ANY_RATE)
    assert found.without.beta == pytest.approx((2.0, 5.0), rel=0.1)
    assert found.belief < 0.2


def test_the_fit_finds_tasks_that_nobody_and_that_everybody_solves() -> None:
    rng = np.random.default_rng(3)
    kinds = rng.choice(3, p=[0.3, 0.2, 0.5], size=4000)
    rates = np.choose(kinds, [0.0, 1.0, rng.beta(2.0, 3.0, size=4000)])
    found = fit([(8, hit, 1.0) for hit in rng.binomial(8, rates).tolist()], ANY_RATE)
    assert found.belief > 0.99
    assert found.with_ends[1:] == pytest.approx((0.3, 0.2), abs=0.03)
    assert found.with_ends.beta == pytest.approx((2.0, 3.0), rel=0.2)


@pytest.mark.parametrize(("samples", "expected"), [(4, EVERY_K[:3]), (8, EVERY_K), (16, EVERY_K)])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
@pytest.mark.parametrize("shares", [(1 / 3, 0.0), (0.5, 0.0), (0.3, 0.2)])
def test_tasks_beyond_reach_do_not_raise_the_estimate(
    samples: int, expected: tuple[int, ...], shape: tuple[float, float], shares: tuple[float, float]
) -> None:
    """Four samples say little about a chance of 0, and nothing about groups of 64."""
    rng = np.random.default_rng(11)
    never, always = shares
    kinds = rng.choice(3, p=[never, always, 1 - never - always], size=3000)
    rates = np.choose(kinds, [0.0, 1.0, rng.beta(*shape, size=3000)])
    hits = rng.binomial(samples, rates).tolist()
    truth = [float(np.mean(1 - rates**k - (1 - rates) ** k)) for k in expected]
    in_two = Counter((hit, samples - hit) for hit in hits)
    assert group_yields(in_two, expected, are_two=True) == pytest.approx(truth, abs=0.03)
    in_any = Counter(tuple(sorted((n for n in (hit, samples - hit) if n), reverse=True)) for hit in hits)
    assert group_yields(in_any, expected) == pytest.approx(truth, abs=0.05)


def test_a_profile_tells_a_yield_that_grows_beyond_the_samples_taken(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rates = rng.random(300)
    rows = [make_rollout(t, n, float(rng.random() < rate)) for t, rate in enumerate(rates) for n in range(4)]
    rows.append(make_rollout(300, 0, 1.0))
    found = {one.k: one for one in profile_run(write_rows(tmp_path / "r.jsonl", rows)).summary.group_yield}
    assert [one.is_exact for one in found.values()] == [True, True, False, False, False, False]
    assert {one.tasks for one in found.values()} == {300}
    truth = {k: 1 - 2 / (k + 1) for k in EVERY_K}
    assert {k: one.value for k, one in found.items()} == pytest.approx(truth, abs=0.06)


def test_under_a_wide_tolerance_the_yield_is_that_of_all_choices(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rewards = rng.random((12, 6)).round(2)
    rewards[0] = [0.0, 0.2, 0.4, 0.4, 0.9, 0.9]
    rows = [
        make_rollout(t, n, float(reward)) for t, group in enumerate(rewards) for n, reward in enumerate(group)
    ]
    path = write_rows(tmp_path / "r.jsonl", rows)
    summary = profile_run(path, options=ProfileOptions(tolerance=0.25)).summary
    found = {one.k: one.value for one in summary.group_yield if one.is_exact}
    for k, value in found.items():
        choices = [choice for group in rewards.tolist() for choice in combinations(group, k)]
        assert value == pytest.approx(np.mean([max(one) - min(one) > 0.25 for one in choices]))
    assert summary.no_signal.share == pytest.approx(1 - (found[6] or 0))
    assert summary.group_yield[-1].value == pytest.approx(1, abs=0.02)


def test_an_extrapolation_keeps_its_value() -> None:
    """Exact up to the four samples there are; beyond them the fit with mass at 0 and 1 decides, so its constants show here."""
    tasks = {(4, 0): 30, (0, 4): 50, (2, 2): 10, (1, 3): 15, (3, 1): 5}
    assert group_yields(tasks, [2, 4, 8, 64], are_two=True) == [
        pytest.approx(0.151515, abs=1e-5),
        pytest.approx(0.272727, abs=1e-5),
        pytest.approx(0.375422, abs=1e-3),
        pytest.approx(0.561579, abs=1e-3),
    ]


def test_samples_match_those_within_reach_on_both_sides() -> None:
    found = list(_matching(Chain((1, 1, 0))))
    assert [same for same, _ in found] == [1, 2, 1]
    assert [share for _, share in found] == pytest.approx([1 / 3] * 3)


def test_tasks_that_are_never_solved_are_believed_in_as_the_samples_insist() -> None:
    beliefs = []
    for scale in (1, 4, 16):
        draws = [
            (8, 0, 30 * scale),
            (8, 2, 10 * scale),
            (8, 4, 12 * scale),
            (8, 6, 10 * scale),
            (8, 8, 6 * scale),
        ]
        beliefs.append(fit(draws, ANY_RATE).belief)
    assert beliefs == sorted(beliefs)
    # At a log likelihood ratio of 3 both are believed alike: one run of 68 tasks says more than that, sixteen settle it.
    assert 0.5 < beliefs[0] < 0.99 and beliefs[2] > 0.999
