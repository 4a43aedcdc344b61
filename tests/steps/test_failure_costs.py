"""What failed attempts cost: every answer that was paid counts, each at the rate of its own length."""

from __future__ import annotations

from typing import Any

import pytest

from rollforge.agents.base import Trajectory
from rollforge.endpoint.prices import Tier, TokenPrice, TokenRates
from rollforge.errors import Failure
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.cost_meter import CostMeter


def tokens(read: int, written: int) -> dict[str, Any]:
    return {"input_tokens": read, "output_tokens": written}


@pytest.fixture
def meter() -> CostMeter:
    return CostMeter(CollectOptions(input="t", out="o", model="m", price="1/2"))


def test_turns_before_a_useless_answer_are_paid_as_well(meter: CostMeter) -> None:
    failure = Failure("model", "refused", "a content filter")
    failure.partial = {"output": [{}], "usage": tokens(1_000_000, 0)}
    failure.usage, failure.wasted = tokens(0, 1_000_000), (tokens(0, 500_000),)
    assert meter.of_failure(failure) == 1 + 2 + 1


def test_one_part_that_nobody_counted_makes_the_sum_unknown(meter: CostMeter) -> None:
    failure = Failure("model", "refused", "a content filter")
    failure.usage, failure.wasted = tokens(0, 1_000_000), ({"input_tokens": None},)
    assert meter.of_failure(failure) is None


@pytest.mark.parametrize("kind", ["rate-limited", "unavailable", "context-overflow", "permanent"])
def test_a_refusal_costs_nothing_also_where_a_program_ran(meter: CostMeter, kind: Any) -> None:
    failure = Failure("model", kind, "no")
    failure.partial = {"output": [], "program": {}}
    assert meter.of_failure(failure) == 0


def test_many_short_calls_are_no_long_one(meter: CostMeter) -> None:
    """Rates of long prompts are for single requests: an attempt's sum is not one."""
    rates = TokenRates(input=1, output=2)
    meter.price = TokenPrice(rates=rates, tiers=(Tier(200_000, TokenRates(input=10, output=20)),))
    failure = Failure("agent", "agent", "exit code 1")
    failure.partial, failure.requests = {"output": [{}], "usage": tokens(1_000_000, 0)}, 10
    assert meter.of_failure(failure) == 1
    rollout = Trajectory(
        response={"usage": tokens(1_000_000, 0)}, endpoint="", requests=10, wasted=(tokens(300_000, 0),)
    )
    assert meter.of_rollout(rollout) == 1 + 3
