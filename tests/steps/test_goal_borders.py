"""Goals: numbers and conditions that decide hold at their border, and one step beside it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from rollforge.adaptive.design import DESIGN, Expectation, GoalProgress, SamplingDesign, priced
from rollforge.adaptive.group_yield import ANY_RATE
from rollforge.adaptive.sampling_rule import _uniform, fit_prior, is_audited, known_before
from rollforge.adaptive.stage_estimates import over_strata
from rollforge.errors import Exit, UsageError
from rollforge.index import ByTask, open_index
from rollforge.recipes.base import RecipeOptions
from rollforge.steps.collect.goal.from_options import make_design, prepare_words
from rollforge.steps.collect.goal.goal_ending import goal_ending, goal_message
from rollforge.steps.collect.goal.goal_options import GoalOptions, parse_goal
from rollforge.steps.collect.goal.goal_schedule import EARLY
from rollforge.steps.collect.goal.setup import _has_rollouts, _since, design_of, make_schedule
from rollforge.steps.collect.goal.task_book import TaskBook, TaskSummary, needed_for
from rollforge.steps.metrics.stages import beyond_first_stage
from rollforge.store import Ledger, RunFiles
from tests.goal_driver import Drawn, drive, open_schedule


def progress(usable: int = 0, **more: Any) -> GoalProgress:
    fields = {"recipe": "grpo", "unit": "groups", "target": 5, "usable": usable, "tasks": 2, "tokens": 100}
    return GoalProgress(**fields | more)


def design(**more: Any) -> SamplingDesign:
    fields = {"recipe": "dpo", "target": 20, "first": 2, "whole": 4, "most": 8, "audit": 0.0}
    return SamplingDesign(**fields | more)


def summary(low: float, high: float, drawn: int = 4, **more: Any) -> TaskSummary:
    levels = (low < high) + 1 if drawn else 0
    fields = {
        "drawn": drawn, "lows": 2 if low < high else drawn, "low": low, "high": high, "levels": levels, "same": 1,
        "units": int(low < high), "samples_asked": drawn, "tokens": 100,
    }  # fmt: skip
    return TaskSummary(**fields | more)


def book(*tasks: TaskSummary, **more: Any) -> TaskBook:
    made = TaskBook(len(tasks), design(**more), RecipeOptions())
    for position, task in enumerate(tasks):
        made.put(position, task)
    return made


@pytest.mark.parametrize(
    ("usable", "ending"), [(4, ("incomplete", Exit.INCOMPLETE)), (5, ("done", Exit.DONE))]
)
def test_a_goal_is_reached_at_its_number(usable: int, ending: tuple[str, Exit]) -> None:
    assert goal_ending("", "done", Exit.DONE, progress(usable)) == ending
    incomplete = ("incomplete", Exit.INCOMPLETE)
    assert goal_ending("", "done", Exit.DONE, progress(usable), gaps=1) == incomplete, "groups end whole"


@pytest.mark.parametrize(
    ("reason", "usable", "ending"),
    [
        ("broken", 5, ("broken", Exit.INCOMPLETE)), ("disk", 5, ("disk", Exit.INCOMPLETE)),
        ("tokens", 5, ("done", Exit.DONE)), ("tokens", 4, ("tokens", Exit.BUDGET_REACHED)),
        ("pilot", 4, ("pilot", Exit.DONE)), ("taken over", 4, ("incomplete", Exit.INCOMPLETE)),
    ],
)  # fmt: skip
def test_a_reached_goal_outweighs_a_budget_and_no_breakdown(
    reason: Any, usable: int, ending: tuple[str, Exit]
) -> None:
    assert goal_ending(reason, reason, Exit.INCOMPLETE, progress(usable)) == ending


def test_the_message_of_a_goal_says_how_it_ended_and_what_is_needed() -> None:
    engine: Any = SimpleNamespace(live=SimpleNamespace(tokens=90))
    needed = {"needed_tasks": Expectation(value=7, low=3, high=11), "needed_tokens": Expectation(value=900)}
    so_far = "4 of 5 usable groups (grpo)"
    assert goal_message("done", engine, progress(5)) == "goal reached: 5 of 5 usable groups (grpo)"
    assert goal_message("incomplete", engine, progress(4, **needed)) == (
        f"the tasks ran out: {so_far}; at this yield it takes about 7 (3 to 11) more tasks like these, "
        "or more samples per task (-k, --max-samples)"
    )
    assert goal_message("incomplete", engine, progress(4)).endswith(
        "no task brought anything usable, so it takes other tasks, another model or other thresholds"
    )
    assert goal_message("tokens", engine, progress(4, **needed)) == (
        f"stopped at the token budget (90 used), between groups: {so_far}; at this yield it takes about 900 more tokens"
    )
    half = Expectation(value=7, low=3)
    assert "about 7 more tasks" in goal_message("incomplete", engine, progress(4, needed_tasks=half))


def test_dollars_are_known_with_a_price_and_tokens() -> None:
    needed = progress(4, needed_tokens=Expectation(value=200, low=100))
    assert priced(needed, None) == needed
    assert priced(progress(4, tokens=0), 2.0) == progress(4, tokens=0)
    told = priced(needed, 2.0)
    assert (told.dollars_per_unit, told.needed_dollars) == (0.5, Expectation(value=4.0, low=2.0))
    assert priced(progress(0), 2.0).dollars_per_unit is None


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("grpo=1", ("grpo", 1)),
        (" dpo = 2_0,00 ", ("dpo", 2000)),
        ("sft=0", None),
        ("ppo=5", None),
        ("dpo", None),
    ],
)
def test_a_goal_is_a_recipe_and_at_least_one(text: str, goal: tuple[str, int] | None) -> None:
    if goal is not None:
        assert parse_goal(text) == goal
        return
    with pytest.raises(UsageError, match="--goal") as raised:
        parse_goal(text)
    assert "--goal grpo=20000" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("goal", "samples", "most", "refused"),
    [
        ("grpo=9", 1, None, "needs groups, but -k is 1"), ("grpo=9", 2, None, None), ("sft=9", 1, None, None),
        ("dpo=9", 8, 7, "--max-samples 7 is below the 8 samples"), ("dpo=9", 8, 8, None),
        ("dpo=9", 8, 128, None), ("dpo=9", 8, 129, "at most 128 samples"),
    ],
)  # fmt: skip
def test_a_goal_of_groups_needs_two_samples_and_takes_at_most_128(
    goal: str, samples: int, most: int | None, refused: str | None
) -> None:
    options = GoalOptions(goal=goal, max_samples=most)
    if refused is None:
        made = make_design(options, samples=samples, audit=0.01, seed=1)
        assert (made.whole, made.most, made.audit) == (samples, most or samples, 0.01)
        return
    with pytest.raises(UsageError, match=refused):
        make_design(options, samples=samples, audit=0.01, seed=1)


def test_the_first_stage_is_a_quarter_and_at_least_two_samples() -> None:
    made = [
        make_design(GoalOptions(goal="sft=1"), samples=n, audit=0.1, seed=1) for n in (1, 2, 4, 8, 12, 16)
    ]
    assert [one.first for one in made] == [1, 2, 2, 2, 3, 4]
    base = make_design(GoalOptions(goal="sft=1"), samples=8, audit=0.1, seed=1, base=4)
    assert (base.first, base.audit, base.most) == (4, 0.0, 32)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""), ({"min_gap": 0.2}, ""), ({"min_gap": 0.3}, "--min-gap 0.3"), ({"recipe": "sft", "min_gap": 0.3}, ""),
        ({"min_reward": 0.0, "min_spread": 0.1}, "--min-reward 0"), ({"recipe": "grpo", "min_spread": 0.1}, "--min-spread 0.1"),
        ({"recipe": "rm", "min_gap": 0.1, "band": (0.1, 0.9)}, "--min-gap 0.1 --band 0.1-0.9"),
    ],
)  # fmt: skip
def test_prepare_gets_the_flags_that_its_recipe_reads(more: dict[str, Any], words: str) -> None:
    assert prepare_words(design(**more)) == words


def options(**more: Any) -> Any:
    fields = {"goal": None, "top_up": None, "samples": 8, "audit": "1%", "seed": 3, "max_samples": None}
    return SimpleNamespace(
        **{"min_reward": None, "min_gap": 0.2, "min_spread": 0.0, "band": None} | fields | more
    )


def old(state: str = "done", before: SamplingDesign | None = None) -> Any:
    return SimpleNamespace(
        extra={} if before is None else {DESIGN: msgspec.to_builtins(before)}, state=state, samples=4
    )


def test_a_finished_run_is_the_first_stage_of_a_goal_and_an_unfinished_one_is_not() -> None:
    assert design_of(options(), old()) is None
    assert [made.base for run in (None, old("running"), old()) if (made := design_of(options(goal="grpo=9"), run))] == [
        0, 0, 4]  # fmt: skip
    resumed = design_of(options(goal="grpo=9", audit="2%"), old(before=design(first=3, audit=0.01, seed=7)))
    assert resumed is not None and (resumed.base, resumed.first, resumed.audit, resumed.seed) == (
        0,
        3,
        0.01,
        7,
    )


@pytest.mark.parametrize(
    ("run", "samples", "refused"),
    [
        (None, 8, "there is none"), (old(), 4, "every task has 4 samples already"), (old(), 5, None),
        (old("running"), 5, None), (old(before=design(base=8, top_up="a")), 8, None),
        (old(before=design(base=8, top_up="b")), 8, "every task has 8 samples already"),
    ],
)  # fmt: skip
def test_a_top_up_needs_a_run_with_fewer_samples(run: Any, samples: int, refused: str | None) -> None:
    asked = options(top_up="a", samples=samples)
    if refused is None:
        made = design_of(asked, run)
        assert made is not None and (made.most, made.top_up, made.recipe) == (samples, "a", None)
        return
    with pytest.raises(UsageError, match=refused):
        design_of(asked, run)


def test_a_design_that_goes_on_keeps_its_start() -> None:
    index: Any = type("Rows", (), {"duplicate_count": 1, "__len__": lambda self: 5})()
    assert _since(design(), design(earlier=2), index).earlier == 2
    assert _since(design(), design(earlier=2, target=9), index).earlier == 6
    assert _since(design(), None, index).earlier == 6


def test_a_run_without_a_line_has_no_rollouts(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    for made, has_some in ((None, False), ("", False), ("{}\n", True)):
        if made is not None:
            files.rollouts.write_text(made)
        assert _has_rollouts(files) is has_some


def test_a_top_up_takes_the_tasks_for_which_its_condition_holds(tmp_path: Path) -> None:
    files = RunFiles(tmp_path / "rollouts.jsonl")
    rows = [
        {"_ng_task_index": task, "_ng_rollout_index": sample, "reward": reward, "response": {"output": []}}
        for task, rewards in enumerate([(0.0, 0.4), (0.5, 0.0), (1.0, 0.6)])
        for sample, reward in enumerate(rewards)
    ]

    def plan(order: list[int], **more: Any) -> Any:
        ledger = Ledger(np.arange(3), 4)
        for row in rows:
            ledger.finish(row["_ng_task_index"], row["_ng_rollout_index"])
        top_up = SamplingDesign(first=2, whole=4, most=4, base=2, **more)
        manifest = SimpleNamespace(extra={})
        return SimpleNamespace(
            ledger=ledger, order=np.array(order), files=files, notes=[], design=top_up, manifest=manifest
        )

    asked: Any = SimpleNamespace(attempts=1)
    with pytest.raises(UsageError, match="has no rollouts"):
        make_schedule(plan([2, 1, 0], top_up="pass_rate > 0.2"), asked)
    files.rollouts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for condition, least, order in (
        ("pass_rate > 0.2", None, [2, 1]), ("pass_rate > 0.6", None, [2]), ("pass_rate > 0.2", 0.55, [2]),
    ):  # fmt: skip
        begun = plan([2, 1, 0], top_up=condition, min_reward=least)
        make_schedule(begun, asked)
        assert begun.order.tolist() == order
        assert begun.notes == [f"--top-up: {len(order)} of 3 tasks"]
        assert begun.manifest.extra[DESIGN]["earlier"] == 6
    for condition, why in (("pass_rate > 2", "holds for no task"), ("passes > 2", "passes")):
        with pytest.raises(UsageError, match=why) as refused:
            make_schedule(plan([0], top_up=condition), asked)
        assert str(refused.value).startswith(f"--top-up '{condition}'")
    for wrong in ("passes > 2", "answer_chars > 3", "", "pass_rate >"):
        with pytest.raises(UsageError) as refused:
            make_schedule(plan([0], top_up=wrong), asked)
        assert "a condition over task, rollouts, judged, mean_reward" in str(refused.value.hint)


def test_a_task_is_audited_below_the_share() -> None:
    draw = _uniform(3, 1)
    assert not is_audited(3, 1, draw) and is_audited(3, 1, math.nextafter(draw, 1))


def test_tasks_without_weight_say_nothing() -> None:
    assert fit_prior([(4, 1, 0.0)], ANY_RATE) == known_before(ANY_RATE)


def test_one_task_has_no_spread() -> None:
    nothing = np.zeros(1, dtype=bool)
    told = over_strata(np.array([0.5]), np.zeros(1, dtype=np.int64), nothing, is_share=False)
    assert (told.value, told.ci) == (0.5, [0.5, 0.5])
    for settled in (True, False):
        told = over_strata(
            np.array([0.5, 0.5, 0.5]),
            np.zeros(3, dtype=np.int64),
            np.zeros(3, dtype=bool),
            is_certain=np.full(3, settled),
        )
        assert told.ci is not None and (told.ci == [0.5, 0.5]) is settled
    assert over_strata(np.zeros(0), np.zeros(0, dtype=np.int64), nothing).reason == "no task was begun"


@pytest.mark.parametrize(
    ("tasks", "fitted"),
    [
        ([(0.2, 0.7), (0.2, 0.2), (0.7, 0.7)], (0.2, 0.7, True)), ([(0.2, 0.2)], (0.0, 1.0, False)),
        ([(0.2, 0.7), (0.3, 0.3)], (0.0, 1.0, False)), ([(0.0, 1.0), (1.0, 1.0)], (0.0, 1.0, True)),
        ([(0.0, 0.0)], (0.0, 1.0, True)),
    ],
)  # fmt: skip
def test_rewards_of_two_values_have_a_rule_of_their_own(
    tasks: list[tuple[float, float]], fitted: tuple[float, float, bool]
) -> None:
    rules = book(*(summary(low, high) for low, high in tasks)).rules()
    assert (rules.low, rules.high, rules.by_value is not None) == fitted


def test_a_task_with_three_values_has_no_counts_of_two() -> None:
    assert summary(0.0, 1.0).counts(0.0, 1.0) == (2, 2)
    assert summary(0.0, 1.0, levels=3).counts(0.0, 1.0) is None
    assert summary(0.0, 0.5).counts(0.0, 1.0) is None
    assert summary(0.0, 0.0).counts(0.0, 1.0) == (0, 4) and summary(1.0, 1.0).counts(0.0, 1.0) == (4, 0)
    assert summary(0.0, 0.0, drawn=0).counts(0.2, 0.7) == (0, 0)
    assert summary(0.0, 1.0, same=3).matches() == (2, 1) and summary(0.0, 0.0).matches() == (3, 0)
    assert summary(0.0, 1.0, drawn=1).matches() == (0, 0)


def test_the_bar_is_lowered_while_it_is_above_a_hopeless_one() -> None:
    at = 1e-4 / 0.9
    rates = [rate for rate in (at, math.nextafter(at, 1), math.nextafter(at, 0)) if rate * 0.9 == 1e-4]
    rules: Any = SimpleNamespace(usual=SimpleNamespace(rate=rates[0]))
    assert list(book().bars(rules)) == []
    rules.usual.rate = math.nextafter(rates[0], 1) * (1 + 1e-12)
    assert len(list(book().bars(rules))) == 1
    known = book(*[summary(0.0, 1.0, samples_asked=4)] * 10)
    rules.usual.rate = 0.01  # 10 units of 40 samples: hopeless at 0.02 × 0.25
    assert [round(bar, 5) for bar in known.bars(rules)] == [0.009, 0.0081, 0.00729, 0.00656, 0.0059, 0.00531]


def test_a_further_group_must_bring_more_than_the_bar() -> None:
    known = book(*[summary(0.0, 1.0)] * 20)
    everything = np.ones(20, dtype=bool)
    rules = known.rules()
    positions, wanted, gains = known.further_groups(rules, everything, 0.0)
    assert len(positions) == 20 and set(wanted.tolist()) == {8}
    bar = float(gains[0]) / 4
    assert not len(known.further_groups(rules, everything, bar)[0])
    assert len(known.further_groups(rules, everything, math.nextafter(bar, 0))[0]) == 20


def test_tasks_with_other_rewards_go_on_at_their_rate_so_far_and_groups_do_not() -> None:
    tasks = [summary(0.1, 0.9, levels=3, units=units) for units in (0, 1, 2)]
    for recipe, gains in (("dpo", [1.0, 2.0]), ("grpo", [0.0, 0.0])):
        known = book(*tasks, recipe=recipe)
        made = known._gains(known.rules(), np.arange(3), np.full(3, 4))
        assert made[1:].tolist() == gains and made[0] >= 0


@pytest.mark.parametrize(
    ("needed", "tasks", "units", "is_known", "has_interval"),
    [(0, 5, 5, False, False), (1, 0, 0, False, False), (1, 5, 0, False, False), (1, 1, 1, True, False), (1, 2, 1, True, True)],
)  # fmt: skip
def test_a_forecast_needs_a_unit_and_its_interval_two_tasks(
    needed: int, tasks: int, units: int, is_known: bool, has_interval: bool
) -> None:
    told = needed_for(needed, tasks, units, 100.0 * tasks, units, 100.0 * units, 10_000.0 * tasks)
    assert (told is not None) is is_known
    assert told is None or (told[0].low is not None) is has_interval


def test_nothing_is_needed_once_the_goal_is_reached() -> None:
    schedule, _ = drive([0.5] * 40, design(target=10))
    assert schedule.usable >= 10
    for usable, is_needed in ((9, True), (10, False)):
        told = schedule.progress(usable)
        assert (told.needed_tokens is not None, told.needed_tasks is not None) == (is_needed, is_needed)


def test_samples_beyond_the_base_are_not_of_the_first_stage() -> None:
    came: Drawn = {(0, sample): (float(sample % 2), "first") for sample in range(6)}
    schedule, _ = open_schedule(1, design(target=1, first=4, base=4), came)
    told = schedule._book.get(0)
    assert (told.drawn, told.samples_asked, told.tokens) == (4, 4, 400)


@pytest.mark.parametrize("last", ["answered", "failed", "not asked"])
def test_only_groups_whose_last_sample_was_asked_for_say_something_beyond_the_first_stage(
    tmp_path: Path, last: str
) -> None:
    """Twelve tasks have the four samples that pass@3 needs, of eight: enough only if the other four were asked for."""
    files = RunFiles(tmp_path / "rollouts.jsonl")
    samples = [0, 1, 2, 3] if last != "answered" else [0, 1, 2, 3, 7]
    rows = [
        {"_ng_task_index": task, "_ng_rollout_index": sample, "reward": float(sample == 2), "response": {"output": []}}
        for task in range(12)
        for sample in samples
    ]  # fmt: skip
    files.rollouts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if last == "failed":
        lost = [{"_ng_task_index": task, "_ng_rollout_index": 7, "class": "timeout"} for task in range(12)]
        files.failures.write_text("".join(json.dumps(row) + "\n" for row in lost))
    asked = SamplingDesign(recipe="grpo", target=5, first=2, whole=8, most=8, audit=0.0)
    with open_index(files.rollouts) as index:
        first = ByTask(index, "rollout < 2")
        estimates, facts = beyond_first_stage(index, None, asked, first, first.one("reward"), 0.5)
    assert ("pass@3" in estimates) == (last != "not asked")
    assert ("pass@3" in facts.left_out) == (last == "not asked")


def test_sixty_four_settled_tasks_decide_which_others_go_on() -> None:
    assert EARLY == 64
    schedule, _ = open_schedule(200, design(target=1000), {})
    for position in range(64):
        assert schedule._rules().usual.rate == 1e9
        schedule._book.put(position, summary(0.0, 1.0))
    assert schedule._rules().usual.rate < 1


def test_once_every_task_was_begun_few_settled_ones_decide_too() -> None:
    schedule, _ = open_schedule(5, design(target=1000), {})
    schedule._book.put(0, summary(0.0, 1.0))
    for cursor, is_early in ((4, True), (5, False)):
        schedule._cursor = cursor
        assert (schedule._rules().usual.rate == 1e9) is is_early
