"""The forecast of a whole run from a pilot.

Intervals reflect the variance between the pilot's tasks, so few tasks give wide intervals.
"""

from __future__ import annotations

import msgspec

from rollforge.adaptive.design import GoalProgress
from rollforge.statistics import intervals
from rollforge.statistics.intervals import ClusterMean
from rollforge.steps.collect.cost_meter import CostMeter
from rollforge.steps.collect.live import Live


class ForecastRange(msgspec.Struct, frozen=True):
    """A value with its 95 % interval; the interval is None if the pilot was too small."""

    value: float
    low: float | None
    high: float | None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """Forecast of the remaining run, at the pilot's pace."""

    rollouts: int
    seconds: ForecastRange
    tokens: ForecastRange | None
    disk_bytes: ForecastRange
    failures: ForecastRange
    cost: ForecastRange | None = None
    """Dollars, with judges; None if the price is unknown."""
    cost_per_usable_group: ForecastRange | None = None
    """Dollars per group with different rewards (with a goal: per usable unit); None if the price is unknown, or if no group was
    usable.
    """
    goal: str | None = None
    """The goal of the forecast; None if it covers all owed rollouts."""
    unit: str = "group"
    """The unit that is counted: a group, a pair or an example."""


def forecast(
    live: Live, meter: CostMeter, *, owed: int, elapsed_s: float, goal: GoalProgress | None = None
) -> Forecast | None:
    """Forecast for `owed` more rollouts, or for as many as the goal needs; None if the pilot finished none, or gives no estimate."""
    if not live.fresh:
        return None
    if goal is not None:
        return _to_goal(live, goal, elapsed_s)
    spread = _relative_half_width(live.seconds_per_rollout)
    per_rollout_s = elapsed_s / live.fresh
    tokens = live.tokens_per_rollout
    return Forecast(
        rollouts=owed,
        seconds=_estimate(per_rollout_s * owed, spread),
        tokens=_estimate((tokens.mean or 0.0) * owed, _relative_half_width(tokens)) if tokens.count else None,
        disk_bytes=_estimate(live.bytes / live.fresh * owed, _relative_half_width(tokens)),
        failures=_failures(live, owed),
        cost=_cost(meter, owed, per_rollout_s, spread),
        cost_per_usable_group=_cost_per_group(meter),
    )


def _to_goal(live: Live, goal: GoalProgress, elapsed_s: float) -> Forecast | None:
    """Forecast for a run with a goal; its interval is that of the yield, the largest uncertainty."""
    needed, mean = goal.needed_tokens, live.tokens_per_rollout.mean
    if needed is None or not mean or not live.tokens:
        return None

    def times(factor: float) -> ForecastRange:
        low, high = needed.low, needed.high
        return ForecastRange(
            needed.value * factor,
            None if low is None else low * factor,
            None if high is None else high * factor,
        )

    paid, left = goal.needed_dollars, max(1, goal.target - goal.usable)
    per_token = paid.value / needed.value if paid is not None and needed.value else None
    return Forecast(
        rollouts=round(needed.value / mean),
        seconds=times(elapsed_s / live.tokens),
        tokens=times(1.0),
        disk_bytes=times(live.bytes / live.fresh / mean),
        failures=_failures(live, round(needed.value / mean)),
        cost=None if per_token is None else times(per_token),
        cost_per_usable_group=None if per_token is None else times(per_token / left),
        goal=f"{goal.recipe}={goal.target}",
        unit=goal.unit.removesuffix("s"),
    )


def _cost(meter: CostMeter, owed: int, per_rollout_s: float, spread: float | None) -> ForecastRange | None:
    """Cost of tokens and hours; failed attempts are assumed as frequent as in the pilot."""
    hourly = meter.price_per_hour
    hours = None if hourly is None else _estimate(per_rollout_s * owed / 3600 * hourly, spread)
    if not meter.is_known or not meter.per_rollout.count:
        return hours
    paid = meter.per_rollout
    retried = 1 + meter.failures_per_rollout_cost()
    tokens = _estimate((paid.mean or 0.0) * owed * retried, _relative_half_width(paid))
    if hours is None:
        return tokens
    bounds = [
        None if tokens_at is None or hours_at is None else tokens_at + hours_at
        for tokens_at, hours_at in ((tokens.low, hours.low), (tokens.high, hours.high))
    ]
    return ForecastRange(tokens.value + hours.value, *bounds)


def _cost_per_group(meter: CostMeter) -> ForecastRange | None:
    cost = meter.groups.cost() if meter.is_known else None
    return None if cost is None else ForecastRange(*cost)


def _relative_half_width(mean: ClusterMean) -> float | None:
    half = mean.half_width()
    return half / mean.mean if half is not None and mean.mean else None


def _estimate(value: float, spread: float | None) -> ForecastRange:
    if spread is None:
        return ForecastRange(value, None, None)
    return ForecastRange(value, value * max(0.0, 1 - spread), value * (1 + spread))


def _failures(live: Live, owed: int) -> ForecastRange:
    """Forecast of failures; Wilson's interval has a width even if the pilot had none."""
    settled = live.fresh + live.given_up
    share = live.given_up / settled
    low, high = intervals.wilson(share, settled, intervals.normal_quantile((1 + intervals.LEVEL) / 2))
    return ForecastRange(share * owed, low * owed, high * owed)
