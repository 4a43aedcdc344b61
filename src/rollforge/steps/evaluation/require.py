"""`--require 'trained > base'`: a claim about two models that the paired interval must support, or the gate fails.

`A > B` holds when the whole 95 % interval of the paired difference A − B lies above 0, over all task sets together. A margin may
follow: `A > B + 0.05`, `A >= B - 0.02`. Too few shared tasks support no claim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import msgspec

from rollforge.errors import UsageError
from rollforge.registry import did_you_mean
from rollforge.statistics import intervals
from rollforge.steps.evaluation.compare import Difference, compare
from rollforge.steps.evaluation.evaluate import Evaluation

_CLAIM = re.compile(r"\s*(.+?)\s*(>=|>)\s*(.+?)(?:\s+([+-])\s+(\d+(?:\.\d+)?))?\s*")


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The claim that one model is better than another by more than a margin."""

    model: str
    against: str
    relation: Literal[">", ">="] = ">"
    margin: float = 0.0

    def __str__(self) -> str:
        margin = f" {'-' if self.margin < 0 else '+'} {abs(self.margin):g}" if self.margin else ""
        return f"{self.model} {self.relation} {self.against}{margin}"


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """A claim, and whether the paired interval supports it."""

    claim: str
    holds: bool
    difference: Difference


def parse_claims(texts: Sequence[str], labels: Sequence[str]) -> list[Claim]:
    """Parse claims; raises `UsageError` for an invalid claim, or one about an unknown model."""
    claims = []
    for text in texts:
        match = _CLAIM.fullmatch(text)
        if match is None:
            raise UsageError(f"--require {text!r} is not understood", hint="write --require 'trained > base'")
        for label in (match[1], match[3]):
            if label not in labels:
                raise UsageError(
                    f"--require {text!r}: no model is called {label!r}{did_you_mean(label, list(labels))}",
                    hint=f"labels: {', '.join(labels)}",
                )
        if match[1] == match[3]:
            raise UsageError(f"--require {text!r} compares a model with itself", hint="name two models")
        margin = float(match[5] or 0) * (-1 if match[4] == "-" else 1)
        relation = cast('Literal[">", ">="]', match[2])
        claims.append(Claim(model=match[1], against=match[3], relation=relation, margin=margin))
    return claims


def judge_claims(
    claims: Sequence[Claim], evaluations: Mapping[str, Evaluation], metric: str
) -> list[ClaimResult]:
    """Test every claim with its paired difference, over all task sets."""
    return [_judge(claim, evaluations, metric) for claim in claims]


def _judge(claim: Claim, evaluations: Mapping[str, Evaluation], metric: str) -> ClaimResult:
    pair = {claim.against: evaluations[claim.against], claim.model: evaluations[claim.model]}
    difference = compare(pair, metric)[-1]  # the last is over all task sets
    holds = False
    if difference.ci is not None and difference.tasks >= intervals.FEWEST_PAIRS:
        low = difference.ci[0]
        holds = low > claim.margin if claim.relation == ">" else low >= claim.margin
    return ClaimResult(claim=str(claim), holds=holds, difference=difference)
