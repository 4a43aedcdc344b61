"""Adaptive runs: how their sampling affects the other findings."""

from __future__ import annotations

from collections.abc import Iterator

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding


@check("adaptive-run", "collection")
def adaptive_run(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Tasks were sampled adaptively: how often depends on their first rewards."""
    design = run.about.design
    if design is None:
        return
    goal = f" for {design.recipe}={design.target}" if design.recipe else ""
    yield Finding(
        level="note",
        text=f"tasks were sampled adaptively{goal}: groups have unequal sizes by design, and later rollouts are of other tasks than "
        f"earlier ones, so rewards and their order are checked in the first stage alone ({design.first} samples per task)",
        value=float(design.first),
        n=run.n,
        next=f"see what is usable: rollforge status {run.name}",
    )
