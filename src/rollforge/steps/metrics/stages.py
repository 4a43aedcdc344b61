"""Numbers of an adaptive run that need more than its first stage, such as pass@k for large k."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rollforge.adaptive.design import SamplingDesign, stage_condition
from rollforge.adaptive.sampling_rule import is_audited
from rollforge.adaptive.stage_estimates import over_strata
from rollforge.index import ByTask, Index, ints
from rollforge.statistics import at_k
from rollforge.statistics.stats import Floats, Ints
from rollforge.steps.metrics.metric_records import AdaptiveFacts, AtKValue


def audited_tasks(tasks: Ints, design: SamplingDesign) -> NDArray[np.bool_]:
    """Mask of audited tasks, which were sampled in full whatever their rewards."""
    return np.array([is_audited(int(task), design.seed, design.audit) for task in tasks], dtype=bool)


def beyond_first_stage(
    index: Index, where: str | None, design: SamplingDesign, first: ByTask, hits: Floats, threshold: float
) -> tuple[dict[str, AtKValue], AdaptiveFacts]:
    """pass@k, pass^k, best@k and worst@k for k above the first stage, and the numbers that are omitted, with reasons.

    Args:
        first: the rollouts of the first stage.
        hits: for these, 1 for a success, 0 for none, NaN if unjudged.
    """
    audited = audited_tasks(first.tasks, design)
    facts = AdaptiveFacts(
        goal=f"{design.recipe}={design.target}" if design.recipe else None,
        first=design.first,
        tasks=len(first.tasks),
        rollouts=len(first),
        audited=int(audited.sum()),
    )
    facts.left_out["failures_as_zero"] = "failed attempts belong to all stages"
    estimates: dict[str, AtKValue] = {}
    if design.whole <= design.first:
        return estimates, facts
    rows = ByTask(index, stage_condition(where, design.whole))
    reward = rows.one("reward")
    whole_hits = np.where(np.isnan(reward), np.nan, (reward >= threshold).astype(np.float64))
    has_whole = np.isin(first.tasks, _whole_tasks(index, design.whole))
    solved, judged = first.sums(hits)
    stratum = np.unique(np.stack([solved, judged]), axis=1, return_inverse=True)[1].ravel()
    for names, values in (
        (("pass@", "pass^"), at_k.at_k(whole_hits, rows.starts)),
        (("best@", "worst@"), at_k.at_k(reward, rows.starts)),
    ):
        is_share = names[0] == "pass@" or bool(np.isin(reward[~np.isnan(reward)], (0.0, 1.0)).all())
        for k in range(design.first + 1, design.whole + 1):
            for name, table in zip(names, values, strict=True):
                per_task = np.where(has_whole, _aligned(first.tasks, rows.tasks, table, k), np.nan)
                certain = (
                    (solved > 0 if name in ("pass@", "best@") else solved < judged) if is_share else None
                )
                estimate = over_strata(per_task, stratum, audited, is_share=is_share, is_certain=certain)
                if estimate.value is None:
                    facts.left_out[f"{name}{k}"] = estimate.reason
                else:
                    estimates[f"{name}{k}"] = AtKValue(
                        value=estimate.value, ci=estimate.ci, tasks=estimate.tasks
                    )
    facts.left_out["majority@k"] = f"for k above {design.first}: votes of whole groups alone would be biased"
    return estimates, facts


def _whole_tasks(index: Index, whole: int) -> Ints:
    """The tasks whose last sample was asked for, whether it was answered or failed.

    A group that ended earlier ended because of its rewards: its k samples say nothing unbiased, not even where every task of a
    stratum has k.
    """
    failed = " UNION ALL SELECT task, rollout FROM failures" if index.has_failures else ""
    sql = (
        f"SELECT DISTINCT task FROM (SELECT task, rollout FROM rollouts{failed}) WHERE rollout >= {whole - 1}"
    )
    return ints(index.select(f"{sql} AND task IS NOT NULL").column(0))


def pooled_facts(index: Index, first: ByTask) -> AdaptiveFacts:
    """Facts about several runs, some of them adaptive, that are read together: the first stage of each is counted."""
    facts = AdaptiveFacts(
        goal=None,
        first=min(design.first for design in index.designs),
        tasks=len(first.tasks),
        rollouts=len(first),
        audited=0,
        runs=len(index.designs),
    )
    facts.left_out["failures_as_zero"] = "failed attempts belong to all stages"
    facts.left_out["at_k"] = (
        "beyond the first stage: audited tasks of several runs are no one sample; see each run alone"
    )
    return facts


def _aligned(tasks: Ints, others: Ints, table: Floats, k: int) -> Floats:
    """The value at k of each task, NaN if it has none."""
    if table.shape[1] < k:
        return np.full(len(tasks), np.nan)
    position = np.minimum(np.searchsorted(others, tasks), len(others) - 1)
    return np.where(others[position] == tasks, table[position, k - 1], np.nan)
