"""The arithmetic, by properties and by numbers worked out by hand."""

from __future__ import annotations

import itertools
import math
import statistics
import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.statistics import at_k, intervals, stats

rewards = st.lists(st.one_of(st.none(), st.floats(-10, 10)), min_size=1, max_size=40)
small = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=6)


def as_floats(values: list[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else value for value in values], dtype=float)


@given(rewards)
def test_missing_values_are_counted_and_never_averaged(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    summary = stats.summarize(as_floats(values))
    assert summary.n == len(known) and summary.missing == len(values) - len(known)
    if known:
        assert summary.mean == pytest.approx(statistics.fmean(known), abs=1e-12)
        assert summary.median == pytest.approx(statistics.median(known)) and summary.max == max(known)
    if len(known) > 1:
        assert summary.std == pytest.approx(statistics.stdev(known), abs=1e-9)
    else:
        assert summary.std is None


@pytest.mark.parametrize(
    "beside", [[], [[0.5]] * 16, [[0.5]] * 16 + [[0.25] * 400]]
)  # few, alike, very unlike
@pytest.mark.parametrize("is_compiled", [True, False])
@given(groups=st.lists(rewards, min_size=1, max_size=8))
def test_groups_at_once_equal_groups_one_by_one(
    beside: list[list[float | None]], is_compiled: bool, groups: list[list[float | None]]
) -> None:
    groups = [*groups, *beside]
    flat = as_floats([value for group in groups for value in group])
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    with patch.object(stats, "IS_COMPILED", is_compiled and stats.IS_COMPILED):
        found = stats.summarize_groups(flat, starts)
    for place, group in enumerate(groups):
        one = stats.summarize(as_floats(group))
        assert found.n[place] == one.n
        for name in ("mean", "std", "min", "max", "median"):
            expected = getattr(one, name)
            got = getattr(found, name)[place]
            assert math.isnan(got) if expected is None else got == pytest.approx(expected, abs=1e-9)


@pytest.mark.skipif(not stats.IS_COMPILED, reason="rollforge was installed without a compiler")
def test_compiled_statistics_are_those_of_numpy_for_every_size_of_group() -> None:
    rng = np.random.default_rng(0)
    for size in range(2, 66):
        sizes = np.append(rng.integers(1, size, 30), size)
        values = rng.normal(1e6, 1, sizes.sum())
        values[rng.random(len(values)) < 0.2] = math.nan
        values[: sizes[0]] = math.nan
        starts = np.cumsum(sizes) - sizes
        compiled = stats.summarize_groups(values, starts)
        with patch.object(stats, "IS_COMPILED", False):
            plain = stats.summarize_groups(values, starts)
        for one, other in zip(compiled, plain, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def shapes_of(size: int) -> dict[str, np.ndarray]:
    """Values whose middle is easy to miss."""
    rng = np.random.default_rng(size)
    ascending = np.sort(rng.normal(0, 1, size))
    mixed = rng.permutation(ascending)
    return {
        "mixed": mixed,
        "ascending": ascending,
        "descending": ascending[::-1],
        "up and down": np.append(ascending[::2], ascending[1::2][::-1]),
        "two values": (rng.random(size) < 0.3).astype(np.float64),
        "mostly one": np.where(rng.random(size) < 0.9, 0.5, mixed),
        "whole": np.round(100 * mixed),
        "with gaps": np.where(rng.random(size) < 0.2, np.nan, mixed),
        "infinite": np.where(rng.random(size) < 0.1, np.inf, mixed),
        "far from 0": 1e9 + mixed,
    }


@pytest.mark.skipif(not stats.IS_COMPILED, reason="rollforge was installed without a compiler")
@pytest.mark.parametrize("size", [65, 66, 67, 128, 1000, 1001, 1025, 30_000])
def test_compiled_statistics_of_large_groups_are_those_of_numpy(size: int) -> None:
    with np.errstate(invalid="ignore"):
        for name, values in shapes_of(size).items():
            starts = np.array([0, 3])
            compiled = stats.summarize_groups(np.append([1.0, 2.0, np.nan], values), starts)
            one = stats.summarize(values)
            found = [float(column[1]) for column in compiled]
            assert found[0] == one.n and found[3:] == [one.min, one.max, one.median], name
            np.testing.assert_allclose(found[1:3], [one.mean, one.std], rtol=1e-12, err_msg=name)
            assert compiled.mean[0] == 1.5 and compiled.n[0] == 2
            with patch.object(stats, "IS_COMPILED", False):
                plain = stats.histogram(values)
            assert stats.histogram(values) == plain and sum(plain.counts) == np.isfinite(values).sum()


@pytest.mark.skipif(not stats.IS_COMPILED, reason="rollforge was installed without a compiler")
@given(st.integers(0, 2**32), st.integers(65, 400), st.integers(1, 6))
def test_the_middle_of_few_distinct_values_is_one_of_them(seed: int, size: int, kinds: int) -> None:
    values = np.random.default_rng(seed).integers(0, kinds, (20, size)).astype(np.float64)
    found = stats.summarize_groups(values.ravel(), np.arange(20) * size)
    assert found.median.tolist() == np.median(values, axis=1).tolist()


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize(
    "sizes", [[11] * 20, [81] * 20, [11] * 20 + [12], [3] * 20 + [500], [33], [1, *[3] * 20]]
)
def test_equal_values_have_no_spread_to_the_last_digit(sizes: list[int], is_compiled: bool) -> None:
    values, starts = np.full(sum(sizes), 0.1), np.cumsum(sizes) - sizes
    with patch.object(stats, "IS_COMPILED", is_compiled and stats.IS_COMPILED):
        found = stats.summarize_groups(values, starts)
        values[-1] = math.nan
        with_gap = stats.summarize_groups(values, starts)
    assert (found.std[found.n > 1] == 0).all() and (found.mean == 0.1).all()
    assert (with_gap.std[with_gap.n > 1] == 0).all()


def test_whole_numbers_and_tables_are_numbers_too() -> None:
    assert stats.summarize_groups(np.arange(60), np.arange(20) * 3).mean[1] == 4
    assert sum(stats.histogram([[1, 2], [3, 4]]).counts) == 4


@pytest.mark.skipif(not stats.IS_COMPILED, reason="rollforge was installed without a compiler")
@pytest.mark.parametrize("starts", [[0, -1], [5, 3], [0, 200]])
def test_groups_that_cannot_be_are_refused(starts: list[int]) -> None:
    into = np.zeros((6, len(starts)))
    with pytest.raises(ValueError, match="follow each other"):
        stats._native.describe(np.zeros(100), np.array(starts, dtype=np.int64), into)


def test_no_groups_have_no_statistics() -> None:
    found = stats.summarize_groups(np.zeros(0), np.zeros(0, dtype=np.int64))
    assert all(len(column) == 0 for column in found)


@pytest.mark.parametrize(
    ("p", "degrees", "expected"),
    [(0.975, 1, 12.706204736), (0.975, 4, 2.776445105), (0.975, 30, 2.042272456), (0.95, 7, 1.894578605), (0.995, 2, 9.924843201)],
)  # fmt: skip
def test_student_quantiles_are_those_of_the_tables(p: float, degrees: int, expected: float) -> None:
    assert intervals.t_quantile(p, degrees) == pytest.approx(expected, abs=1e-8)
    assert intervals.t_quantile(1 - p, degrees) == pytest.approx(-expected, abs=1e-8)


def test_copies_of_a_sample_do_not_narrow_the_interval() -> None:
    sums, counts = np.array([1.0, 0.0, 1.0, 1.0]), np.ones(4)
    once = intervals.clustered_mean(sums, counts)
    often = intervals.clustered_mean(sums * 16, counts * 16)
    assert once == often and once.ci is not None


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), min_size=2, max_size=30))
def test_an_interval_of_a_share_holds_it_and_never_collapses(pairs: list[tuple[int, int]]) -> None:
    sums = np.array([min(hits, n) for hits, n in pairs], dtype=float)
    counts = np.array([n for _, n in pairs], dtype=float)
    found = intervals.clustered_mean(sums, counts, is_share=True)
    assert found.low is not None and found.high is not None and found.value is not None
    assert 0 <= found.low <= found.value + 1e-12 and found.value <= found.high + 1e-12 and found.high <= 1
    assert found.high - found.low > 0.001


def test_clustered_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        ability = rng.beta(1, 1, size=40)
        hits = rng.binomial(8, ability).astype(float)
        found = intervals.clustered_mean(hits, np.full(40, 8.0))
        assert found.low is not None and found.high is not None
        held += found.low <= 0.5 <= found.high
    assert 0.91 <= held / 400 <= 0.985


@given(st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_a_histogram_counts_every_value_the_greatest_too(values: list[float]) -> None:
    found = stats.histogram(values)
    assert sum(found.counts) == len(values) and found.edges[0] == 0 and found.edges[-1] == 1
    assert stats.histogram([1.0, 1.0, 0.0]).counts[-1] == 2


def test_a_value_on_an_edge_is_in_the_bin_that_begins_there() -> None:
    for tenth in range(10):
        counts = stats.histogram([tenth / 10, 0.0, 1.0]).counts
        assert counts[tenth] == (2 if tenth in (0, 9) else 1)


@pytest.mark.parametrize(
    "values", [[5.0, 5.000000000000001], [1e308, -1e308], [1.79e308], [-3.0, -3.0], [2**60, 2**60 + 1]]
)
def test_a_histogram_is_there_for_values_of_any_size_and_nearness(values: list[float]) -> None:
    found = stats.histogram(values)
    assert sum(found.counts) == len(values) and np.isfinite(found.edges).all()


@given(st.lists(small, min_size=1, max_size=5))
def test_best_and_worst_are_the_average_over_every_choice(groups: list[list[float]]) -> None:
    flat = np.array([value for group in groups for value in group])
    starts = np.cumsum([0, *map(len, groups)])[:-1]
    found = at_k.at_k(flat, starts)
    for place, group in enumerate(groups):
        for k in range(1, found.best.shape[1] + 1):
            if k > len(group):
                assert math.isnan(found.best[place, k - 1])
                continue
            choices = list(itertools.combinations(group, k))
            assert found.best[place, k - 1] == pytest.approx(statistics.fmean(map(max, choices)))
            assert found.worst[place, k - 1] == pytest.approx(statistics.fmean(map(min, choices)))


def test_pass_at_k_is_the_unbiased_one() -> None:
    found = at_k.at_k(np.array([1.0, 0, 0, 0]), np.array([0]))
    assert found.best[0].tolist() == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert found.worst[0].tolist() == pytest.approx([0.25, 0, 0, 0])


@pytest.mark.parametrize("shape", [(0.3, 3.0), (3.0, 0.3), (1.0, 1.0)])
def test_intervals_at_k_hold_the_truth_also_where_few_tasks_pass_or_fail(shape: tuple[float, float]) -> None:
    rng, tasks, samples, k = np.random.default_rng(5), 20, 8, 4
    rates = rng.beta(*shape, size=100_000)
    truth = float(np.mean(1 - (1 - rates) ** k)), float(np.mean(rates**k))
    held = np.zeros(2)
    for _ in range(200):
        hits = rng.random((tasks, samples)) < rng.beta(*shape, size=(tasks, 1))
        found = at_k.at_k(hits.astype(np.float64).ravel(), np.arange(tasks) * samples)
        for place, values in enumerate(found):
            estimate = intervals.mean_of(values[:, k - 1], most=tasks * samples / k)
            assert estimate.low is not None and estimate.high is not None
            held[place] += estimate.low <= truth[place] <= estimate.high
    assert (held >= 0.92 * 200).all()


answers = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=7
)


@given(answers, st.data())
def test_majority_is_the_average_vote_over_every_choice(
    samples: list[tuple[str | None, float]], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(samples)))
    score_by_answer = {a: statistics.fmean(s for b, s in samples if b == a) for a, _ in samples}

    def vote(choice: tuple[tuple[str | None, float], ...]) -> float:
        named = [answer for answer, _ in choice if answer is not None]
        if not named:
            return score_by_answer[None]
        most = max(named.count(answer) for answer in named)
        tied = {answer for answer in named if named.count(answer) == most}
        return statistics.fmean(score_by_answer[answer] for answer in tied)

    expected = statistics.fmean(vote(choice) for choice in itertools.combinations(samples, k))
    found = at_k.majority_at_k([a for a, _ in samples], [s for _, s in samples], k)
    assert found == pytest.approx(expected)


@given(answers.map(lambda samples: samples * 9))
def test_majority_of_every_k_at_once_is_that_of_each(samples: list[tuple[str | None, float]]) -> None:
    given_answers, scores = [a for a, _ in samples], [s for _, s in samples]
    each = [at_k.majority_at_k(given_answers, scores, k) for k in range(1, len(samples) + 1)]
    found = at_k.majority_every_k(given_answers, scores).tolist()
    assert found == pytest.approx(each, abs=1e-9)
    assert min(found) >= 0 and max(found) <= 1


@pytest.mark.parametrize(
    ("values", "k", "best", "worst"),
    [([0.8, 0.9], 2, 0.8754, 0.8230), ([0.6, 0.9], 2, 0.8262, 0.6690), ([0.95, 0.85], 2, 0.9270, 0.8746),
     ([1, 0, 0, 0], 2, 0.453, 0.072), ([1, 0, 0, 0], 4, 0.687, 0.003), ([1, *[0] * 7], 8, 0.651, None), ([0.9, 0.8], 2, 0.8770, None)],
)  # fmt: skip
def test_the_bootstrap_gives_the_peers_own_numbers(
    values: list[float], k: int, best: float, worst: float | None
) -> None:
    found = at_k.bootstrap_at_k(np.array(values, dtype=float), k)
    assert found[0] == pytest.approx(best, abs=5e-5)
    assert worst is None or found[1] == pytest.approx(worst, abs=5e-5)


@pytest.mark.parametrize("n", [2, 6, 20, 1000])
@pytest.mark.parametrize("pair", [(0.0, 1.0), (1.0, 0.0), (0.5, 0.5), (0.1, 0.3), (10.0, 10.0), (10.0, 30.0)])
def test_pairs_that_all_differ_by_the_same_are_no_certainty(n: int, pair: tuple[float, float]) -> None:
    found = intervals.paired_difference([pair[0]] * n, [pair[1]] * n)
    assert found.value == pytest.approx(pair[1] - pair[0])
    if pair == (10.0, 10.0):
        assert found.ci is None
        return
    assert found.low is not None and found.high is not None and found.value is not None
    assert found.low <= found.value + 1e-9 and found.value <= found.high + 1e-9
    assert 0 < found.high - found.low < (25.0 if n == 1000 else 1000.0) / n * max(1.0, *pair)


def test_the_interval_of_equal_differences_shrinks_to_a_verdict_with_enough_tasks() -> None:
    lows = [intervals.paired_difference(np.zeros(n), np.ones(n)).low for n in (2, 6, 7, 50)]
    assert [low is not None and low > 0 for low in lows] == [False, False, True, True]


def test_float_noise_between_differences_is_no_spread() -> None:
    one = np.array([0.1, 0.5, 0.7])
    clean, noisy = intervals.paired_difference(one, one), intervals.paired_difference(one, one + 1e-16)
    assert noisy.ci == pytest.approx(clean.ci, abs=1e-9)


def test_variance_splits_into_between_and_within() -> None:
    rng = np.random.default_rng(1)
    truth = rng.normal(0, 2, size=4000)
    values = truth[:, None] + rng.normal(0, 1, size=(4000, 8))
    found = stats.variance_parts(values.mean(axis=1), values.std(axis=1, ddof=1), np.full(4000, 8))
    assert found.between == pytest.approx(4, rel=0.08) and found.within == pytest.approx(1, rel=0.08)
    assert found.intraclass == pytest.approx(0.8, abs=0.02)


def test_a_vote_of_more_samples_than_a_float_can_count_ways_for_is_exact_too() -> None:
    answers, scores = [n % 3 for n in range(1500)], [float(n % 3 == 0) for n in range(1500)]
    assert at_k.majority_at_k(answers, scores, 1) == pytest.approx(1 / 3, abs=1e-9)
    assert at_k.majority_at_k(answers, scores, 1500) == pytest.approx(1 / 3, abs=1e-9)
    assert at_k.majority_at_k(list(range(5000)), [1.0] * 1000 + [0.0] * 4000, 3000) == pytest.approx(0.2)
    two = [0] * 800 + [1] * 700  # the vote of three
    three = sum(math.comb(800, n) * math.comb(700, 3 - n) for n in (2, 3)) / math.comb(1500, 3)
    assert at_k.majority_at_k(two, [1.0] * 800 + [0.0] * 700, 3) == pytest.approx(three, abs=1e-9)


def test_costs_or_tokens_that_are_all_zero_or_one_are_no_share() -> None:
    running = intervals.ClusterMean()
    for task in range(20):
        running.add(task, 1.0)
    assert running.estimate().ci == [1.0, 1.0]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0.0, 0.25, 1.0, 7.5])), min_size=1, max_size=40),
    st.sets(st.integers(0, 5)),
)
def test_the_running_mean_is_the_clustered_mean_whichever_groups_are_closed(
    values: list[tuple[int, float]], closed: set[int]
) -> None:
    running = intervals.ClusterMean(may_be_share=True)
    for group, value in values:
        running.add(group, value)
    for group in closed:
        running.close(group)
    members = {group: [value for one, value in values if one == group] for group, _ in values}
    whole = intervals.clustered_mean(
        [sum(one) for one in members.values()],
        [len(one) for one in members.values()],
        is_share=len(members) > 1 and all(value in (0, 1) for _, value in values),
    )
    found = running.estimate()
    assert found.groups == whole.groups
    assert found.value == pytest.approx(whole.value)
    assert (found.ci is None) == (whole.ci is None)
    if whole.ci is not None:
        assert found.ci == pytest.approx(whole.ci, abs=1e-6)


def test_a_share_interval_holds_its_share_at_both_ends() -> None:
    for n in range(1, 60):
        assert intervals.wilson(0.0, n, 1.96)[0] == 0.0
        assert intervals.wilson(1.0, n, 1.96)[1] == 1.0
    zeros = intervals.clustered_mean([0.0] * 18, [4] * 18, is_share=True)
    assert zeros.ci is not None and zeros.ci[0] == 0.0


def test_wilson_of_many_shares_is_wilson_of_each() -> None:
    shares, counts = [0.0, 0.3, float("nan"), 1.0], [4, 10, 0, 7]
    lows, highs = intervals.wilson_each(shares, counts, 1.96)
    assert np.isnan(lows[2]) and np.isnan(highs[2])
    for place in (0, 1, 3):
        assert (lows[place], highs[place]) == intervals.wilson(shares[place], counts[place], 1.96)


def test_quantiles_agree_with_published_values() -> None:
    assert intervals.normal_quantile(0.975) == 1.959963984540054
    assert intervals.t_quantile(0.975, 1) == pytest.approx(12.706204736432095, rel=1e-9)
    assert intervals.t_quantile(0.975, 9) == pytest.approx(2.262157163, rel=1e-9)
    assert intervals.t_quantile(0.025, 9) == pytest.approx(-intervals.t_quantile(0.975, 9))
    assert intervals.t_quantile(0.5, 3) == 0.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
def test_an_interval_holds_its_mean_and_stays_where_values_can_be(values: list[float]) -> None:
    for found in (
        intervals.mean_of(values),
        intervals.mean_of(values, is_unit=False),
        intervals.clustered_mean(values, [1] * len(values), least=0.0),
    ):
        assert found.value is not None
        if found.low is not None and found.high is not None:
            assert 0 <= found.low <= found.value * (1 + 1e-12)
            assert found.high >= found.value * (1 - 1e-12)


def test_durations_below_a_second_are_no_shares() -> None:
    seconds = [0.001] * 30 + [0.9]
    assert intervals.mean_of(seconds, is_unit=False) != intervals.mean_of(seconds)


def test_groups_of_unequal_sizes_take_no_memory_for_a_padded_table() -> None:
    sizes = np.array([700, *[100] * 999])
    values = np.random.default_rng(1).random(sizes.sum())
    with patch.object(stats, "IS_COMPILED", False), patch.object(stats, "_native", None):
        tracemalloc.start()
        try:
            found = stats.summarize_groups(values, np.cumsum(sizes) - sizes)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert found.n.tolist() == sizes.tolist()
    assert peak < 14 * values.nbytes, "a table would be seven times the values, and is needed four times"
