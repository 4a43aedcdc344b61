"""Operators one by one, on groups worked by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge.experience import Experience
from rollforge.operators import OPERATORS


def make(number, task="t", reward=0.0, **fields):
    fields = {"run": f"r{number}"} | fields
    return Experience(id=f"e{number}", task=task, reward=reward, **fields)


def group(*rewards, task="t"):
    return [make(f"{task}{i}", task=task, reward=reward) for i, reward in enumerate(rewards)]


def apply(name, experiences, **options):
    return OPERATORS.load(name)(**options).apply(experiences)


def advantages(method, *rewards):
    outcome = apply("group_advantages", group(*rewards), method=method)
    return [experience.advantage for experience in outcome.experiences]


@pytest.mark.parametrize(
    ("method", "size"), [("grpo", 0.86603), ("step-wise", 0.86603), ("drgrpo", 0.5), ("rloo", 0.66667)]
)
def test_golden_group_advantages(method, size):
    assert advantages(method, 1, 0, 0, 1) == pytest.approx([size, -size, -size, size], abs=1e-4)


def test_reinforce_plus_plus_whitens_over_the_step_and_weighs_by_tokens():
    assert advantages("reinforce++", 1, 0, 0, 1) == pytest.approx(
        [0.86603, -0.86603, -0.86603, 0.86603], abs=1e-4
    )
    long = make(0, reward=1.0, mask=np.ones(3, dtype=bool))
    short = make(1, reward=0.0, mask=np.ones(1, dtype=bool))
    outcome = apply("group_advantages", [long, short], method="reinforce++")
    values = np.array([1.0, 1.0, 1.0, 0.0])
    expected = (values - values.mean()) / np.sqrt(values.var(ddof=1) + 1e-8)
    assert [e.advantage for e in outcome.experiences] == pytest.approx([expected[0], expected[3]])
    assert outcome.experiences[0].advantages.tolist() == pytest.approx([expected[0]] * 3)


def test_equal_rewards_have_an_advantage_of_exactly_zero_despite_float_noise():
    assert advantages("grpo", *[0.85] * 7) == [0.0] * 7
    assert advantages("rloo", 0.1 + 0.2, 0.3) == [0.0, 0.0]


def test_a_group_of_one_has_no_advantage_and_does_not_pollute_the_statistics():
    outcome = apply("group_advantages", [*group(1, 0, 1, task="a"), *group(1, task="b")])
    assert outcome.experiences[-1].advantage == 0.0
    assert outcome.metrics["reward_mean/mean"] == pytest.approx(2 / 3)
    assert (outcome.metrics["groups"], outcome.metrics["single_groups"]) == (1, 1)


def test_turns_of_a_run_count_once_and_share_the_last_turns_reward():
    turns = [make(i, run="a", turn=i, reward=reward) for i, reward in enumerate([0.0, 0.0, 1.0])]
    other = make(9, run="b", reward=0.0)
    whole = apply("group_advantages", [*turns, other], method="drgrpo").experiences
    assert [e.advantage for e in whole] == [0.5, 0.5, 0.5, -0.5]
    each = apply("group_advantages", [*turns, other], method="step-wise").experiences
    assert [e.advantage for e in each] == pytest.approx([0.70711] * 3 + [-0.70711], abs=1e-4)
    shared = apply("group_advantages", [*turns, other], method="step-wise", divide_by_turns=True).experiences
    assert shared[0].advantage == pytest.approx(0.70711 / 3, abs=1e-4)


def test_unjudged_experiences_are_dropped_by_name_and_never_zero():
    outcome = apply("group_advantages", group(1, None, 0))
    assert outcome.dropped == {"unjudged": 1}
    assert [e.advantage for e in outcome.experiences] == pytest.approx([0.70711, -0.70711], abs=1e-4)


def test_reward_filter_names_its_reasons():
    outcome = apply("reward_filter", group(0.1, 0.5, 0.9, None, math.nan), min=0.2, max=0.8)
    assert [e.reward for e in outcome.experiences] == [0.5]
    assert outcome.dropped == {"below_min": 1, "above_max": 1, "unjudged": 1, "not_finite": 1}


def test_zero_signal_is_max_minus_min_so_float_noise_hides_nothing():
    groups = [*group(*[0.1] * 3, task="a"), *group(*[0.7] * 3, task="b"), *group(*[0.85] * 7, task="c")]
    outcome = apply("zero_signal_filter", [*groups, *group(0, 1, task="d"), *group(1, task="e")])
    assert {e.task for e in outcome.experiences} == {"d"}
    assert outcome.dropped == {"zero_signal": 13, "single": 1}
    assert (outcome.metrics["groups_in"], outcome.metrics["groups_out"]) == (5, 1)
    told_apart = apply("zero_signal_filter", [*group(1, 1, task="a"), *group(0, 0, task="b")], solved=1.0)
    assert told_apart.dropped == {"all_solved": 2, "none_solved": 2}


def test_zero_signal_can_look_at_the_outcome_under_a_shaped_reward():
    shaped = [make(i, reward=0.1 * i, metrics={"accuracy": 0.0}) for i in range(3)]
    assert apply("zero_signal_filter", shaped).dropped == {}
    assert apply("zero_signal_filter", shaped, metric="accuracy").dropped == {"zero_signal": 3}


def test_length_filter_in_tokens_and_characters():
    experiences = [make(i, response="x" * i, output_tokens=i or None) for i in range(4)]
    outcome = apply("length_filter", experiences, min=2, max=2)
    assert [e.id for e in outcome.experiences] == ["e2"]
    assert outcome.dropped == {"unknown_length": 1, "too_short": 1, "too_long": 1}
    assert len(apply("length_filter", experiences, max=1, unit="chars").experiences) == 2


def test_truncated_answers_are_dropped_or_masked():
    experiences = [
        make(0, truncated=True, mask=np.ones(2, dtype=bool)),
        make(1, truncated=False),
        make(2, truncated=None),
    ]
    assert apply("truncation_filter", experiences).dropped == {"truncated": 1}
    masked = apply("truncation_filter", experiences, action="mask")
    assert masked.metrics["masked"] == 1
    assert not masked.experiences[0].mask.any()
    assert experiences[0].mask.all()


def test_dedupe_remembers_from_step_to_step():
    dedupe = OPERATORS.load("dedupe")()
    assert dedupe.apply([make(0, response="a  b"), make(1, response="a b\n")]).dropped == {"duplicate": 1}
    assert dedupe.apply([make(2, response="a b")]).dropped == {"duplicate": 1}
    assert dedupe.apply([make(3, task="other", response="a b")]).dropped == {}
    anywhere = OPERATORS.load("dedupe")(scope="run")
    assert anywhere.apply([make(0, response="a"), make(1, task="u", response="a")]).dropped == {
        "duplicate": 1
    }


def test_reward_shaping_keeps_the_reward_it_started_from():
    outcome = apply(
        "reward_shaping",
        [make(0, reward=1.0, metrics={"length": 10.0}), make(1, reward=0.0), make(2, reward=None)],
        scale=2.0,
        weights={"length": -0.05},
        min=0.0,
    )
    assert [e.reward for e in outcome.experiences] == [1.5, 0.0, None]
    assert outcome.experiences[0].metrics["unshaped_reward"] == 1.0
    assert outcome.metrics["reward_diff/max"] == 0.5
    assert outcome.metrics["missing"] == 2


def test_rewards_are_normalised_over_the_step_or_the_taskset():
    outcome = apply("normalise_rewards", group(0.0, 2.0, None))
    assert [e.reward for e in outcome.experiences] == [-1.0, 1.0, None]
    mixed = [
        make(0, taskset="a", reward=10.0),
        make(1, taskset="a", reward=20.0),
        make(2, taskset="b", reward=0.5),
    ]
    ranged = apply("normalise_rewards", mixed, method="range", over="taskset")
    assert [e.reward for e in ranged.experiences] == [0.0, 1.0, 0.5]


def test_difficulty_band_notes_the_difficulty():
    experiences = [
        *group(1, 0, 0, 0, task="a"),
        *group(1, 1, task="b"),
        *group(0, 0, task="c"),
        *group(None, task="d"),
    ]
    outcome = apply("difficulty_band", experiences, min=0.2, max=0.8)
    assert {e.task for e in outcome.experiences} == {"a"}
    assert outcome.experiences[0].difficulty == 0.75
    assert outcome.dropped == {"too_easy": 2, "too_hard": 2, "unjudged": 1}


def test_balance_limits_tasks_and_outcomes_the_same_way_in_any_order():
    experiences = [*group(1, 0, 0, 0, 0, task="a"), *group(1, 1, 1, task="b")]
    outcome = apply("balance", experiences, ratio=1.0)
    assert [e.reward for e in outcome.experiences] == [1, 0] or [e.reward for e in outcome.experiences] == [
        1.0,
        0.0,
    ]
    assert outcome.dropped == {"surplus_outcome": 6}
    backwards = apply("balance", experiences[::-1], ratio=1.0)
    assert {e.id for e in backwards.experiences} == {e.id for e in outcome.experiences}
    assert len(apply("balance", experiences, max_per_task=2).experiences) == 4


@pytest.mark.parametrize(
    ("given", "ratio", "kept"),
    [
        ((1, 0), 2.0, [1, 0]),
        ((1, 1, 1, 0, 0, 0), 2.0, [1, 1, 0, 0, 0]),
        ((1, 0, 0, 0), 2.0, [1, 0, 0]),
        ((1, 1, 0), 0.5, [1, 1, 0]),
    ],
)
def test_balance_keeps_at_most_the_ratio_of_failures_and_drops_no_more_than_that_takes(given, ratio, kept):
    outcome = apply("balance", group(*given), ratio=ratio)
    assert sorted((e.reward for e in outcome.experiences), reverse=True) == kept


@pytest.mark.parametrize("values", [(0.1, 0.1, 0.1), (0.3, 0.1 + 0.2), (1e9, 1e9), (0.0, 0.0)])
def test_equal_rewards_are_normalised_to_zero_whatever_rounding_says(values):
    outcome = apply("normalise_rewards", group(*values))
    assert [e.reward for e in outcome.experiences] == [0.0] * len(values)
    kept = apply("normalise_rewards", group(*values), method="range")
    assert [e.reward for e in kept.experiences] == list(values)


rewards = st.one_of(st.none(), st.floats(-2, 2), st.just(math.nan))


@settings(max_examples=40)
@pytest.mark.parametrize("name", OPERATORS.names())
@given(st.lists(st.tuples(st.sampled_from("abc"), rewards, st.sampled_from(["", "x", "yy"])), max_size=12))
def test_every_operator_accounts_for_every_experience_and_changes_none_in_place(name, rows):
    if name in ("group_advantages", "normalise_rewards", "difficulty_band"):
        rows = [row for row in rows if row[1] is None or math.isfinite(row[1])]
    experiences = [
        make(i, task=task, reward=reward, response=text) for i, (task, reward, text) in enumerate(rows)
    ]
    before = [(e.id, e.reward, e.advantage, dict(e.metrics)) for e in experiences]
    outcome = apply(name, experiences)
    assert len(outcome.experiences) + outcome.dropped.total() == len(experiences)
    places = [int(e.id[1:]) for e in outcome.experiences]
    assert places == sorted(places)
    assert str([(e.id, e.reward, e.advantage, dict(e.metrics)) for e in experiences]) == str(before)
