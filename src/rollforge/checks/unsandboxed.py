"""Rewards of programs that ran without a sandbox: such a program may have read its own expected outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import check
from rollforge.checks.evidence import Evidence
from rollforge.checks.finding import Finding

COLUMN = "sandbox"
"""The text column in which the `code` verifier records how it confined the program."""


@check("unsandboxed", "verification")
def unsandboxed(run: Evidence, limits: object = None) -> Iterator[Finding]:
    """Programs ran with limits only, so a reward does not prove that a program solved its task."""
    if COLUMN not in run.source.texts:
        return
    is_open = np.array([value == "limits" for value in run.source.table([COLUMN])[COLUMN].to_pylist()])
    count = int(is_open.sum())
    if count:
        yield Finding(
            level="warning",
            text=f"{count:,} of {len(is_open):,} programs ran without a sandbox (--sandbox off): "
            "one that reads the expected outputs is rewarded like one that solves its task",
            value=count / len(is_open),
            n=len(is_open),
            where=run.lines(is_open),
            next=f"judge them again with bubblewrap installed: rollforge verify {run.name} --verifier code --fresh",
        )
