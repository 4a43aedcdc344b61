"""Metrics: the numbers of a run, with counts and intervals."""

from rollforge.steps.metrics.against import RunComparison, TaskDifference, compare_runs, differing_tasks
from rollforge.steps.metrics.compat import nemo_gym_metrics, trinity_metrics
from rollforge.steps.metrics.metric_records import RunMetrics
from rollforge.steps.metrics.run_metrics import MetricsOptions, summarize_index, summarize_run

__all__ = [
    "MetricsOptions",
    "RunComparison",
    "RunMetrics",
    "TaskDifference",
    "compare_runs",
    "differing_tasks",
    "nemo_gym_metrics",
    "summarize_index",
    "summarize_run",
    "trinity_metrics",
]
