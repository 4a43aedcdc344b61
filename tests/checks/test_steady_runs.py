"""A run whose rewards never move is no proof by itself: the breaker wants a second sign that means something."""

from __future__ import annotations

import pytest

from rollforge.checks.building_blocks.stream import Watch


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


@pytest.mark.parametrize("reward", [0.0, 0.37, 1.0])
@pytest.mark.parametrize(("tasks", "samples"), [(300, 4), (45, 64)])
def test_one_reward_for_right_and_wrong_answers_alike_trips_it(
    reward: float, tasks: int, samples: int
) -> None:
    watch = Watch()
    for number in range(tasks * samples):
        watch.observe(
            number // samples, reward, answer_hash=number, looks_right=lambda number=number: number % 3 == 0
        )
    assert watch.tripped and "these answers" in watch.reason


def test_low_rewards_of_wrong_answers_on_a_machine_that_slows_down_trip_nothing() -> None:
    """Tasks sorted from easy to hard, and a neighbour that takes the processor away half-way."""
    watch = Watch()
    for number in range(4000):
        is_late = number >= 2000
        is_right = number % 2 == 0 if not is_late else number % 40 == 0
        seconds = 0.06 if is_late else 0.01
        watch.observe(
            number // 4, float(is_right), verify_seconds=seconds, looks_right=lambda right=is_right: right
        )
    assert not watch.tripped
    assert "latency" not in watch.signals


def test_low_rewards_of_right_answers_trip_it_also_where_some_are_still_rewarded() -> None:
    watch = Watch()
    for number in range(4000):
        is_right = number % 2 == 0
        reward = float(is_right) if number < 2000 else float(number % 40 == 0)
        watch.observe(number // 4, reward, verify_seconds=0.01, looks_right=lambda right=is_right: right)
        if watch.tripped:
            break
    assert watch.tripped and "expected" in watch.reason and 2000 < watch.seen < 2400


def test_a_few_hard_tasks_in_a_row_are_no_fall_of_the_rewards() -> None:
    watch = Watch()
    for number in range(2400):
        task = number // 4
        is_hard = 300 <= task < 312
        watch.observe(task, float(number % 2 and not is_hard), verify_seconds=0.06 if is_hard else 0.01)
        assert "rewards" not in watch.signals
    assert not watch.tripped
