"""The grammar of metric names: `{category}/{taskset}/{metric}/{statistic}`.

Only `eval/` and `bench/` names have a taskset. A metric may contain slashes itself (`time/run_execution`). A statistic is a known
word (`mean`, `max`, …) or `word@k`; an evaluation statistic may be followed by one more word for the reduction over tasks
(`mean@4/std`). Only this module parses and builds names.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Container
from functools import lru_cache
from typing import Literal

import msgspec

logger = logging.getLogger(__name__)

CATEGORIES = (
    "rollout",
    "eval",
    "bench",
    "time",
    "timing_per_token_ms",
    "experience_pipeline",
    "sample",
    "actor",
    "critic",
    "response_length",
    "response",
    "prompt_length",
    "global_seqlen",
    "perf",
    "training",
    "num_turns",
    "tool_call_counts",
)
"""First segments that rollforge writes; names from other sources may have different ones."""

TASKSET_CATEGORIES = frozenset({"eval", "bench"})
STATISTICS = frozenset(
    {"mean", "max", "min", "std", "sum", "last", "median", "count", "runs", "missing", "nan", "clip_ratio"}
)
DETAILS = frozenset({"mean", "std", "max", "min"})
AT_K = re.compile(r"[a-z][a-z0-9_^]*@[1-9][0-9]*")

SUFFIXES = frozenset({"mean", "sum", "max", "min", "last"})
"""Suffixes of a metric after a colon (`tokens:sum`), which select the reduction at every level."""

Sink = Literal["jsonl", "console", "wandb", "tensorboard", "mlflow", "prometheus", "otel"]


class MetricName(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed metric name; `str()` joins its parts again."""

    category: str
    metric: str
    taskset: str | None = None
    statistic: str | None = None
    detail: str | None = None
    """Reduction over the tasks of an evaluation, after an `@k` statistic; None means the mean."""

    def __str__(self) -> str:
        parts = (self.category, self.taskset, self.metric, self.statistic, self.detail)
        return "/".join(part for part in parts if part)

    @property
    def k(self) -> int | None:
        """The number after `@`, if the statistic has one."""
        return int(self.statistic.partition("@")[2]) if self.statistic and "@" in self.statistic else None


def parse_name(name: str) -> MetricName:
    """Parse a name; raises `ValueError` with the reason if it is invalid."""
    validate_name(name)
    category, *rest = name.split("/")
    taskset = None
    if category in TASKSET_CATEGORIES:
        if len(rest) < 2:
            raise ValueError(
                f"{name!r}: a name in {category}/ needs a taskset and a metric: {category}/TASKSET/METRIC"
            )
        taskset, *rest = rest
    detail = statistic = None
    if len(rest) > 2 and rest[-1] in DETAILS and AT_K.fullmatch(rest[-2]):
        detail = rest.pop()
    if len(rest) > 1 and (rest[-1] in STATISTICS or AT_K.fullmatch(rest[-1])):
        statistic = rest.pop()
    return MetricName(
        category=category, taskset=taskset, metric="/".join(rest), statistic=statistic, detail=detail
    )


def build_name(
    category: str,
    metric: str,
    statistic: str | None = None,
    *,
    taskset: str | None = None,
    detail: str | None = None,
) -> str:
    """Join the parts to a name; raises `ValueError` if they are invalid."""
    if (taskset is not None) != (category in TASKSET_CATEGORIES):
        need = "needs" if category in TASKSET_CATEGORIES else "takes no"
        raise ValueError(f"a name in {category}/ {need} taskset (got {taskset!r})")
    if taskset is not None and "/" in taskset:
        raise ValueError(f"the taskset {taskset!r} has a slash, which would shift the parts after it")
    name = str(
        MetricName(category=category, taskset=taskset, metric=metric, statistic=statistic, detail=detail)
    )
    validate_name(name)
    return name


def validate_name(name: str) -> None:
    """Raise a `ValueError` with the reason if `name` is not a metric name."""
    if not name or "/" not in name:
        raise ValueError(
            f"{name!r}: a metric name has at least a category and a metric: rollout/accuracy/mean"
        )
    for part in name.split("/"):
        if not part or part != part.strip():
            raise ValueError(f"{name!r}: a part of the name is empty or has space around it")
        if not part.isprintable():
            raise ValueError(f"{name!r}: a part of the name has characters that cannot be printed")


@lru_cache(maxsize=4096)
def is_metric(metric: str) -> bool:
    """Whether `metric` can be part of a name; otherwise a warning is logged once."""
    try:
        validate_name(f"rollout/{metric}")
    except ValueError as error:
        logger.warning("the number %r is in no metric: %s (said once; the rollouts keep it)", metric, error)
        return False
    return True


_AMOUNT = re.compile(
    r"(?:^|[_./])(?:num|n|count|counts|turns?|steps?|calls?|tokens?|chars?|characters|words?|sequences|requests|messages|branches|rounds|"
    r"length|len|seconds?|secs?|ms|s|time|"
    r"latency|duration|attempts?|retries|tries|index|depth|size|bytes)(?:[_./]|$)"
)


def is_amount(metric: str) -> bool:
    """Whether a metric's name says that it is a count or a measurement, so that a constant 1 is not a share of 100 %."""
    return _AMOUNT.search(metric.casefold()) is not None


def split_suffix(metric: str) -> tuple[str, str | None]:
    """`tokens:sum` → (`tokens`, `sum`); an unknown suffix is part of the name."""
    stem, colon, suffix = metric.rpartition(":")
    return (stem, suffix) if colon and stem and suffix in SUFFIXES else (metric, None)


def shown_metric(metric: str, metric_names: Container[str]) -> str:
    """The name under which a metric is reported: without its suffix, unless `metric_names` has another metric that reports the
    same statistics.
    """
    stem, suffix = split_suffix(metric)
    is_taken = stem in metric_names or (suffix != "mean" and f"{stem}:mean" in metric_names)
    return metric if is_taken and suffix in ("mean", "max", "min") else stem


# Characters that need no escape. MLflow: letters, digits, _ - . space : /. Prometheus: letters, digits, _
# and the colon that we give to the slash. OpenTelemetry: letters, digits, _ - . /. TensorBoard's writers
# replace all but letters, digits, _ - . /.
_LEGAL: dict[str, str] = {
    "mlflow": r"A-Za-z0-9_\-. /:",
    "prometheus": r"A-Za-z0-9_/",
    "otel": r"A-Za-z0-9_\-./",
}
_ESCAPE = re.compile(r"_at_|_x([0-9a-f]+)_")


def safe_name(name: str, sink: str) -> str:
    """Escape `name` for `sink`: `@` becomes `_at_` (as in MLflow exports of verl and Trinity-RFT), other characters `_x2d_`.

    The mapping is injective: text that looks like an escape is escaped too, and `original_name` is the exact inverse.
    """
    legal = _LEGAL.get(sink)
    if legal is None:
        return name
    opening = rf"[_]|[^{legal}]"  # what the next character's own encoding starts with: an underscore
    text = re.sub(rf"_(?=(?:at|x[0-9a-f]+)(?:{opening}))", "\0", name)
    text = re.sub(rf"[^{legal}]", _escape, text)
    return text.replace("/", ":") if sink == "prometheus" else text


def original_name(safe: str, sink: str) -> str:
    """The name from which `safe_name` made `safe`."""
    if sink not in _LEGAL:
        return safe
    text = safe.replace(":", "/") if sink == "prometheus" else safe
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else "@", text)


def _escape(match: re.Match[str]) -> str:
    if match[0] == "@":
        return "_at_"
    return "_x5f_" if match[0] == "\0" else f"_x{ord(match[0]):x}_"
