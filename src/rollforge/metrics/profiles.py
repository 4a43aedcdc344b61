"""Naming profiles: metrics under the names of Trinity-RFT 0.6 or verl, or unchanged.

A profile changes names and drops statistics that the other tool lacks, but never changes a value. Totals of a step are kept,
because a resumed run reads from them which steps were reported. To get the peers' values as well, fold with
`estimator="bootstrap42"` and `keyed_by="observed"`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from rollforge.errors import UsageError
from rollforge.metrics.names import MetricName, parse_name
from rollforge.registry import did_you_mean

Profile = Literal["rollforge", "trinity-0.6", "verl"]
PROFILES: tuple[Profile, ...] = ("rollforge", "trinity-0.6", "verl")

_OUR_OWN = frozenset({"count", "runs", "missing", "nan", "mean_failed_as_zero"})
_OUR_OWN_AT = ("coverage@", "pass@")
_CORE_METRICS = ("acc", "accuracy", "reward")
_EXPLORER_TIMES = frozenset({"wait_explore_step", "sync_interval"})


def rename(metrics: Mapping[str, float], profile: str) -> dict[str, float]:
    """`metrics` under the names of `profile`; order is kept."""
    if profile == "rollforge":
        return dict(metrics)
    if profile not in PROFILES:
        raise UsageError(
            f"there is no naming profile {profile!r}{did_you_mean(profile, list(PROFILES))}",
            hint=f"known: {', '.join(PROFILES)}",
        )
    names = {name: parse_name(name) for name in metrics}
    renamer = _trinity if profile == "trinity-0.6" else _verl(names)
    renamed: dict[str, float] = {}
    for name, parts in names.items():
        other = None if _is_ours_alone(parts) else renamer(parts)
        if other is not None:
            renamed[other] = metrics[name]
    return renamed


def _is_ours_alone(name: MetricName) -> bool:
    statistic = name.statistic or ""
    return statistic in _OUR_OWN or statistic.startswith(_OUR_OWN_AT)


def _trinity(name: MetricName) -> str | None:
    """Names of Trinity-RFT 0.6: times are under `explorer/time/` and `experience_pipeline/time/`; there is no `maj@`."""
    if name.statistic and name.statistic.startswith("maj@"):
        return None
    if name.category == "time":
        head, _, rest = name.metric.partition("/")
        if head == "experience_pipeline":
            return f"experience_pipeline/time/{rest}"
        if head in _EXPLORER_TIMES:
            return f"explorer/time/{name.metric}"
    return str(name)


def _verl(names: Mapping[str, MetricName]) -> Callable[[MetricName], str | None]:
    """Evaluation under `val-core/` (the headline numbers at the largest k) and `val-aux/`; times under
    `timing_s/`."""
    metrics = {name.metric for name in names.values() if name.taskset}
    core = next((metric for metric in _CORE_METRICS if metric in metrics), None)
    largest = max((name.k or 0 for name in names.values()), default=0)

    def renamer(name: MetricName) -> str | None:
        if name.category == "time":
            return f"timing_s/{name.metric}"
        if name.taskset is None:
            return str(name)
        statistic = name.statistic or ""
        if statistic == "std@1" or name.detail not in (None, "mean"):
            return None  # verl's own best@k/std is over resamples, not over tasks
        is_headline = statistic.startswith(("mean@", "maj@", "best@")) and name.k == largest
        tail = [statistic] if statistic else []
        if statistic.startswith(("best@", "worst@", "maj@")):
            tail.append("mean")
        head = "val-core" if is_headline and name.metric == core else "val-aux"
        return "/".join([head, name.taskset, name.metric, *tail])

    return renamer
