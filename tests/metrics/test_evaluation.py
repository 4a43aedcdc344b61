"""The @k statistics: golden numbers, exact forms against brute force, requested k, naming profiles."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.errors import UsageError
from rollforge.metrics import EvalOptions, fold_eval, rename
from rollforge.metrics.ladder import best_of, ladder, majority_at, pass_at, worst_of

TASKS = ["T1", "T1", "T2", "T2", "T3", "T3"]
RUNS = [0.8, 0.9, 0.6, 0.9, 0.95, 0.85]


def seed_eval(**options):
    return fold_eval("dummy", TASKS, {"accuracy": RUNS}, EvalOptions(k=2, **options))


def test_the_evaluation_diagram_of_seed_004():
    metrics = seed_eval()
    assert metrics["eval/dummy/accuracy/mean@2"] == pytest.approx(0.833333, abs=1e-6)
    assert metrics["eval/dummy/accuracy/std@2"] == pytest.approx(0.083333, abs=1e-6)
    assert metrics["eval/dummy/accuracy/best@2"] == pytest.approx((0.9 + 0.9 + 0.95) / 3)
    assert metrics["eval/dummy/accuracy/worst@2"] == pytest.approx((0.8 + 0.6 + 0.85) / 3)
    assert metrics["eval/dummy/accuracy/coverage@2"] == 1.0


def test_the_detailed_diagram_of_seed_004():
    metrics = seed_eval(detailed_stats=True)
    expected = {
        "mean@2": {"mean": 0.833333, "std": 0.0623610, "max": 0.9, "min": 0.75},
        "std@2": {"mean": 0.083333, "std": 0.0471405, "max": 0.15, "min": 0.05},
    }
    for statistic, details in expected.items():
        for detail, value in details.items():
            assert metrics[f"eval/dummy/accuracy/{statistic}/{detail}"] == pytest.approx(value, abs=1e-6)


def test_the_limit_of_the_peers_bootstrap_has_a_closed_form():
    metrics = seed_eval(estimator="replacement")
    assert metrics["eval/dummy/accuracy/best@2"] == pytest.approx(0.875)
    assert metrics["eval/dummy/accuracy/worst@2"] == pytest.approx(0.791667, abs=1e-6)


def test_sample_deviation_is_there_for_those_who_want_it():
    metrics = seed_eval(detailed_stats=True, ddof=1)
    assert metrics["eval/dummy/accuracy/mean@2/std"] == pytest.approx(0.0763763, abs=1e-6)


def test_bootstrap42_gives_the_peers_own_numbers():
    metrics = seed_eval(estimator="bootstrap42")
    assert metrics["eval/dummy/accuracy/best@2"] == pytest.approx(0.876200, abs=1e-9)
    assert metrics["eval/dummy/accuracy/worst@2"] == pytest.approx(0.788867, abs=1e-6)
    row = np.array([[0.9, 0.8]])
    assert best_of(row, 2, "bootstrap42")[0] == pytest.approx(0.8770, abs=1e-9)


def test_bootstrap42_leaves_the_global_generator_alone():
    np.random.seed(7)
    before = np.random.get_state()[1].copy()
    seed_eval(estimator="bootstrap42")
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize(
    ("values", "n", "estimator", "best", "worst"),
    [
        ([1, 0, 0, 0], 2, "bootstrap42", 0.453, 0.072),
        ([1, 0, 0, 0], 4, "bootstrap42", 0.687, 0.003),
        ([1, 0, 0, 0], 2, "replacement", 0.4375, 1 / 16),
        ([1, 0, 0, 0], 4, "replacement", 0.68359375, 1 / 256),
        ([1, 0, 0, 0], 2, "exact", 0.5, 0.0),
        ([1, 0, 0, 0], 4, "exact", 1.0, 0.0),
        ([1, 0, 0, 0, 0, 0, 0, 0], 8, "bootstrap42", 0.651, 0.0),
        ([1, 0, 0, 0, 0, 0, 0, 0], 8, "replacement", 0.65639, 0.0),
        ([0, 0.25, 0.5, 0.75, 1], 2, "replacement", 0.7, 0.3),
        ([0, 0.25, 0.5, 0.75, 1], 4, "replacement", 0.8584, 0.1416),
        ([0, 0.25, 0.5, 0.75, 1], 5, "replacement", 0.896, 0.104),
        ([0, 0.25, 0.5, 0.75, 1], 4, "exact", 0.95, 0.05),
    ],
)
def test_golden_vectors_of_best_and_worst(values, n, estimator, best, worst):
    row = np.array([values], dtype=float)
    assert best_of(row, n, estimator)[0] == pytest.approx(best, abs=1e-4)
    assert worst_of(row, n, estimator)[0] == pytest.approx(worst, abs=1e-4)


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, -2.0]), min_size=1, max_size=4), st.integers(1, 4))
def test_best_and_worst_are_means_over_every_choice_or_every_draw(values, n):
    draws = list(itertools.product(values, repeat=n))
    row = np.array([values])
    assert best_of(row, n, "replacement")[0] == pytest.approx(sum(map(max, draws)) / len(draws))
    assert worst_of(row, n, "replacement")[0] == pytest.approx(sum(map(min, draws)) / len(draws))
    if n > len(values):
        assert best_of(row, n)[0] == max(values)
    if n <= len(values):
        subsets = list(itertools.combinations(values, n))
        assert best_of(row, n)[0] == pytest.approx(sum(map(max, subsets)) / len(subsets))
        passed = sum(any(v >= 1 for v in subset) for subset in subsets) / len(subsets)
        assert pass_at(row, n, 1.0)[0] == pytest.approx(passed)


@given(
    st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from([0.0, 1.0])), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_the_majority_is_the_mean_over_every_draw(runs, n):
    def elect(draw):
        counts = Counter(answer for answer, _ in draw)
        winner = max(counts, key=counts.__getitem__)  # the first seen among equals
        return next(value for answer, value in draw if answer == winner)

    draws = list(itertools.product(runs, repeat=n))
    expected = sum(map(elect, draws)) / len(draws)
    answers, values = zip(*runs, strict=True)
    assert majority_at(values, answers, n, "replacement") == pytest.approx(expected)
    if n <= len(runs):
        chosen = [elect(order) for order in itertools.permutations(runs, n)]
        assert majority_at(values, answers, n) == pytest.approx(sum(chosen) / len(chosen))


def test_golden_majority():
    values, answers = [1, 0, 1, 0], ["A", "B", "A", "C"]
    assert majority_at(values, answers, 4, "replacement") == pytest.approx(0.59375)
    assert majority_at(values, answers, 4) == 1.0
    assert majority_at(values, answers, 2, "bootstrap42") == pytest.approx(0.513)
    assert majority_at(values, answers, 4, "bootstrap42") == pytest.approx(0.598)


def test_the_ladder():
    assert [ladder(k) for k in (1, 2, 4, 5, 8)] == [[], [2], [2, 4], [2, 4, 5], [2, 4, 8]]


def test_a_lost_run_stays_under_the_requested_k_and_shows_in_the_coverage():
    tasks, runs = ["a"] * 4 + ["b"] * 3, [1, 0, 1, 1, 1, 0, 0]
    metrics = fold_eval("x", tasks, {"accuracy": runs}, EvalOptions(k=4), tasks_expected=3)
    assert metrics["eval/x/accuracy/mean@4"] == pytest.approx((0.75 + 1 / 3) / 2)
    assert not any(name.endswith("@3") for name in metrics)
    assert metrics["eval/x/accuracy/coverage@4"] == pytest.approx(7 / 12)
    assert metrics["eval/x/accuracy/count"] == 2
    assert metrics["eval/x/accuracy/missing"] == 5
    assert metrics["eval/x/accuracy/pass@4"] == 1.0
    as_peers = fold_eval("x", tasks, {"accuracy": runs}, EvalOptions(k=4, keyed_by="observed"))
    assert as_peers["eval/x/accuracy/mean@4"] == 0.75
    assert as_peers["eval/x/accuracy/mean@3"] == pytest.approx(1 / 3)


def test_order_of_runs_does_not_move_exact_numbers():
    backwards = fold_eval("dummy", TASKS[::-1], {"accuracy": RUNS[::-1]}, EvalOptions(k=2))
    assert backwards == seed_eval()


def test_one_run_has_no_best_and_a_deviation_of_zero():
    metrics = fold_eval("x", ["a", "b"], {"accuracy": [1.0, 0.0]}, EvalOptions(k=1))
    assert metrics["eval/x/accuracy/std@1"] == 0.0
    assert not any("best@" in name for name in metrics)


def test_durations_and_suffixed_metrics_climb_no_ladder():
    metrics = fold_eval(
        "x",
        ["a", "a"],
        {"time/run_execution": [1.0, 3.0], "tokens:sum": [5, 6]},
        EvalOptions(k=2, counts=False),
    )
    assert metrics == {"eval/x/time/run_execution": 2.0, "eval/x/tokens/sum": 11.0}


def test_a_suffix_decides_the_reducer_over_tasks_too_and_has_no_counts():
    values = [1.0, 2.0, 3.0, 4.0, 9.0]
    by_suffix = {f"tok:{how}": values for how in ("sum", "max", "min", "last")}
    task = ["b", "b", "a", "a", "b"]
    assert fold_eval("x", task, by_suffix, EvalOptions(k=3, detailed_stats=True)) == {
        "eval/x/tok/sum": 19.0,
        "eval/x/tok/max": 9.0,
        "eval/x/tok/min": 1.0,
        "eval/x/tok/last": 9.0,
    }
    exact = fold_eval("x", [0, 0, 0], {"tok:sum": [0.1, 0.2, 0.3]}, EvalOptions(k=3))
    assert exact == {"eval/x/tok/sum": math.fsum([0.1, 0.2, 0.3])}


def test_values_that_are_not_finite_or_not_there_are_left_out():
    metrics = fold_eval(
        "x",
        ["a", "a", "b"],
        {"r": [1.0, math.nan, 5.0]},
        EvalOptions(k=2),
        present={"r": [True, True, False]},
    )
    assert metrics["eval/x/r/mean@2"] == 1.0
    assert (metrics["eval/x/r/runs"], metrics["eval/x/r/missing"]) == (1, 3)


def test_bench_differs_in_the_first_word_only():
    bench = fold_eval("dummy", TASKS, {"accuracy": RUNS}, EvalOptions(k=2), category="bench")
    assert {name.replace("bench/", "eval/"): value for name, value in bench.items()} == seed_eval()


def test_the_verl_profile_routes_headline_numbers_to_val_core():
    metrics = fold_eval(
        "gsm8k",
        ["a"] * 4,
        {"acc": [1, 0, 1, 0], "format": [1, 1, 1, 1]},
        EvalOptions(k=4, estimator="bootstrap42"),
        answers=["A", "B", "A", "C"],
    )
    renamed = rename(metrics | {"time/step": 2.0}, "verl")
    assert renamed["val-core/gsm8k/acc/mean@4"] == 0.5
    assert renamed["val-core/gsm8k/acc/maj@4/mean"] == pytest.approx(0.598)
    assert "val-core/gsm8k/acc/best@4/mean" in renamed
    assert "val-aux/gsm8k/acc/best@2/mean" in renamed
    assert "val-aux/gsm8k/acc/std@4" in renamed
    assert "val-aux/gsm8k/format/mean@4" in renamed
    assert renamed["timing_s/step"] == 2.0
    assert not any("coverage" in name or "pass@" in name for name in renamed)


def test_the_trinity_profile_moves_times_and_drops_what_trinity_has_not():
    renamed = rename(
        {
            "time/experience_pipeline/dedupe": 1.0,
            "time/wait_explore_step": 2.0,
            "time/eval": 3.0,
            "rollout/accuracy/mean": 0.5,
            "rollout/accuracy/count": 3.0,
            "eval/x/accuracy/pass@4": 1.0,
            "eval/x/accuracy/mean@4": 0.5,
        },
        "trinity-0.6",
    )
    assert renamed == {
        "experience_pipeline/time/dedupe": 1.0,
        "explorer/time/wait_explore_step": 2.0,
        "time/eval": 3.0,
        "rollout/accuracy/mean": 0.5,
        "eval/x/accuracy/mean@4": 0.5,
    }
    with pytest.raises(UsageError, match="did you mean 'verl'"):
        rename({}, "verll")
