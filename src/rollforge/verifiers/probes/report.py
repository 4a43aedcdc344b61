"""Error rates with intervals from probe verdicts, and a judgement with its reason.

A verifier is judged broken only when a rate's whole interval lies beyond its limit; a few errors in a small sample are shown
without judging.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rollforge.statistics import intervals
from rollforge.statistics.counts import count_of
from rollforge.text_safety.markup import decimal, interval, result, table, tag

EXAMPLES = 3

Finding = Literal["ok", "broken", "unclear", "not asked"]
Kind = Literal["false negative", "false positive", "flip", "error"]


class ProbeExample(msgspec.Struct, frozen=True):
    """One wrong answer of the verifier."""

    task: int
    sent: str
    """The end of the answer sent to the verifier."""
    reward: float | None
    """The verifier's reward."""
    expected: str | None = None
    note: str = ""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one question over many tasks."""

    name: str
    question: str
    kind: Kind
    n: int
    """Number of tasks with a verdict on this question."""
    bad: int
    rate: float | None
    ci: tuple[float, float] | None
    """95 % Wilson interval of the rate."""
    chance: float
    """Rate explained by chance agreement alone; the limit is added to it."""
    limit: float
    finding: Finding
    reason: str = ""
    """Why the question was not asked."""
    examples: list[ProbeExample] = []


class Rate(msgspec.Struct, frozen=True):
    """A rate with its interval, over `n` questions."""

    rate: float | None
    ci: tuple[float, float] | None
    n: int


class ProbeReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results of probing a verifier."""

    verifier: str
    fingerprint: str
    mode: str | None
    tasks: int
    calls: int
    is_broken: bool
    threshold: float
    """Rewards from this value on count as passed."""
    gold_form: str | None
    """Format in which gold answers passed most often."""
    probes: list[Probe]
    false_negative: Rate
    false_positive: Rate
    flip: Rate
    notes: list[str] = []

    @property
    def reasons(self) -> list[str]:
        """Reasons for judging it broken, one sentence each."""
        return [reason_of(probe) for probe in self.probes if probe.finding == "broken"]

    def _repr_html_(self) -> str:
        judgement = "broken" if self.is_broken else "nothing found"
        rows = [
            [
                probe.question,
                f"{probe.bad:,} of {probe.n:,}",
                decimal(probe.rate),
                interval(probe.ci),
                decimal(probe.limit),
                probe.finding,
            ]
            for probe in self.probes
        ]
        return result(
            f"{self.verifier}, asked about {count_of(self.tasks, 'task')}: {judgement}",
            table(("question", "wrong", "rate", "95 % interval", "tolerated", "finding"), rows),
            *(tag("p", text) for text in (*self.reasons, *self.notes)),
        )

    def supersedes(self, facts: object) -> bool:
        """Whether it replaces an earlier outcome: a few tasks do not acquit a version of a verifier that failed on more."""
        if (
            not isinstance(facts, dict)
            or not facts.get("is_broken")
            or facts.get("fingerprint") != self.fingerprint
        ):
            return True
        tasks = facts.get("tasks")
        return self.is_broken or not isinstance(tasks, int) or self.tasks >= tasks

    def facts(self) -> dict[str, object]:
        """The outcome as stored in the run's manifest, for `check` and the report."""
        return {
            "verifier": self.verifier,
            "fingerprint": self.fingerprint,
            "tasks": self.tasks,
            "is_broken": self.is_broken,
            "reasons": self.reasons,
            "questions": [
                {
                    "question": probe.question,
                    "n": probe.n,
                    "bad": probe.bad,
                    "rate": probe.rate,
                    "ci": probe.ci,
                    "limit": probe.limit + probe.chance,
                    "finding": probe.finding,
                }
                for probe in self.probes
            ],
        }


def wilson(bad: int, n: int) -> tuple[float, float]:
    """95 % Wilson score interval of `bad` out of `n`; (0, 1) if n is 0."""
    if n == 0:
        return 0.0, 1.0
    return intervals.wilson(bad / n, n, intervals.normal_quantile((1 + intervals.LEVEL) / 2))


def rate_of(bad: int, n: int) -> Rate:
    """A rate and its interval; None without questions."""
    return Rate(bad / n, wilson(bad, n), n) if n else Rate(None, None, 0)


def finding_of(bad: int, n: int, limit: float, chance: float) -> Finding:
    """Broken if the whole interval is above the limit, unclear if only the rate is."""
    if n == 0:
        return "not asked"
    allowed = min(limit + chance, 0.99)
    if wilson(bad, n)[0] > allowed:
        return "broken"
    return "unclear" if bad / n > allowed else "ok"


def reason_of(probe: Probe) -> str:
    """Describe a failed question in one sentence."""
    low, high = probe.ci or (0.0, 1.0)
    chance = f" beyond chance ({probe.chance:.0%})" if probe.chance else ""
    return (
        f"{probe.question} {probe.bad:,} of {probe.n:,} times wrong "
        f"({low:.0%}–{high:.0%}; at most {probe.limit:.0%}{chance} is tolerated)"
    )
