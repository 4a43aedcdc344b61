"""This module plans scored groups anew when some of their rollouts turn out, while rows are written, to be inexpressible.

A row of a scored group carries the group's size, mean and advantages. They hold for exactly the rollouts that are written, so a
group that comes out smaller than planned is a reason to plan again without what was lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from rollforge.steps.prepare.gather import Pool
from rollforge.steps.prepare.plan import Plan, make_plan
from rollforge.steps.prepare.settings import Settings


class GroupsShrank(Exception):
    """Some rollouts of a group were written and others could not be; the data set is written again from another plan."""

    def __init__(self, lost: dict[int, str]) -> None:
        super().__init__(f"{len(lost)} rollouts cannot be expressed")
        self.lost = lost
        """Number of each example that was not written → why."""


def refuse_shrunk(pool: Pool, plan: Plan, lost: dict[int, str]) -> None:
    """Raise when a group was written in part. One that is lost as a whole changes no row of the others."""
    if plan.selection.kind != "scored" or not lost:
        return
    group = pool.candidates.group[plan.selection.picks]
    is_lost = np.zeros(len(group), dtype=bool)
    is_lost[list(lost)] = True
    if np.isin(group[is_lost], group[~is_lost]).any():
        raise GroupsShrank(lost)


def plan_without(lost: dict[int, str], recipe: str, pool: Pool, plan: Plan, settings: Settings) -> Plan:
    """The plan without the rollouts behind these examples, which are ruled out of the pool with their reasons."""
    unusable = dict(pool.candidates.unusable)
    for reason in sorted(set(lost.values())):
        name = f"cannot be expressed: {reason}"
        mask = unusable.get(name, np.zeros(len(pool.candidates), dtype=bool)).copy()
        mask[plan.selection.picks[[number for number, why in lost.items() if why == reason]]] = True
        unusable[name] = mask
    pool.candidates = replace(pool.candidates, unusable=unusable)
    return replace(make_plan(recipe, pool, settings), lost_before=plan.lost_before + Counter(lost.values()))
