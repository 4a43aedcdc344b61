"""Metrics: names and folds. Pure functions over numbers, without files, sinks or steps.

`names` is the grammar, `moments` the mergeable state of one number, `fold` aggregates experiences to runs, tasks and steps,
`ladder` computes the `@k` statistics of evaluation, `profiles` maps to other tools' names, `trainer` computes metrics of a
training batch.
"""

from __future__ import annotations

from rollforge.metrics.batch_arrays import TrainerBatch
from rollforge.metrics.callback import rename_trl, trl_callback
from rollforge.metrics.evaluation import EvalOptions, fold_eval
from rollforge.metrics.fold import Policy, StepFold, fold_experiences, fold_steps
from rollforge.metrics.moments import Moments
from rollforge.metrics.names import (
    MetricName,
    build_name,
    original_name,
    parse_name,
    safe_name,
    validate_name,
)
from rollforge.metrics.profiles import PROFILES, rename
from rollforge.metrics.trainer import trainer_metrics

__all__ = [
    "PROFILES",
    "EvalOptions",
    "MetricName",
    "Moments",
    "Policy",
    "StepFold",
    "TrainerBatch",
    "build_name",
    "fold_eval",
    "fold_experiences",
    "fold_steps",
    "original_name",
    "parse_name",
    "rename",
    "rename_trl",
    "safe_name",
    "trainer_metrics",
    "trl_callback",
    "validate_name",
]
