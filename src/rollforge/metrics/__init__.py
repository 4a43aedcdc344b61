"""Metrics: names and folds. A pure core: numbers in, numbers out; it reads no file, starts no sink and knows no step.

`names` is the grammar, `moments` the mergeable state of one number, `fold` the way from experiences to runs,
tasks and steps, `ladder` the `@k` statistics of evaluation, `profiles` the names other tools use, `trainer`
the numbers of a training batch.
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
