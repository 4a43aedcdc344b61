"""The arithmetic behind levels: how likely a pattern is by chance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge.checks.building_blocks.chance import (
    best_split,
    chance_all_flat,
    chance_all_same,
    longest_stretches,
    rank_correlation_within,
    superiority,
)
from rollforge.checks.building_blocks.finding import more_needed, share
from rollforge.checks.building_blocks.text_samples import bare, concludes


def test_the_chance_of_all_zeros_agrees_with_drawing_them() -> None:
    rng = np.random.default_rng(1)
    counts = np.asarray([4] * 10)
    strength = 1 / 0.3 - 1
    rates = rng.beta(0.05 * strength, 0.95 * strength, (200_000, 10))
    drawn = (rng.random((200_000, 10)) < (1 - rates) ** 4).all(axis=1).mean()
    assert chance_all_same(counts, 0.05, 0.3) == pytest.approx(drawn, abs=0.01)


def test_twenty_zeros_are_likely_and_two_thousand_are_not() -> None:
    assert chance_all_same(np.ones(20, dtype=np.int64), 0.01, 0.3) > 0.5
    assert chance_all_same(np.full(250, 8), 0.01, 0.3) < 0.001
    assert chance_all_same(np.full(100, 20), 0.01, 0.3) < 0.01


@given(st.integers(2, 16), st.integers(1, 50), st.floats(0.05, 0.95), st.floats(0.05, 0.95))
def test_flat_tasks_are_likelier_the_more_alike_samples_are(
    k: int, tasks: int, rate: float, alike: float
) -> None:
    counts = np.full(tasks, k)
    less, more = chance_all_flat(counts, rate, alike), chance_all_flat(counts, rate, min(alike + 0.04, 0.99))
    assert 0 <= less <= more * (1 + 1e-9) and more <= 1


def test_what_differs_between_tasks_does_not_correlate_within_them() -> None:
    rng = np.random.default_rng(2)
    group = np.repeat(np.arange(400), 8)
    level = rng.normal(0, 5, 400)[group]
    found = rank_correlation_within(level + rng.random(3200), level + rng.random(3200), group)
    assert found is not None and found.low < 0 < found.high and found.tasks == 400


def test_a_perfect_order_within_tasks_is_a_correlation_of_one() -> None:
    group, x = np.repeat(np.arange(50), 4), np.tile([1.0, 2.0, 3.0, 4.0], 50)
    up, down = rank_correlation_within(x, x * 7 + group, group), rank_correlation_within(x, -x, group)
    assert up is not None and up.value == pytest.approx(1.0)
    assert down is not None and down.value == pytest.approx(-1.0)


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_superiority_is_the_share_of_pairs(first: list[float], second: list[float]) -> None:
    pairs = [(b > a) + (a == b) / 2 for a in first for b in second]
    assert superiority(np.asarray(first), np.asarray(second)) == pytest.approx(sum(pairs) / len(pairs))


@given(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=60))
def test_the_longest_run_is_the_longest(values: list[float]) -> None:
    [found] = longest_stretches(np.asarray(values), 1)
    text = "".join(str(int(value)) for value in values)
    assert found.length == max(map(len, text.replace("01", "0 1").replace("10", "1 0").split()))
    assert len(set(values[found.start : found.start + found.length])) == 1


def test_a_step_is_found_where_it_is() -> None:
    rng = np.random.default_rng(3)
    place, z = best_split(np.append(rng.normal(0, 1, 300), rng.normal(3, 1, 200)))
    assert abs(place - 300) < 10 and z > 10


@given(st.integers(0, 200), st.integers(1, 200))
def test_a_share_lies_in_its_interval(count: int, n: int) -> None:
    count = min(count, n)
    found = share(count, n)
    assert 0 <= found.low <= found.value + 1e-9 and found.value - 1e-9 <= found.high <= 1
    assert found.level_above(warning=found.value, error=1.0) in (None, "note")


def test_more_rollouts_settle_a_share_that_is_near_its_limit() -> None:
    assert more_needed(0.2, 0.2, 100) is None
    near, far = more_needed(0.22, 0.2, 100), more_needed(0.6, 0.2, 100)
    assert near is not None and far is not None and near > 1000 > far
    assert share(0.22 * (100 + near), 100 + near).low > 0.2


@pytest.mark.parametrize(
    ("answer", "expected", "does"),
    [
        ("so the answer is 42.", "42", True),
        ("it is 142", "42", False),
        ("42.5 metres", "42", False),
        ("that makes -42", "42", False),
        ("142, or rather 42", "42", True),
        ("$x = 42$", "$42$", True),
        ("I choose (B).", "b", True),
        ("42 " + "and then much more " * 20, "42", False),
        ("", "42", False),
    ],
)
def test_an_answer_concludes_in_the_expected_one_as_a_word(answer: str, expected: str, does: bool) -> None:
    assert concludes(answer, expected) is does


def test_formatting_is_no_difference() -> None:
    assert bare("The **Answer**:\n 42!") == bare("the answer 42") != bare("the answer 43")
