"""Arithmetic: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rollforge.adaptive.group_yield import ANY_RATE, Beta, fit
from rollforge.adaptive.sampling_rule import OUT_OF_REACH, Draws, Sizes, fit_prior, known_before, make_rule
from rollforge.adaptive.stage_estimates import over_strata
from rollforge.recipes.base import RecipeOptions
from rollforge.statistics import stats
from rollforge.statistics.at_k import MOST_FOR_EVERY_K, _votes, groups_by_size, ladder, majority_every_k
from rollforge.statistics.intervals import (
    ClusterMean,
    Estimate,
    clustered_mean,
    incomplete_beta,
    normal_quantile,
    paired_difference,
    t_quantile,
    wilson,
)
from rollforge.statistics.stats import (
    first_positions,
    histogram_between,
    summarize,
    summarize_groups,
    variance_parts,
)
from rollforge.steps.collect.goal.from_options import make_design
from rollforge.steps.collect.goal.goal_options import GoalOptions
from rollforge.steps.collect.goal.task_book import TaskBook, TaskSummary, needed_for


def test_one_pair_has_no_interval_and_two_have_one() -> None:
    assert paired_difference([0.0], [1.0]).low is None
    assert paired_difference([0.0, 0.2], [1.0, 0.9]).low is not None


def test_first_occurrences_are_ascending_by_value() -> None:
    values, places = first_positions(np.array([3, 1, 3, 2, 1]))
    assert values.tolist() == [1, 2, 3] and places.tolist() == [1, 3, 0]


def test_groups_of_very_unequal_sizes_have_the_same_summaries_as_each_alone() -> None:
    rng = np.random.default_rng(3)
    sizes = [1, 40] * 20
    values = rng.random(sum(sizes))
    starts = np.cumsum([0, *sizes[:-1]])
    together = summarize_groups(values, starts)
    for number, (start, size) in enumerate(zip(starts.tolist(), sizes, strict=True)):
        own = values[start : start + size]
        assert together.mean[number] == pytest.approx(own.mean())
        assert together.median[number] == pytest.approx(np.median(own))


def test_groups_without_a_known_value_are_left_out() -> None:
    values = np.array([0.5, np.nan, np.nan, 0.1, 0.2])
    made = list(groups_by_size(values, np.array([0, 2, 3])))
    assert [(size, members.tolist()) for size, members, _ in made] == [(1, [0]), (2, [2])]


def test_doubt_weighs_mass_at_the_ends_by_its_likelihood_ratio() -> None:
    either = [(8, 8, 30.0), (8, 0, 30.0), (8, 4, 5.0)]
    assert fit(either, ANY_RATE).belief > 0.9
    even = [(8, count, 10.0) for count in range(9)]
    assert 0.02 < fit(even, ANY_RATE).belief < 0.3


def test_the_rule_takes_no_more_than_the_most_at_once() -> None:
    prior = known_before(Beta(1.0, 1.0))
    units = np.zeros((6, 6))
    units[1:, 1:] = 1.0
    rule = make_rule(prior, units, Sizes(2, 4, 4))
    assert rule.next_samples(Draws(0, 0)) >= 2
    assert rule.next_samples(Draws(4, 0)) == 0
    assert rule.is_within(Draws(2, 2)) and not rule.is_within(Draws(3, 2))


def test_a_forecast_is_within_two_standard_errors() -> None:
    tokens, tasks = (
        needed_for(50, tasks=100, units=50, tokens=1000, units2=50, both=500, tokens2=10_000) or pytest.fail()
    )
    assert tasks.value == pytest.approx(100) and tokens.value == pytest.approx(1000)
    assert tasks.low is not None and tasks.high is not None
    half = 1.96 * 100 * (0.5 / 0.5) * (1 / 100 + 1 / 100) ** 0.5
    assert (tasks.low, tasks.high) == pytest.approx((100 - half, 100 + half))


def _book(tasks: int, *, most: int = 8) -> TaskBook:
    options = GoalOptions(goal="grpo=100", max_samples=most)
    return TaskBook(tasks, make_design(options, samples=8, audit=0.0, seed=1), RecipeOptions())


def _task(right: int, drawn: int = 8, **other: int) -> TaskSummary:
    lows, levels = (drawn - right, 2) if 0 < right < drawn else (drawn, 1)
    low, high = float(right == drawn), float(right > 0)
    numbers = {
        "same": max(right, drawn - right) - 1,
        "units": int(levels == 2),
        "samples_asked": drawn,
        "tokens": 100,
    } | other
    return TaskSummary(drawn=drawn, lows=lows, low=low, high=high, levels=levels, **numbers)


def test_rules_are_fitted_again_once_a_quarter_more_tasks_are_known() -> None:
    book = _book(200)
    for position in range(100):
        book.put(position, _task(position % 9))
    first = book.rules()
    for position in range(100, 124):
        book.put(position, _task(position % 9))
    assert book.rules() is first
    book.put(124, _task(4))
    assert book.rules() is not first


def test_only_tasks_that_are_worth_a_sample_go_on_and_further_groups_the_best_first() -> None:
    book = _book(300, most=16)
    for position in range(200):
        book.put(position, _task(position % 9))
    for position in range(200, 300):
        book.put(position, _task(0, drawn=2))
    everything = np.ones(300, dtype=bool)
    rules = book.rules()
    least = max(1e-4, 0.02 * book.units / sum(book.get(one).samples_asked for one in range(300)))
    bars = list(book.bars(rules))
    assert bars[0] == 0.9 * rules.usual.rate and bars[-1] > least >= 0.9 * bars[-1]
    positions, wanted, gains = book.further_groups(rules, everything, least)
    assert len(positions) and (wanted == 16).all()
    assert (np.diff(gains) <= 0).all() and (gains / 8 > least).all()
    left_out = np.setdiff1d(np.arange(200), positions)
    assert (book._gains(rules, left_out, np.full(len(left_out), 8)) / 8 <= least).all()
    positions, asked, gains = book.resumable(rules.at(bars[-1]), everything)
    assert positions.tolist() == list(range(200, 300)) and (asked == 2).all() and (gains > 0).all()
    assert not len(book.resumable(rules.at(OUT_OF_REACH), everything)[0])


@pytest.mark.parametrize(("audited", "is_known"), [(9, False), (10, True)])
def test_a_stratum_that_is_not_whole_needs_ten_audited_tasks(audited: int, is_known: bool) -> None:
    values = np.full(100, np.nan)
    values[:audited] = 0.5
    told = over_strata(values, np.zeros(100, dtype=np.int64), np.arange(100) < audited)
    assert (told.value is not None) is is_known


@pytest.mark.parametrize(("known", "is_whole"), [(97, False), (98, True)])
def test_a_stratum_counts_as_whole_from_98_percent_on(known: int, is_whole: bool) -> None:
    values = np.full(100, np.nan)
    values[:known] = 0.5
    told = over_strata(values, np.zeros(100, dtype=np.int64), np.zeros(100, dtype=bool))
    assert (told.value is not None) is is_whole


@pytest.mark.parametrize(("base", "most"), [(0, 8), (8, 32), (40, 128)])
def test_a_finished_run_may_get_four_times_its_samples_up_to_128(base: int, most: int) -> None:
    design = make_design(GoalOptions(goal="grpo=10"), samples=8, audit=0.0, seed=1, base=base)
    assert design.most == most


def test_a_task_without_a_unit_goes_on_beyond_a_whole_group_while_one_is_likely() -> None:
    units = np.zeros((10, 10))
    units[3:, 3:] = 1.0
    rule = make_rule(known_before(ANY_RATE), units, Sizes(first=2, whole=5, most=8))
    assert rule.goes_on[3, 2] and not rule.goes_on[5, 0] and not rule.goes_on[3, 3]


def test_tasks_without_a_draw_say_nothing_about_the_others() -> None:
    drawn = [(4, 1, 3.0), (4, 4, 2.0)]
    assert fit_prior([(0, 0, 5.0)], ANY_RATE).belief == known_before(ANY_RATE).belief
    assert fit_prior([*drawn, (0, 0, 50.0)], ANY_RATE).belief == fit_prior(drawn, ANY_RATE).belief


@pytest.mark.parametrize("is_compiled", [stats.IS_COMPILED, False])
def test_groups_of_one_size_have_the_same_summaries_as_each_alone(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "IS_COMPILED", is_compiled)
    values = np.random.default_rng(4).random((40, 5))
    together = summarize_groups(values.ravel(), np.arange(0, 200, 5))
    assert together.min == pytest.approx(values.min(axis=1))
    assert together.max == pytest.approx(values.max(axis=1))
    assert together.median == pytest.approx(np.median(values, axis=1))


@pytest.mark.parametrize(("x", "value"), [(-0.5, 0.0), (0.0, 0.0), (0.5, 0.6875), (1.0, 1.0), (1.5, 1.0)])
def test_the_incomplete_beta_function_is_0_below_its_range_and_1_above(x: float, value: float) -> None:
    assert incomplete_beta(2.0, 3.0, x) == pytest.approx(value)


def test_the_incomplete_beta_function_is_computed_where_its_two_fractions_meet() -> None:
    assert incomplete_beta(2.0, 2.0, 0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("low", "high", "edges"),
    [(0.2, 0.7, (0.0, 1.0)), (0.0, 1.0, (0.0, 1.0)), (-0.5, 0.5, (-0.5, 0.5)), (0.2, 3.0, (0.2, 3.0)), (4.0, 4.0, (3.5, 4.5)),
     (2e9 - 5, 2e9, (2e9 - 5, 2e9)), (2e9 - 4, 2e9, (2e9 - 4 - 1999999.996, 2e9 + 1999999.996))],
)  # fmt: skip
def test_a_histogram_within_0_and_1_goes_from_0_to_1(
    low: float, high: float, edges: tuple[float, float]
) -> None:
    made = histogram_between(low, high, np.array([low, np.nan, high]))
    assert (made.edges[0], made.edges[-1]) == pytest.approx(edges) and sum(made.counts) == 2


def test_powers_of_two_below_the_samples_and_the_samples_are_reported() -> None:
    assert [ladder(n) for n in (0, 1, 2, 4, 5, 8)] == [[], [], [2], [2, 4], [2, 4, 5], [2, 4, 8]]


def test_votes_come_with_the_most_frequent_answer_first() -> None:
    assert _votes(["a", "b", None, "b"], [1.0, 2.0, 3.0, 4.0]) == ([[2.0, 4.0], [1.0]], [3.0])


def test_a_group_without_values_is_no_group() -> None:
    assert clustered_mean([1.0, 0.0, 2.0], [2, 0, 2]).groups == 2
    assert clustered_mean([0.0], [0]) == Estimate(None, None, None, 0)


def test_one_group_has_an_interval_only_if_its_mean_is_a_share() -> None:
    share = clustered_mean([3.0], [4], is_share=True)
    assert (share.low, share.high) == pytest.approx(wilson(0.75, 1.0, normal_quantile(0.975)))
    assert clustered_mean([3.0], [4]).ci is None
    running = ClusterMean(may_be_share=True)
    running.add(0, 1.0)
    assert running.half_width() is None
    running.close(0)
    assert running.half_width() is None
    running.add(1, 0.0)
    low, high = running.estimate().ci or pytest.fail()
    assert running.half_width() == pytest.approx((high - low) / 2)


@pytest.mark.parametrize(("least", "low"), [(None, -0.3), (-1.0, -0.3), (0.0, 0.0), (0.5, 0.4)])
def test_an_interval_ends_at_the_least_possible_value(least: float | None, low: float) -> None:
    made = clustered_mean([0.0, 0.4, 0.8], [1, 1, 1], least=least)
    assert made.low == pytest.approx(low if low >= 0 else 0.4 - 4.3027 * 0.4 / 3**0.5, rel=1e-4)
    assert made.value == pytest.approx(0.4) and (made.high or 0) > 1


@pytest.mark.parametrize(("low", "high"), [(None, 1.0), (0.0, None), (0.0, math.inf)])
def test_an_interval_has_two_finite_ends(low: float | None, high: float | None) -> None:
    assert Estimate(0.5, low, high, 2).ci is None and Estimate(0.5, 0.0, 1.0, 2).ci == [0.0, 1.0]


def test_pairs_that_are_all_zero_are_no_certainty() -> None:
    made = paired_difference([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert made.low is not None and made.high is not None and made.low < 0 < made.high


def test_the_quantile_is_that_of_student_up_to_ten_thousand_degrees() -> None:
    normal = normal_quantile(0.975)
    assert t_quantile(0.975, 10_000) > normal + 1e-4 and t_quantile(0.975, 10_001) == normal
    assert t_quantile(0.5, 3) == 0.0 and t_quantile(0.3, 3) == -t_quantile(0.7, 3)


def test_one_value_has_no_spread_and_infinite_ones_none_that_is_known() -> None:
    with np.errstate(invalid="ignore"):
        assert summarize([0.5]).std is None and summarize([math.inf]).std is None
        several = summarize([math.inf, math.inf])
    assert (several.mean, several.median) == (math.inf, math.inf)
    assert several.std is not None and math.isnan(several.std)
    assert summarize([0.5, 0.5]).std == 0.0


NAN = float("nan")


@pytest.mark.parametrize(
    ("means", "stds", "counts", "parts"),
    [
        ([0.5], [0.1], [2], (None, 0.01, None)),  # one group
        ([0.5, NAN], [0.1, NAN], [2, 0], (None, 0.01, None)),
        ([0.5, 0.7], [NAN, NAN], [1, 1], (None, None, None)),  # no group of two
        ([0.5, 0.5], [0.0, 0.0], [2, 2], (0.0, 0.0, None)),
        ([0.0, 1.0], [0.0, 0.0], [2, 2], (0.5, 0.0, 1.0)),
        ([0.0, 1.0], [0.2, 0.2], [2, 2], (0.48, 0.04, 0.48 / 0.52)),
    ],
)
def test_variance_has_parts_between_and_within_two_groups_of_two(
    means: list[float], stds: list[float], counts: list[int], parts: tuple[float | None, ...]
) -> None:
    made = variance_parts(np.array(means), np.array(stds), np.array(counts))
    assert [None if one is None else pytest.approx(one) for one in made] == list(parts)


def test_every_k_is_exact_for_as_many_samples_as_floats_can_count() -> None:
    """Of two answers with as many votes each, either wins half of the time, whatever k."""
    most = MOST_FOR_EVERY_K
    answers: list[int | None] = [place % 2 for place in range(most)]
    values = majority_every_k(answers, [float(place % 2) for place in range(most)])
    assert len(values) == most and np.allclose(values, 0.5, atol=1e-9)
