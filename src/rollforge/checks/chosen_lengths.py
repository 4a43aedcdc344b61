"""Compares the lengths of answers that a recipe would choose with the pool that they come from."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.coded_columns import Bools
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding
from rollforge.statistics.stats import Floats, Ints


@check(
    "chosen-lengths", "recipe", recipes=("sft", "dpo", "rm"), min_reward=0.95, max_ratio=1.25, min_tasks=30
)
def chosen_lengths(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The answers that would be chosen are much longer or shorter than the others of their tasks.

    Lengths are compared within tasks, on a log scale: the ratio is a geometric mean over tasks with chosen and other answers.
    """
    threshold = 1.0 if run.is_binary else limits["min_reward"]
    usable = run.judged & ~run.is_empty & ~run.error_text & ~run.is_truncated & (run.answer_chars > 0)
    chosen = usable & (np.nan_to_num(run.scaled, nan=-1.0) >= threshold - 1e-9)
    tasks, codes = np.unique(run.task_id, return_inverse=True)
    length = np.log(np.where(usable, run.answer_chars, 1.0))
    chosen_means, others = (_means(codes, length, mask, len(tasks)) for mask in (chosen, usable & ~chosen))
    has_both = ~np.isnan(chosen_means) & ~np.isnan(others)
    count = int(has_both.sum())
    if count < limits["min_tasks"]:
        return
    differences = (chosen_means - others)[has_both]
    mean = float(differences.mean())
    margin = 2.0 * float(differences.std(ddof=1)) / math.sqrt(count)
    if abs(mean) - margin <= math.log(limits["max_ratio"]):
        return
    medians = [float(np.median(run.answer_chars[mask])) for mask in (chosen, usable)]
    word = "longer" if mean > 0 else "shorter"
    yield Finding(
        level="warning",
        text=f"answers that would be chosen are {word} than the others of their tasks by a factor of {math.exp(abs(mean)):.2f} "
        f"(median {medians[0]:,.0f} characters, all {medians[1]:,.0f}): length may be learned instead",
        value=math.exp(mean),
        threshold=limits["max_ratio"],
        n=count,
        interval=[math.exp(mean - margin), math.exp(mean + margin)],
        next=f"match lengths of pairs with prepare --length-ratio 1.5; see who they are: rollforge show {run.name} --best 5",
    )


def _means(codes: Ints, values: Floats, mask: Bools, size: int) -> Floats:
    """Per task the mean of the masked values; NaN without any."""
    with np.errstate(invalid="ignore"):
        return np.asarray(
            np.bincount(codes[mask], values[mask], size) / np.bincount(codes[mask], minlength=size)
        )
