"""Forecast of a whole run from its pilot, and its bottleneck.

Intervals come from the pilot's own spread between tasks; a pilot of few tasks gives wide ones, and says so by being wide.
"""

from __future__ import annotations

import msgspec

from rollforge import intervals
from rollforge.intervals import ClusterMean
from rollforge.steps.collect.live import Live

BUSY = 0.85
"""Above this share of one core, the client itself is the limit: Python runs on one."""
LAGGING_S = 0.05


class ForecastRange(msgspec.Struct, frozen=True):
    """A value with its 95 % interval; the interval is None when the pilot was too small for one."""

    value: float
    low: float | None
    high: float | None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """What the rest of the run will take, at the pilot's pace."""

    rollouts: int
    seconds: ForecastRange
    tokens: ForecastRange | None
    disk_bytes: ForecastRange
    failures: ForecastRange


def forecast(live: Live, *, owed: int, elapsed_s: float) -> Forecast | None:
    """The forecast for `owed` more rollouts; None when the pilot finished none."""
    if not live.fresh:
        return None
    spread = _relative_half_width(live.seconds_per_rollout)
    per_rollout_s = elapsed_s / live.fresh
    tokens = live.tokens_per_rollout
    return Forecast(
        rollouts=owed,
        seconds=_estimate(per_rollout_s * owed, spread),
        tokens=_estimate((tokens.mean or 0.0) * owed, _relative_half_width(tokens)) if tokens.count else None,
        disk_bytes=_estimate(live.bytes / live.fresh * owed, _relative_half_width(tokens)),
        failures=_failures(live, owed),
    )


def _relative_half_width(mean: ClusterMean) -> float | None:
    half = mean.half_width()
    return half / mean.mean if half is not None and mean.mean else None


def _estimate(value: float, spread: float | None) -> ForecastRange:
    if spread is None:
        return ForecastRange(value, None, None)
    return ForecastRange(value, value * max(0.0, 1 - spread), value * (1 + spread))


def _failures(live: Live, owed: int) -> ForecastRange:
    """Wilson's interval keeps a width even when the pilot saw no failure at all."""
    settled = live.fresh + live.given_up
    share = live.given_up / settled
    low, high = intervals.wilson(share, settled, intervals.normal_quantile((1 + intervals.LEVEL) / 2))
    return ForecastRange(share * owed, low * owed, high * owed)


def bottleneck(
    live: Live,
    *,
    elapsed_s: float,
    cpu_s: float,
    lag_s: float,
    commit_s: float,
    verify_slots: int,
    seconds_per_verdict: float | None = None,
    waits_for: str = "model",
) -> str:
    """One line: what to change to go faster. `waits_for` makes the rollouts: the model, or an agent server."""
    if elapsed_s <= 0 or not live.fresh:
        return "unknown: nothing was finished"
    busy = cpu_s / elapsed_s
    if commit_s / elapsed_s > 0.5:
        return f"disk: {commit_s / elapsed_s:.0%} of the time goes into writing"
    if busy > BUSY or lag_s > LAGGING_S:
        return f"client: this process is busy {busy:.0%} of the time (loop lag {lag_s * 1000:.0f} ms)"
    waiting = live.verify_s + live.verify_wait_s
    if live.verify_wait_s > live.model_s or (
        waiting > live.model_s and live.verify_s / elapsed_s > 0.5 * verify_slots
    ):
        return (
            f"verifier: {waiting / (waiting + live.model_s):.0%} of a rollout's time is verification "
            f"({live.verify_s / live.fresh if seconds_per_verdict is None else seconds_per_verdict:.2g} s per verdict)"
        )
    share = live.model_s / (waiting + live.model_s)
    return f"{waits_for}: {share:.0%} of a rollout's time is spent waiting for the {waits_for}"
