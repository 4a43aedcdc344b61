"""The fold experience → run → task → step: seed 004's diagrams, exact merging, policies, suffixes."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge.errors import UsageError
from rollforge.metrics import Moments, Policy, StepFold, fold_experiences, fold_steps
from rollforge.metrics.moments import exact_row_sums

SEED_RUNS = {"T1": (0.8, 0.9), "T2": (0.6, 0.9), "T3": (0.95, 0.85)}

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
numbers = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf]))


def seed_step() -> StepFold:
    fold = StepFold()
    for task, runs in SEED_RUNS.items():
        for order, accuracy in enumerate(runs):
            fold.add(task, {"accuracy": accuracy}, order=order)
    return fold


def test_the_rollout_diagram_of_seed_004():
    fold = seed_step()
    assert [fold.task_metrics(task)["accuracy"] for task in SEED_RUNS] == pytest.approx([0.85, 0.75, 0.9])
    metrics = fold.metrics("rollout")
    assert metrics["rollout/accuracy/mean"] == pytest.approx(0.833333, abs=1e-6)
    assert metrics["rollout/accuracy/max"] == pytest.approx(0.9)
    assert metrics["rollout/accuracy/min"] == pytest.approx(0.75)


def test_counts_stand_beside_every_mean():
    fold = seed_step()
    fold.add("T1", {"other": 1})
    fold.add("T2", {"accuracy": math.nan})
    fold.add_failed("T4")
    metrics = fold.metrics("rollout")
    assert metrics["rollout/accuracy/mean"] == pytest.approx(0.833333, abs=1e-6)
    assert [metrics[f"rollout/accuracy/{name}"] for name in ("count", "runs", "missing", "nan")] == [
        3,
        6,
        1,
        1,
    ]
    assert metrics["rollout/finished_task_count"] == 3
    assert metrics["rollout/failed_task_count"] == 1
    assert metrics["rollout/finished_run_count"] == 8
    assert metrics["rollout/failed_run_count"] == 1


def test_the_data_processing_diagram_of_seed_004_averages_groups_not_experiences():
    by_group = StepFold()
    for group, (reward_mean, experiences) in enumerate([(0.8, 3), (0.9, 1)]):
        for _ in range(experiences):
            by_group.add(group, {"group_advantages/reward_mean": reward_mean})
    name = "experience_pipeline/group_advantages/reward_mean/mean"
    assert by_group.metrics("experience_pipeline")[name] == pytest.approx(0.85)
    even = StepFold()
    for group, reward_mean in enumerate([0.8, 0.8, 0.9, 0.9]):
        even.add(group, {"group_advantages/reward_mean": reward_mean})
    assert even.metrics("experience_pipeline")[name] == pytest.approx(0.85)


def test_a_run_is_the_mean_of_its_experiences_over_those_that_carry_the_metric():
    turns = [{"accuracy": 1.0, "tokens:sum": 3}, {"accuracy": 0.5}, None, {"note": "text", "tokens:sum": 4}]
    assert fold_experiences(turns) == {"accuracy": 0.75, "tokens:sum": 7.0}


def test_suffixes_decide_the_reducer_at_every_level():
    fold = StepFold()
    for task, order, tokens in [("a", 0, 1), ("a", 1, 5), ("b", 0, 2)]:
        fold.add(task, {f"tok:{how}": tokens for how in ("sum", "max", "min", "last")}, order=order)
    metrics = fold.metrics(counts=False)
    assert metrics == {
        "rollout/tok/sum": 8.0,
        "rollout/tok/max": 5.0,
        "rollout/tok/min": 1.0,
        "rollout/tok/last": 2.0,
    }


def test_a_metric_and_its_suffixed_twin_do_not_overwrite_each_other():
    fold = StepFold()
    fold.add(0, {"a": 1, "a:sum": 2, "a:max": 7})
    metrics = fold.metrics(counts=False)
    assert metrics == {
        "rollout/a/mean": 1,
        "rollout/a/max": 1,
        "rollout/a/min": 1,
        "rollout/a/sum": 2,
        "rollout/a:max/max": 7,
    }
    table = fold_steps([0], [0], {"a": [1], "a:sum": [2], "a:max": [7]}, counts=False)
    assert dict(table.rows()) == {0: metrics}


def test_the_last_run_is_the_last_one_added_unless_an_order_is_given():
    fold = StepFold()
    for value in (5.0, 3.0):
        fold.add(0, {"x:last": value})
    assert fold.metrics(counts=False) == {"rollout/x/last": 3.0}
    assert dict(fold_steps([0, 0], [0, 0], {"x:last": [5.0, 3.0]}).rows()) == {0: {"rollout/x/last": 3.0}}


def test_an_unknown_suffix_is_part_of_the_name():
    fold = StepFold()
    fold.add(0, {"a:b": 3})
    assert fold.metrics(counts=False)["rollout/a:b/mean"] == 3


def test_numpy_and_torch_scalars_count_and_text_does_not():
    fold = StepFold()
    fold.add(
        0, {"a": np.float32(0.5), "b": np.int64(3), "c": True, "d": np.array([2.0]), "e": "1", "f": None}
    )
    assert fold.task_metrics(0) == {"a": 0.5, "b": 3.0, "c": 1.0, "d": 2.0}


def test_each_policy_does_what_it_says():
    def step(**policy):
        fold = StepFold(Policy(**policy))
        fold.add("t", {"accuracy": 1.0, "time/run": 2.0})
        fold.add("t", {"time/run": 4.0})
        fold.add_failed("t")
        return fold.metrics()

    assert step()["rollout/accuracy/mean"] == 1.0
    assert step(missing="zero")["rollout/accuracy/mean"] == 0.5
    assert step(failed="zero")["rollout/accuracy/mean"] == 0.5
    assert step(failed="zero")["rollout/time/run/mean"] == 3.0
    both = step(failed="both")
    assert (both["rollout/accuracy/mean"], both["rollout/accuracy/mean_failed_as_zero"]) == (1.0, 0.5)
    with pytest.raises(UsageError, match="1 of 2 runs"):
        step(missing="error")


def test_a_nan_is_skipped_and_counted_or_goes_through_or_stops():
    def step(policy):
        fold = StepFold(Policy(nan=policy))
        fold.add("t", {"a": math.nan})
        fold.add("t", {"a": 2.0})
        return fold.metrics()

    assert step("skip")["rollout/a/mean"] == 2.0
    assert math.isnan(step("propagate")["rollout/a/mean"])
    with pytest.raises(UsageError, match="not finite"):
        step("error")


@given(st.lists(finite, max_size=30), st.randoms(use_true_random=False))
def test_states_merge_to_the_same_state_in_any_order_and_any_split(values, rng):
    pairs = list(enumerate(values))
    whole = Moments()
    for order, value in pairs:
        whole.add(value, order=order)
    rng.shuffle(pairs)
    parts = [Moments() for _ in range(rng.randint(1, 5))]
    for order, value in pairs:
        rng.choice(parts).add(value, order=order)
    merged = Moments()
    for part in rng.sample(parts, len(parts)):
        merged.merge(Moments.from_json(json.loads(json.dumps(part.to_json()))))
    assert merged == whole


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=20))
def test_the_sum_is_rounded_once(values):
    moments = Moments.of(values)
    assert moments.sum == math.fsum(values)
    assert moments.mean == math.fsum(values) / len(values)
    assert moments.std() == pytest.approx(float(np.std(values)), rel=1e-6, abs=1e-6 * max(map(abs, values)))


@given(st.lists(st.lists(finite, min_size=4, max_size=4), min_size=1, max_size=10))
def test_row_sums_are_those_of_fsum(rows):
    def fsum(row):
        try:
            return math.fsum(row)
        except OverflowError:
            return Moments.of(row).sum

    with np.errstate(all="ignore"):
        columns = [np.array([row[rank] for row in rows]) for rank in range(4)]
        assert exact_row_sums(columns).tolist() == [fsum(row) for row in rows]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), numbers), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_streamed_resumed_and_offline_values_are_the_same_doubles(rows, rng):
    metrics = ("m", "m:mean", "s:sum", "s:max", "s:min", "s:last")
    offline = fold_steps(
        [row[0] for row in rows],
        [row[1] for row in rows],
        {metric: [row[2] for row in rows] for metric in metrics},
    )
    shuffled = rng.sample(list(enumerate(rows)), len(rows))
    cut = rng.randint(0, len(rows))
    for step, expected in offline.rows():
        parts = []
        for chunk in (shuffled[:cut], shuffled[cut:]):
            fold = StepFold()
            for order, (_, task, value) in (row for row in chunk if row[1][0] == step):
                fold.add(task, dict.fromkeys(metrics, value), order=order)
            parts.append(StepFold.from_json(json.loads(json.dumps(fold.to_json()))))
        parts[0].merge(parts[1])
        streamed = parts[0].metrics()
        assert {name: value for name, value in streamed.items() if not name.endswith("_count")} == expected


def test_a_column_fold_knows_missing_from_nan_and_rows_in_any_order():
    rng = random.Random(1)
    rows = [(task, value) for task in range(300) for value in (0.1, 0.7)]
    rng.shuffle(rows)
    table = fold_steps(
        [0] * len(rows),
        [task for task, _ in rows],
        {"a": [value for _, value in rows]},
        present={"a": [task != 7 for task, _ in rows]},
    )
    ((_, metrics),) = table.rows()
    assert metrics["rollout/a/count"] == 299
    assert metrics["rollout/a/missing"] == 2
    assert metrics["rollout/a/mean"] == pytest.approx(0.4)
