"""A run whose rewards never move is no proof by itself: the breaker wants a second sign that means something."""

from __future__ import annotations

import pytest

from rollforge.checks.stream import Watch


@pytest.mark.parametrize("reward", [1.0, 0.5, -1.0])
def test_equal_rewards_for_right_answers_trip_nothing(reward: float) -> None:
    watch = Watch()
    for task in range(3000):
        watch.observe(task, max(reward, 0.1), answer_hash=1, verify_seconds=0.001, looks_right=lambda: True)
    assert not watch.tripped


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_from_a_verifier_that_warms_up_trip_nothing(reward: float) -> None:
    watch = Watch()
    for number in range(4000):
        seconds = 0.5 if number < 40 else 0.00002
        watch.observe(number // 4, reward, answer_hash=7, verify_seconds=seconds, looks_right=lambda: False)
    assert not watch.tripped


def test_zeros_for_answers_that_end_in_the_expected_one_trip_it() -> None:
    watch = Watch()
    for task in range(1000):
        watch.observe(task, 0.0, answer_hash=task, verify_seconds=0.001, looks_right=lambda: True)
    assert watch.tripped and "expected" in watch.reason
