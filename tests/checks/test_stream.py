"""The detectors that watch a collection: quiet on healthy verdicts, quick on broken ones, never on one sign alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollforge.checks.building_blocks.stream import SuspectWindow, Watch, suspect_condition
from rollforge.testing import MadeRun, Shape, healthy_run, sick_run


def watched(run: MadeRun) -> Watch:
    """The verdicts of a run, seen one after another until it trips."""
    watch, columns = Watch(), run.columns
    is_right = run.value == run.expected[columns["task"]]
    for row in range(len(run)):
        reward = float(columns["reward"][row])
        watch.observe(
            int(columns["task"][row]),
            None if reward != reward else reward,
            answer_hash=int(columns["answer_hash"][row]),
            is_empty=bool(columns["is_empty"][row]),
            verify_seconds=float(columns["verify_seconds"][row]),
            at=float(row),
            looks_right=lambda row=row: bool(is_right[row]),
        )
        if watch.tripped:
            break
    return watch


def test_healthy_runs_never_trip_it() -> None:
    assert not [seed for seed in range(25) if watched(healthy_run(seed=seed)).tripped]


@pytest.mark.parametrize("defect", ["always-zero", "breaks-halfway", "times-out", "fails-fast"])
def test_broken_verification_trips_it_with_two_signs(defect: str) -> None:
    watch = watched(sick_run(defect, seed=2, shape=Shape(tasks=400, samples=4)))
    assert watch.tripped and watch.light == "red" and len(watch.signals) >= 2 and watch.reason


def test_it_trips_soon_after_the_break() -> None:
    watch = watched(sick_run("breaks-halfway", seed=2, shape=Shape(tasks=1000, samples=4)))
    window = watch.window()
    assert 0 < window.rollouts < 400 and window.first_at <= window.last_at


def test_equal_rewards_alone_are_one_sign_and_turn_the_light_yellow() -> None:
    watch = Watch()
    for number in range(300):
        watch.observe(number // 2, float(number % 3 == 0), verify_seconds=0.01)
    assert watch.light == "green"
    for number in range(300):
        watch.observe(1000 + number, 0.0, verify_seconds=0.01)
    assert watch.light == "yellow" and not watch.tripped
    watch.observe(5000, 1.0, verify_seconds=0.01)
    for number in range(300):
        watch.observe(6000 + number // 2, float(number % 3 == 0), verify_seconds=0.01)
    assert watch.light == "green"


def test_a_verifier_that_fails_is_no_broken_reward() -> None:
    watch = Watch()
    for number in range(200):
        watch.observe(number, float(number % 2), verify_seconds=0.01)
    for number in range(200):
        watch.observe(number, None, has_failure=True)
    assert watch.light == "yellow" and not watch.tripped


def test_a_verifier_that_fails_on_nine_of_ten_trips_by_itself() -> None:
    watch = Watch()
    for number in range(40):
        is_judged = number % 15 == 0
        watch.observe(number, 1.0 if is_judged else None, has_failure=not is_judged)
    assert watch.tripped and "the verifier failed on" in watch.reason


def test_a_verifier_that_fails_on_nearly_everything_trips_by_itself() -> None:
    watch = Watch()
    for number in range(19):
        watch.observe(number, None, has_failure=True, at=number)
    assert not watch.tripped
    watch.observe(19, None, has_failure=True, at=19.0)
    assert watch.tripped and "20 of 20" in watch.reason
    assert watch.window().rollouts == 20


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from([0.0, 1.0, None])), max_size=300))
def test_rewards_alone_never_trip_it(verdicts: list[tuple[int, float | None]]) -> None:
    watch = Watch()
    for task, reward in verdicts:
        watch.observe(task, reward)
    assert not watch.tripped and watch.seen == len(verdicts)


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_settled_tasks_are_forgotten_and_still_counted(reward: float) -> None:
    settling, holding = Watch(), Watch()
    for number in range(4000):
        for watch in (settling, holding):
            watch.observe(number // 4, reward, answer_hash=number, looks_right=lambda: True)
        if number % 4 == 3:
            settling.settle(number // 4)
        assert settling.signals == holding.signals and settling.tripped == holding.tripped
    assert settling.window() == holding.window()
    assert not settling._tasks and len(holding._tasks) == 1000


def test_the_window_begins_where_verdicts_became_odd_though_some_still_differ() -> None:
    watch = Watch()
    for number in range(3000):
        is_late = number >= 1000
        reward = float(number % 40 == 0) if is_late else float(number % 2)
        watch.observe(number, reward, verify_seconds=2.0 if is_late else 0.01, at=float(number))
        if watch.tripped:
            break
    window = watch.window()
    assert watch.tripped and 900 <= window.first_at <= 1050
    assert window.rollouts == watch.seen - window.first_at - 1
    assert (
        suspect_condition(SuspectWindow(first_at=1.0, last_at=2.0))
        == "to_timestamp(started + seconds) between '1970-01-01 00:00:00.999+00:00' and '1970-01-01 00:00:02.001+00:00'"
    )
