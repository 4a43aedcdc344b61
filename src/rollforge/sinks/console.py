"""Prints one line per step on stderr with the headline numbers; `console=all` prints every number.

Headlines are means of rewards and accuracies, `mean@k`, counts of failures and times; the rest is in the
jsonl sink.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rollforge.errors import UsageError
from rollforge.metrics.names import parse_name
from rollforge.sinks.base import SinkOptions

_HEADLINES = 8


class ConsoleSink:
    """Prints lines for people on stderr."""

    is_remote = False

    def __init__(self, options: SinkOptions) -> None:
        self._shows_all = options.target == "all"
        self._target = options.target

    def start(self) -> None:
        if self._target not in (None, "all"):
            raise UsageError(
                f"the sink 'console' has no mode {self._target!r}", hint="write console or console=all"
            )

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        names = list(metrics) if self._shows_all else headlines(metrics)
        shown = "  ".join(f"{name} {_number(metrics[name])}" for name in names)
        sys.stderr.write(f"step {step}  {shown}\n")

    def close(self) -> None:
        """Do nothing: lines are printed at once."""


def headlines(metrics: Mapping[str, float | None]) -> list[str]:
    """Metric names that are worth printing, best first."""
    ranked = sorted(metrics, key=_rank)
    return [name for name in ranked if _rank(name) < 9][:_HEADLINES]


def _rank(name: str) -> int:
    parts = parse_name(name)
    statistic = parts.statistic or ""
    if parts.metric in ("reward", "accuracy", "acc"):
        if statistic == "mean" or statistic.startswith("mean@"):
            return 0
        return 2 if statistic.startswith(("pass@", "coverage@")) else 9
    if parts.metric in ("input_count", "experience_count"):
        return 1
    if parts.metric.startswith("failed_"):
        return 3
    if parts.category == "actor" or (
        statistic == "mean" and parts.category in ("rollout", "critic", "sample")
    ):
        return 4
    return 5 if parts.category == "time" else 9


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
