"""Metrics: what a run's numbers are, over what, and how sure."""

from rollforge.steps.metrics.against import RunComparison, compare_runs
from rollforge.steps.metrics.compat import nemo_gym_metrics, trinity_metrics
from rollforge.steps.metrics.records import RunMetrics
from rollforge.steps.metrics.run import MetricsOptions, summarize_index, summarize_run

__all__ = [
    "MetricsOptions",
    "RunComparison",
    "RunMetrics",
    "compare_runs",
    "nemo_gym_metrics",
    "summarize_index",
    "summarize_run",
    "trinity_metrics",
]
