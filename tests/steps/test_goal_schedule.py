"""The schedule of a goal: what it asks for, in any order of answers and after any kill."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from rollforge.adaptive.design import SamplingDesign
from rollforge.recipes.base import RecipeOptions
from rollforge.recipes.usable import usable_in_task
from rollforge.steps.collect.goal.from_options import recipe_options
from rollforge.steps.collect.goal.goal_schedule import TaskRollouts
from rollforge.steps.collect.goal.task_book import TaskJudge
from tests.goal_driver import Drawn, bimodal, drive, facts, summarize_quickly


def design(recipe: str = "grpo", target: int = 20, **more: object) -> SamplingDesign:
    return SamplingDesign(
        **{"recipe": recipe, "target": target, "first": 2, "whole": 8, "most": 8, "audit": 0.0} | more
    )  # type: ignore[arg-type]


def sizes(drawn: Drawn) -> Counter[int]:
    return Counter(position for position, _ in drawn)


def usable(drawn: Drawn, recipe: str, options: RecipeOptions) -> int:
    own: dict[int, list] = {}
    for (position, sample), (reward, _) in sorted(drawn.items()):
        own.setdefault(position, []).append(facts(sample, reward))
    return sum(usable_in_task(recipe, position, each, options) for position, each in own.items())


def test_draws_are_compared_with_the_first_sample_whenever_they_came() -> None:
    """One sample apart, then three alike: none of the others matches the first, though two match the last."""

    def reward(position: int, sample: int) -> float:
        return float(sample > 0)

    for more in ({"first": 4}, {"first": 4, "base": 4}):
        asked = design("dpo", 1, whole=4, most=4, **more)
        came: Drawn = {(0, sample): (reward(0, sample), "first") for sample in (2, 0, 3, 1)}
        schedule, _ = drive([0.5], asked, drawn=came if "base" in more else None, rewards=reward)
        summary = schedule._book.get(0)
        assert (summary.drawn, summary.lows, summary.same) == (4, 1, 0)


@pytest.mark.parametrize(("gap", "same"), [(0.2, 0), (0.199999999, 0), (0.199999998, 1)])
def test_a_draw_that_reaches_the_gap_up_to_rounding_is_not_the_same_as_the_first(
    gap: float, same: int
) -> None:
    judge = TaskJudge(design("dpo"), RecipeOptions(min_gap=0.2))
    own = [facts(0, 0.0), facts(1, gap)]
    summary = judge.summarize(0, own, samples_asked=2, tokens=2, everything=own)
    assert summary.same == same


@pytest.mark.parametrize("recipe", ["grpo", "dpo", "sft", "kto", "rm"])
def test_a_goal_is_reached_and_counted_as_the_recipe_counts(recipe: str) -> None:
    rates = bimodal(600, np.random.default_rng(1))
    asked = design(recipe, 40)
    schedule, drawn = drive(rates, asked)
    assert schedule.usable == usable(drawn, recipe, recipe_options(asked)) >= 40
    assert schedule.usable <= 40 + 16
    assert schedule.owed == 0


def test_usable_groups_are_whole_and_hopeless_tasks_stop_early() -> None:
    rates = bimodal(2000, np.random.default_rng(2))
    _, drawn = drive(rates, design(target=150))
    by_task = sizes(drawn)
    rewards: dict[int, set[float]] = {}
    for (position, _), (reward, _) in drawn.items():
        rewards.setdefault(position, set()).add(reward)
    assert all(by_task[position] == 8 for position, values in rewards.items() if len(values) == 2)
    flat = [by_task[position] for position, values in rewards.items() if len(values) == 1]
    assert np.mean(flat) < 5
    assert min(by_task.values()) >= 2


def test_decisions_do_not_depend_on_the_order_of_answers() -> None:
    rates = bimodal(800, np.random.default_rng(3))
    asked = design(target=60, audit=0.05)
    expected = drive(rates, asked)[1]
    for seed in range(3):
        for at_once in (7, 300):
            assert drive(rates, asked, order=random.Random(seed), at_once=at_once)[1] == expected


def test_a_kill_at_any_moment_changes_nothing() -> None:
    rates = bimodal(500, np.random.default_rng(4))
    asked = design("dpo", 50, audit=0.05)
    expected = drive(rates, asked)[1]
    for seed in range(4):
        chance = random.Random(seed)
        drawn: Drawn = {}
        for _ in range(200):
            before = len(drawn)
            drive(rates, asked, order=chance, drawn=drawn, stop_after=chance.randrange(1, 150))
            if len(drawn) == before:
                break
        assert drawn == expected


def test_tasks_that_run_out_are_topped_up_the_most_promising_first() -> None:
    rates = [0.0] * 60 + [0.3] * 20 + [1.0] * 60
    schedule, drawn = drive(rates, design(target=1000))
    by_task = sizes(drawn)
    assert schedule.next_ask(is_ending=False) is None
    assert all(by_task[position] == 8 for position in range(60, 80))
    assert schedule.usable == usable(drawn, "grpo", RecipeOptions()) >= 15


def test_hard_tasks_get_more_than_a_group_when_allowed() -> None:
    rates = [0.03] * 300
    _, drawn = drive(rates, design(target=250, most=32))
    assert max(sizes(drawn).values()) > 8
    assert max(sizes(drawn).values()) <= 32


def test_an_ending_run_only_fills_groups_that_are_usable() -> None:
    rates = [0.5] * 100
    schedule, _ = drive(rates, design(target=50), stop_after=40, at_once=1000)
    seen = []
    while (ask := schedule.next_ask(is_ending=True)) is not None:
        seen.append(ask)
    assert all(ask.stage == "more" for ask in seen)


def test_continuous_rewards_are_sampled_by_the_chance_of_a_gap() -> None:
    def reward(position: int, sample: int) -> float:
        draw = random.Random(position * 1009 + sample)
        return draw.random() if position % 5 == 0 else 0.5 + 0.01 * draw.random()

    asked = design("dpo", 60, min_gap=0.3)
    schedule, drawn = drive([0.5] * 1500, asked, rewards=reward)
    by_task = sizes(drawn)
    spread = [size for position, size in by_task.items() if position % 5 == 0]
    flat = [size for position, size in by_task.items() if position % 5]
    assert schedule.usable == usable(drawn, "dpo", recipe_options(asked)) >= 60
    assert np.mean(spread) > np.mean(flat) + 1


def test_a_band_is_part_of_what_counts() -> None:
    rates = [float(rate) for rate in np.random.default_rng(5).random(900)]
    asked = design("grpo", 60, band=(0.25, 0.75))
    schedule, drawn = drive(rates, asked)
    assert schedule.usable == usable(drawn, "grpo", recipe_options(asked)) >= 60


def test_a_finished_run_is_topped_up_where_it_pays() -> None:
    rates = [0.0] * 50 + [0.5] * 50 + [1.0] * 50
    base: Drawn = {}
    drive(rates, design(target=10_000, first=8), drawn=base)
    assert set(sizes(base).values()) == {8}
    pairs = usable(base, "dpo", RecipeOptions())
    asked = design("dpo", pairs + 60, first=8, base=8, most=32)
    schedule, drawn = drive(rates, asked, drawn=dict(base))
    more = {position for position, size in sizes(drawn).items() if size > 8}
    assert schedule.usable >= pairs + 60
    assert more <= set(range(50, 100))
    assert {size % 8 for size in sizes(drawn).values()} == {0}


def test_the_forecast_names_tokens_and_tasks_with_an_interval() -> None:
    rates = bimodal(3000, np.random.default_rng(6))
    asked = design(target=100)
    half = drive(rates, asked, stop_after=1200)[0].progress()
    whole = drive(rates, asked)[0].progress()
    assert (
        half.needed_tokens is not None
        and half.needed_tokens.low is not None
        and half.needed_tokens.high is not None
    )
    truth = whole.tokens - half.tokens
    assert 0.5 * half.needed_tokens.low <= truth <= 2 * half.needed_tokens.high
    assert whole.is_reached and whole.needed_tokens is None


def test_the_quick_summary_of_the_simulations_is_the_real_one() -> None:
    chance = random.Random(7)
    for recipe in ("grpo", "dpo", "sft", "kto"):
        judge = TaskJudge(design(recipe), RecipeOptions())
        for _ in range(40):
            own = [facts(sample, float(chance.random() < 0.5)) for sample in range(chance.randrange(1, 7))]
            seen = own[: chance.randrange(1, len(own) + 1)]
            real = judge.summarize(3, seen, samples_asked=2, tokens=5, everything=own)
            quick = summarize_quickly(judge, 3, seen, samples_asked=2, tokens=5, everything=own)
            assert real.units == quick.units
            if recipe != "kto":
                assert real == quick


@pytest.mark.parametrize("recipe", ["dpo", "sft", "grpo"])
def test_a_task_that_goes_on_later_keeps_the_samples_it_had(recipe: str) -> None:
    """Further groups in one session: the count is over all samples of a task, not over the last ones."""
    rates = [0.0] * 20 + [0.3, 0.5, 0.7] * 10 + [1.0] * 20
    asked = design(recipe, 400 if recipe == "sft" else 140, most=32)
    schedule, drawn = drive(rates, asked)
    assert schedule.usable == usable(drawn, recipe, recipe_options(asked))
    assert recipe == "grpo" or max(sizes(drawn).values()) > 8


def test_tasks_that_run_out_go_on_sample_by_sample_and_a_kill_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TaskJudge, "summarize", summarize_quickly)
    rates = bimodal(160, np.random.default_rng(6))
    asked = design(target=30, audit=0.02)
    schedule, expected = drive(rates, asked)
    flat = [size for position, size in sizes(expected).items() if rates[position] in (0.0, 1.0)]
    assert schedule.usable >= 30
    assert len(sizes(expected)) == 160
    assert {3, 4} & set(flat), "nobody fills a whole group to find out whether one sample differs"
    assert np.mean(flat) < 6
    for seed in range(3):
        chance = random.Random(seed)
        drawn: Drawn = {}
        for _ in range(200):
            before = len(drawn)
            drive(rates, asked, order=chance, drawn=drawn, stop_after=chance.randrange(1, 100))
            if len(drawn) == before:
                break
        assert drawn == expected


def test_while_little_is_known_tasks_wait_after_their_first_stage() -> None:
    """A prior from nothing must not fill groups; those tasks go on once the results say that it pays."""
    _, drawn = drive([0.0] * 200 + [0.5] * 100, design(target=20))
    first = [size for position, size in sorted(sizes(drawn).items()) if position < 64]
    assert np.mean(first) < 4
    _, drawn = drive([0.5, 0.2] * 150, design(target=150))
    assert np.mean([size for position, size in sizes(drawn).items() if position < 64]) > 7


def test_rollouts_from_before_the_goal_count_at_once() -> None:
    """A run without a goal left whole groups behind: units that nobody asked for count, and later ones when they were asked for."""
    kept = TaskRollouts({n: facts(n, float(n == 5)) for n in range(8)}, {}, earlier={4, 5})
    assert [each.sample for each in kept.known(2)] == [0, 1, 4, 5]
    assert [each.sample for each in kept.known(8)] == list(range(8))
