"""This module plans anew when some examples turn out, while rows are written, to be inexpressible.

What was chosen depends on what could be chosen: the best of a task, a partner, the balance of classes, the numbers of a group. So
the recipe chooses again without what was lost, and only a plan that comes out as it was written stands.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from rollforge.recipes.base import Candidates, Ints, Selection
from rollforge.steps.prepare.counts import rollouts_of
from rollforge.steps.prepare.examples import Tally
from rollforge.steps.prepare.gather import Pool
from rollforge.steps.prepare.plan import Plan, make_plan
from rollforge.steps.prepare.settings import Settings


class PlanChanged(Exception):
    """Without what cannot be expressed another choice is made; the data set is written again."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(f"{plan.lost_before.total()} examples cannot be expressed")
        self.plan = plan


def refuse_outdated(recipe: str, pool: Pool, plan: Plan, tally: Tally, settings: Settings) -> None:
    """Raise when the recipe chooses otherwise without what was lost, which is ruled out of the pool with its reasons."""
    if not tally.lost:
        return
    pool.candidates = _without(pool.candidates, plan.selection, tally)
    lost_before = plan.lost_before + Counter(tally.lost.values())
    again = replace(make_plan(recipe, pool, settings), lost_before=lost_before)
    written = plan.selection.take(np.setdiff1d(np.arange(len(plan.selection)), list(tally.lost)))
    if not _are_the_same(written, again.selection):
        raise PlanChanged(again)


def _without(candidates: Candidates, selection: Selection, tally: Tally) -> Candidates:
    """The candidates with what was lost ruled out: a pair only where both its rollouts can be expressed by themselves."""
    unusable, unpairable = dict(candidates.unusable), dict(candidates.unpairable)
    for reason, numbers in _by_reason(tally.lost).items():
        name = f"cannot be expressed: {reason}"
        if selection.kind == "pair":
            pairs = selection.picks[numbers]
            pairs = pairs[~np.isin(pairs, list(tally.unsaid)).any(axis=1)]
            unpairable[name] = np.concatenate([unpairable.get(name, pairs[:0]), pairs])
        else:
            lost = rollouts_of(selection, candidates.group, numbers)
            unusable[name] = unusable.get(name, np.zeros_like(lost)) | lost
    for reason, positions in _by_reason(tally.unsaid).items():
        name = f"cannot be expressed: {reason}"
        lost = np.zeros(len(candidates), dtype=bool)
        lost[positions] = True
        unusable[name] = unusable.get(name, np.zeros_like(lost)) | lost
    return replace(candidates, unusable=unusable, unpairable=unpairable)


def _by_reason(reasons: dict[int, str]) -> dict[str, Ints]:
    found: dict[str, list[int]] = {}
    for number, reason in reasons.items():
        found.setdefault(reason, []).append(number)
    return {reason: np.array(found[reason], dtype=np.int64) for reason in sorted(found)}


def _are_the_same(one: Selection, other: Selection) -> bool:
    """Whether both are the same examples with the same numbers, in whatever order."""
    if len(one) != len(other):
        return False
    one, other = (each.take(np.lexsort(np.atleast_2d(each.picks.T))) for each in (one, other))
    return np.array_equal(one.picks, other.picks) and all(
        np.array_equal(column, other.values[name], equal_nan=True) for name, column in one.values.items()
    )
