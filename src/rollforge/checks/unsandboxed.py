"""Rewards of programs that ran without a sandbox: such a program may have read its own expected outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding

COLUMN = "sandbox"
"""The text column in which `code` and `script` record how they confined the program."""


@check("unsandboxed", "verification")
def unsandboxed(run: Evidence, limits: object = None) -> Iterator[Finding]:
    """Programs ran without a sandbox, so a reward does not prove that a program or an agent solved its task."""
    if run.about.open_programs:
        yield Finding(
            level="warning",
            text="the agents are programs that ran without a sandbox (--sandbox off): they could read the task file, "
            "the expected answers and whatever else you can",
            value=1.0,
            n=run.n,
            next="collect again with bubblewrap installed and without --sandbox off",
        )
    if COLUMN not in run.source.texts:
        return
    is_open = np.array([value == "limits" for value in run.source.table([COLUMN])[COLUMN].to_pylist()])
    count = int(is_open.sum())
    if count:
        verifier = next(iter(run.verifier.names), "code")
        yield Finding(
            level="warning",
            text=f"{count:,} of {len(is_open):,} programs ran without a sandbox (--sandbox off): "
            "one that reads the expected outputs is rewarded like one that solves its task",
            value=count / len(is_open),
            n=len(is_open),
            where=run.lines(is_open),
            next=f"judge them again with bubblewrap installed: rollforge verify {run.name} --verifier {verifier} --fresh",
        )
