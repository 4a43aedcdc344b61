"""Drives the schedule of a goal without a server: synthetic tasks with known pass rates, answers in any order, kills at any moment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from rollforge.adaptive.design import SamplingDesign
from rollforge.adaptive.sampling_rule import _uniform
from rollforge.recipes.recipe_columns import RolloutFacts
from rollforge.records import Verdict
from rollforge.steps.collect.goal.goal_schedule import GoalSchedule, Recorded, TaskRollouts
from rollforge.steps.collect.goal.task_book import TaskJudge, TaskSummary
from rollforge.store import Ledger

Drawn = dict[tuple[int, int], tuple[float, str]]
"""(position, sample) → reward and stage."""

TOKENS = 100


def reward_of(rates: Sequence[float], position: int, sample: int, seed: int) -> float:
    """A sample's reward: always the same for the same task, sample and seed."""
    return float(_uniform(seed * 1009 + sample, position) < rates[position])


def facts(sample: int, reward: float) -> RolloutFacts:
    return RolloutFacts(sample, reward, sample + 1, True, 10, 0, False, False, False, False, False, False)


class _Disk(Recorded):
    """What an earlier session left, without an index."""

    def __init__(self, drawn: Drawn) -> None:
        super().__init__(None)
        self._drawn = drawn

    def of(self, task: int) -> TaskRollouts:
        if task in self._kept:
            return super().of(task)
        own = {
            sample: facts(sample, reward) for (at, sample), (reward, _) in self._drawn.items() if at == task
        }
        return TaskRollouts(own, dict.fromkeys(own, TOKENS))


def open_schedule(tasks: int, design: SamplingDesign, drawn: Drawn) -> tuple[GoalSchedule, Ledger]:
    """The schedule over what is drawn already."""
    ledger = Ledger(np.arange(tasks), design.most)
    for position, sample in drawn:
        ledger.finish(position, sample)
    plan: Any = SimpleNamespace(ledger=ledger, order=np.arange(tasks))
    return GoalSchedule(plan, design, _Disk(dict(drawn)), attempts=1), ledger


def drive(
    rates: Sequence[float],
    design: SamplingDesign,
    *,
    seed: int = 0,
    order: random.Random | None = None,
    drawn: Drawn | None = None,
    stop_after: int | None = None,
    at_once: int = 64,
    rewards: Any = None,
    tokens: int = TOKENS,
) -> tuple[GoalSchedule, Drawn]:
    """Run a schedule until it asks for nothing more, or until `stop_after` answers came: a kill.

    Args:
        order: the order in which answers arrive; by default the order of asking.
        drawn: what earlier sessions left; changed in place.
        rewards: (position, sample) → reward; by default 0 or 1 by the task's pass rate.
    """
    drawn = {} if drawn is None else drawn
    schedule, ledger = open_schedule(len(rates), design, drawn)
    flying: list[tuple[int, int, str]] = []
    left: dict[int, int] = {}
    answered = 0
    reward_at = rewards or (lambda position, sample: reward_of(rates, position, sample, seed))
    while True:
        while len(flying) < at_once and (ask := schedule.next_ask(is_ending=False)) is not None:
            left[ask.position] = len(ask.samples)
            flying += [(ask.position, sample, ask.stage) for sample in ask.samples]
        if not flying or (stop_after is not None and answered >= stop_after):
            return schedule, drawn
        position, sample, stage = flying.pop(order.randrange(len(flying)) if order else 0)
        reward = reward_at(position, sample)
        drawn[position, sample] = reward, stage
        ledger.finish(position, sample)
        schedule.finished(position, sample, _response(position, sample), Verdict(reward=reward), tokens)
        answered += 1
        left[position] -= 1
        if not left[position]:
            schedule.settled(position)


def _response(position: int, sample: int) -> msgspec.Raw:
    text = {"type": "output_text", "text": f"answer {position} {sample}"}
    item = {"type": "message", "role": "assistant", "content": [text]}
    return msgspec.Raw(msgspec.json.encode({"output": [item], "status": "completed"}))


def summarize_quickly(
    judge: TaskJudge,
    task: int,
    facts: list[RolloutFacts],
    *,
    samples_asked: int,
    tokens: int,
    everything: list[RolloutFacts],
) -> TaskSummary:
    """`TaskJudge.summarize` for rewards of 0 and 1 and distinct answers, without columns."""
    yes = sum(each.reward > 0 for each in facts)
    all_yes = sum(each.reward > 0 for each in everything)
    all_no = len(everything) - all_yes
    units = {"grpo": int(all_yes > 0 < all_no), "sft": all_yes, "kto": len(everything)}
    return TaskSummary(
        drawn=len(facts), lows=len(facts) - yes if yes < len(facts) else yes, low=float(yes == len(facts)), high=float(yes > 0),
        levels=1 + (0 < yes < len(facts)) if facts else 0,
        same=max(sum(each.reward == facts[0].reward for each in facts) - 1, 0) if facts else 0,
        units=units.get(judge.recipe, min(all_yes, all_no)), samples_asked=samples_asked, tokens=tokens,
    )  # fmt: skip


def bimodal(count: int, rng: np.random.Generator) -> list[float]:
    """Mostly never or always solved; one task in five in between."""
    kind = rng.random(count)
    between = rng.uniform(0.1, 0.9, count)
    return [float(rate) for rate in np.where(kind < 0.4, 0.0, np.where(kind < 0.8, 1.0, between))]
