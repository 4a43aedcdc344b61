"""The bottleneck of a run: one line that names the change which would speed it up.

All shares are of measured time. A component is the bottleneck if its slots are full, or if it takes most of a rollout's time
while the model's slots are not full.
"""

from __future__ import annotations

import msgspec

from rollforge.endpoint.rate_limits import OWN_LIMITS, LimitName
from rollforge.statistics.counts import count_of
from rollforge.steps.collect.live import Live

BUSY = 0.85
"""Share of one core above which the client itself is the limit, since Python runs on one core."""
LAGGING_S = 0.05
LIMITED = 0.3
"""Share of a rollout's time spent on rate limits from which they count as the bottleneck."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Time and concurrency of one process."""

    elapsed_s: float
    cpu_s: float
    lag_s: float
    commit_s: float
    model_slots: int
    """The final limit on requests in flight."""
    verify_slots: int
    seconds_per_verdict: float | None = None
    rate_wait_s: dict[LimitName, float] = {}
    """Seconds that requests waited for a rate limit, by what it limits."""


def bottleneck(live: Live, load: Load) -> str:
    """One line that names the change which would speed up the run."""
    if load.elapsed_s <= 0 or not live.fresh:
        return "unknown: nothing was finished"
    busy = load.cpu_s / load.elapsed_s
    if load.commit_s / load.elapsed_s > 0.5:
        return f"disk: {load.commit_s / load.elapsed_s:.0%} of the time goes into writing"
    limited = sum(load.rate_wait_s.values())
    if limited > LIMITED * live.model_s:
        name = max(load.rate_wait_s, key=lambda name: load.rate_wait_s[name])
        limit = name if name in OWN_LIMITS.values() else f"the provider: {name}"
        share = limited / max(live.model_s, limited)
        return f"limited by {limit} ({share:.0%} of a rollout's time waits for this rate limit)"
    if busy > BUSY or load.lag_s > LAGGING_S:
        return f"client: this process is busy {busy:.0%} of the time (loop lag {load.lag_s * 1000:.0f} ms)"
    if live.timeout_s > 0.5 * live.model_s:
        return f"time-outs: {live.timeout_s / live.model_s:.0%} of the time goes into attempts that ran out of time"
    waiting = live.verify_s + live.verify_wait_s
    whole = waiting + live.model_s
    if _is_verifier(live, load, waiting):
        each = live.verify_s / live.fresh if load.seconds_per_verdict is None else load.seconds_per_verdict
        return f"verifier: {waiting / whole:.0%} of a rollout's time is verification ({human_seconds(each)} per verdict)"
    if live.tool_start_s > 0.5 * live.model_s:
        each = live.tool_start_s / max(live.tool_starts, 1)
        return (
            f"tools: {live.tool_start_s / whole:.0%} of a rollout's time goes into starting tool servers "
            f"({human_seconds(each)} each); mcp-shared: and mcp-stdio-shared: start one for the whole run"
        )
    if live.tool_s > 0.5 * live.model_s:
        return f"tools: {live.tool_s / whole:.0%} of a rollout's time is spent in tool calls"
    if live.is_remote:
        return f"agent: {live.model_s / whole:.0%} of a rollout's time is spent waiting for the agent server"
    asked_s = live.model_s - live.tool_start_s - live.tool_s
    is_full = asked_s < 0.5 * whole and _asking(live, load) >= 0.5
    why = (
        f", whose {count_of(load.model_slots, 'slot is', 'slots are')} taken (--concurrency)"
        if is_full
        else ""
    )
    return f"model: {asked_s / whole:.0%} of a rollout's time is spent waiting for the model{why}"


def _is_verifier(live: Live, load: Load, waiting_s: float) -> bool:
    """Verdicts queue; or they take most of the time, and the model's slots are not full or less full than theirs."""
    if live.verify_wait_s > live.model_s:
        return True
    verifying, asking = live.verify_s / load.elapsed_s / load.verify_slots, _asking(live, load)
    return waiting_s > live.model_s and (asking < 0.5 or verifying > asking)


def _asking(live: Live, load: Load) -> float:
    """How full the model's slots are on average."""
    return live.model_s / load.elapsed_s / max(load.model_slots, 1)


def human_seconds(seconds: float) -> str:
    """A duration in a suitable unit: `79 µs`, `12 ms`, `0.9 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.1 else f"{seconds:.1f} s"
