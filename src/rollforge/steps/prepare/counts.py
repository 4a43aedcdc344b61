"""This module counts what became of every rollout and every example, so that each is counted once.

A recipe gives every rollout a fate before any text is read; what happens later to the examples it chose (the limit, a row that cannot
be expressed) is the fate of the rollouts that are in no other example.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from rollforge.recipes.base import Ints, Mask, Selection
from rollforge.records import JsonObject
from rollforge.stats import distinct
from rollforge.steps.prepare.gather import Pool
from rollforge.steps.prepare.plan import Plan

BEYOND = "beyond the limit"
DRY = "not written (dry run)"


def counts_of(pool: Pool, plan: Plan, numbers: Ints, lost: dict[int, str]) -> JsonObject:
    """The counts of a manifest: `numbers` are the examples that were written, `lost` those that were not, with the reason."""
    selection, candidates = plan.selection, pool.candidates
    limited = plan.planned - len(selection)
    unsaid = plan.lost_before + Counter(lost.values())
    reasons = {f"cannot be expressed: {reason}": count for reason, count in unsaid.items()}
    kept_groups = candidates.group[selection.picks[numbers].ravel()]
    return {
        "rollouts": {"in": len(candidates), **_fates(selection, candidates.group, numbers, lost)},
        "examples": {
            "planned": plan.planned + plan.lost_before.total(),
            **({BEYOND: limited} if limited else {}),
            **dict(sorted(reasons.items())),
            "written": len(numbers),
        },
        "tasks": {"in": len(distinct(candidates.group)), "kept": len(distinct(kept_groups))},
        "failed_attempts": pool.failed,
        "rejected_lines": pool.rejected,
        "overruled_rows": pool.overruled,
    }


def _fates(selection: Selection, group: Ints, numbers: Ints, lost: dict[int, str]) -> dict[str, int]:
    """The recipe's fates, those of `kept` rollouts that came into no written example told apart."""
    fates = dict(selection.fates)
    settled = rollouts_of(selection, group, numbers)
    later = {"kept": int(settled.sum())}
    examples_by_reason: dict[str, list[int]] = {}
    for number, reason in lost.items():
        examples_by_reason.setdefault(reason, []).append(number)
    for reason, examples in sorted(examples_by_reason.items()):
        behind = rollouts_of(selection, group, np.array(examples, dtype=np.int64)) & ~settled
        settled |= behind
        if behind.any():
            later[f"cannot be expressed: {reason}"] = int(behind.sum())
    beyond = fates.pop("kept") - sum(later.values())
    if beyond:
        later[BEYOND] = beyond
    kept = later.pop("kept")
    # A reason may be known from both: some rollouts are ruled out before any row is written.
    together = {reason: fates.get(reason, 0) + later.get(reason, 0) for reason in (*fates, *later)}
    return {"kept": kept, **together}


def rollouts_of(selection: Selection, group: Ints, numbers: Ints) -> Mask:
    """The rollouts behind these examples."""
    picks = selection.picks[numbers].ravel()
    if selection.members is not None:
        return selection.members & np.isin(group, group[picks])
    behind = np.zeros(len(group), dtype=bool)
    behind[picks] = True
    return behind
