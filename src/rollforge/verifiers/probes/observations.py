"""A verifier's verdicts on the probes, collected until a report is made.

They are evaluated only in the report, because the pass threshold depends on all observed rewards.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from rollforge.verifiers.probes.questions import QUESTIONS, UNSTEADY_LIMIT, Said
from rollforge.verifiers.probes.report import (
    EXAMPLES,
    Kind,
    Probe,
    ProbeExample,
    ProbeReport,
    Rate,
    finding_of,
    rate_of,
    wilson,
)
from rollforge.verifiers.running.ready_verifier import RunningJudge


class Observations:
    """One observation per task and question."""

    def __init__(self, judge: RunningJudge, skipped: frozenset[str]) -> None:
        self._judge = judge
        self.skipped = skipped
        self.said: dict[str, list[Said]] = defaultdict(list)
        self.forms: Counter[str] = Counter()
        """Number of passes of each format of the right answer."""
        self.golds: Counter[str] = Counter()
        """Number of occurrences of each right answer."""
        self.without_gold = 0
        self.unjudged_gold = 0
        self.tasks = 0
        self.calls = 0
        self.is_hanging = False
        """Whether probing stopped because of too many consecutive time-outs."""
        self._lowest, self._highest = math.inf, -math.inf

    def saw(self, reward: float) -> None:
        """Extend the observed range to include a reward."""
        self._lowest, self._highest = min(self._lowest, reward), max(self._highest, reward)

    @property
    def _has_judged(self) -> bool:
        return self._lowest <= self._highest

    @property
    def threshold(self) -> float:
        """Pass threshold: the middle of the declared or observed range; 0.5 if only one reward was observed."""
        low, high = self._judge.verifier.reward_range or (self._lowest, self._highest)
        if low >= high:
            low, high = min(low, 0.0), max(high, 1.0)
        return (low + high) / 2

    def has_flipped(self, observation: Said) -> bool:
        """Whether the reward differs from the one that it should equal, by more than 1 % of the observed range."""
        if observation.reward is None or observation.before is None:
            return observation.reward is not observation.before
        return abs(observation.reward - observation.before) > 0.01 * (self._highest - self._lowest)

    def _is_bad(self, name: str, observation: Said) -> bool:
        kind = QUESTIONS[name].kind
        if kind == "flip":
            return self.has_flipped(observation)
        if kind == "error":
            return observation.reward is None or not self._has_judged
        passes = observation.reward is not None and observation.reward >= self.threshold
        return not passes if kind == "false negative" else passes

    def chance(self) -> float:
        """Probability that two tasks have the same right answer, which is the success rate of guessing without the task."""
        total = sum(self.golds.values())
        if total < 2:
            return 0.0
        return sum(count * (count - 1) for count in self.golds.values()) / (total * (total - 1))

    def report(self) -> ProbeReport:
        """The report on all observations so far."""
        probes = [self._probe(name) for name in QUESTIONS]
        form = self.forms.most_common(1)
        return ProbeReport(
            verifier=self._judge.name,
            fingerprint=self._judge.fingerprint,
            mode=self._judge.mode,
            tasks=self.tasks,
            calls=self.calls,
            is_broken=any(probe.finding == "broken" for probe in probes),
            threshold=self.threshold,
            gold_form=form[0][0] if form else None,
            probes=probes,
            false_negative=_pooled(probes, "false negative"),
            false_positive=_pooled(probes, "false positive"),
            flip=_pooled(probes, "flip"),
            notes=self._notes(),
        )

    def _probe(self, name: str) -> Probe:
        question = QUESTIONS[name]
        observations = self.said[name]
        wrong = [one for one in observations if self._is_bad(name, one)]
        limit = question.limit
        if name == "twice" and not self._judge.verifier.is_deterministic:
            limit = UNSTEADY_LIMIT
        chance = self.chance() if question.is_by_chance else 0.0
        rate = rate_of(len(wrong), len(observations))
        return Probe(
            name=name,
            question=question.text,
            kind=question.kind,
            n=len(observations),
            bad=len(wrong),
            rate=rate.rate,
            ci=rate.ci,
            chance=chance,
            limit=limit,
            finding="broken"
            if name == "errors" and self.is_hanging
            else finding_of(len(wrong), len(observations), limit, chance),
            reason="" if observations else self._reason_not_asked(name),
            examples=[_example(one) for one in wrong[:EXAMPLES]],
        )

    def _reason_not_asked(self, name: str) -> str:
        if name in self.skipped:
            return "the verifier says that this question does not fit it"
        if name == "gold":
            return (
                "no row has a right answer (expected_answer, …)"
                if self.without_gold
                else "it could not judge any"
            )
        if name == "swapped response":
            return "there are no real responses; give a run"
        if name == "hedge" and self.said["swapped gold"]:
            return "the right answers are no plain texts"
        if name in ("swapped gold", "hedge"):
            return "there are no two tasks with different right answers"
        return "nothing to ask it with"

    def _notes(self) -> list[str]:
        notes = []
        if self.unjudged_gold:
            notes.append(f"it said it cannot judge the right answer of {self.unjudged_gold:,} tasks")
        if self.is_hanging:
            notes.append("it ran out of time again and again, so it was asked no more")
        if self.tasks and not self._has_judged:
            notes.append("it judged nothing it was shown")
        elif self.tasks and self._highest <= 0:
            notes.append("it gave no reward above 0 to anything it was shown")
        return notes


def _example(observation: Said) -> ProbeExample:
    note = observation.note
    if observation.before is not None:
        note = f"{observation.before:g} before" + (f", after {note}" if note else "")
    return ProbeExample(observation.task, observation.sent, observation.reward, observation.expected, note)


def _pooled(probes: list[Probe], kind: Kind) -> Rate:
    """Pooled rate of all questions of a kind, without subtracting chance."""
    of_kind = [probe for probe in probes if probe.kind == kind]
    bad, n = sum(probe.bad for probe in of_kind), sum(probe.n for probe in of_kind)
    return Rate(bad / n, wilson(bad, n), n) if n else Rate(None, None, 0)
