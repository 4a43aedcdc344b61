"""Right answers without reward: the verifier may fail to extract them, or it requires more than the right answer.

The text alone cannot tell the two apart: tasks about format, brevity or several steps give 0 to answers that end in the expected
one. It is a warning on its own, and an error only with a second, independent signal (`_second_signal`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level, Share, share
from rollforge.checks.building_blocks.text_samples import BUDGET, SampledText, bare, concludes, names
from rollforge.checks.consistency import is_goodness
from rollforge.statistics.stats import Floats, Ints

CONTROLS = 4
"""Other tasks' expected answers with which each answer is compared, as controls."""

LEAST = 5
"""Fewest answers for a second signal."""

MOSTLY = 0.5
"""A second signal supports or refutes when it covers more than this share of the answers with confidence."""

SOMETIMES = 0.2
"""Another verifier refutes the finding when it certainly rewards fewer than this share of the answers."""


@check("missed-answers", "verification", warn_share=0.02, max_share=0.04, max_named=0.12)
def missed_answers(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Answers that hold the expected answer score 0: it may not have been extracted."""
    missed = find_missed(run, limits)
    if missed is None:
        return
    signal = _second_signal(run, missed)
    level, doubt = missed.level, ""
    if level == "error" and not signal.supports:
        level = "warning"
        doubt = "; this alone is no proof, for the verifier may ask for more than the right answer"
    if signal.refutes:
        level = "note"
        doubt = f"; {signal.refutes}: the verifier asks for more than the right answer"
    text = (
        f"{int(missed.hits.sum()):,} of {len(missed.hits):,} answers with reward {run.range.low:g} that were looked at "
        f"{missed.verb} the expected answer ({missed.by_chance:.0%} would by chance): suspected extraction failure"
    )
    other = "math" if run.counting_verifier != "math" else "exact"
    yield Finding(
        level=level,
        text=text + (f"; {signal.supports}" if signal.supports and not signal.refutes else doubt),
        value=missed.excess,
        threshold=missed.max_share,
        n=len(missed.hits),
        interval=[max(0.0, missed.excess - missed.half), min(1.0, missed.excess + missed.half)],
        where=run.lines(missed.positions[missed.hits]),
        next=f"compare with a second verifier: rollforge verify {run.name} --verifier {other} "
        f"&& rollforge verify {run.name} --diff {shlex.quote(run.counting_verifier)} {other}",
    )


class Missed(NamedTuple):
    """Unrewarded answers that hold the expected answer more often than chance explains."""

    verb: str
    samples: list[SampledText]
    positions: Ints
    hits: np.ndarray
    """Mask of the samples that contain the expected answer."""
    by_chance: float
    excess: float
    half: float
    max_share: float
    level: Level


DEFAULTS = {"warn_share": 0.02, "max_share": 0.04, "max_named": 0.12}


def find_missed(run: Evidence, limits: Limits | None = None) -> Missed | None:
    """The missed answers of a run, computed once and shared; other checks use them as a second signal."""
    if "missed answers" not in run.shared:
        run.shared["missed answers"] = _find_missed(run, limits or DEFAULTS)
    missed: Missed | None = run.shared["missed answers"]
    return missed


class _Way(NamedTuple):
    """A way in which an answer contains the expected one (as a conclusion, or anywhere), and the shares for a warning and an
    error.
    """

    verb: str
    holds: Callable[[str, str], bool]
    warn_share: float
    max_share: float


def _find_missed(run: Evidence, limits: Limits) -> Missed | None:
    lost = run.judged & (run.scaled <= 0.0) & ~run.is_empty & ~run.is_truncated & (run.answer_chars > 0)
    drawn = run.draw(lost, BUDGET)
    samples = run.read(drawn)
    # Wrong answers repeat words of the prompt too, so for those only the end of the answer counts.
    ends = [position for position, item in enumerate(samples) if item.expected is not None]
    own = [position for position in ends if _is_own(samples[position])]
    for positions, way in (
        (ends, _Way("end in", concludes, limits["warn_share"], limits["max_share"])),
        (own, _Way("name", names, limits["max_named"] / 2, limits["max_named"])),
    ):
        missed = _missed(run, [samples[position] for position in positions], drawn[positions], way)
        if missed is not None:
            return missed
    return None


def _is_own(item: SampledText) -> bool:
    """Whether the expected answer is longer than a letter and absent from the prompt."""
    return item.expected is not None and len(item.expected) > 1 and not names(item.prompt, item.expected)


def _missed(run: Evidence, samples: list[SampledText], positions: Ints, way: _Way) -> Missed | None:
    """Unrewarded answers that contain the expected answer, if more than chance explains."""
    n = len(samples)
    if n < 10:
        return None
    hits = np.asarray([way.holds(item.answer, item.expected or "") for item in samples])
    worth = run.independent(run.flags(positions)) / n
    estimate = share(int(hits.sum()), n, independent=worth * n)
    by_chance = _held_by_chance(samples, run.group[positions], way, worth)
    excess = estimate.value - by_chance.value
    half = math.hypot(estimate.value - estimate.low, by_chance.high - by_chance.value)
    if excess <= way.warn_share:
        return None
    level: Level = "error" if excess - half > way.max_share else "warning" if excess > half else "note"
    return Missed(way.verb, samples, positions, hits, by_chance.value, excess, half, way.max_share, level)


def _held_by_chance(samples: list[SampledText], group: Ints, way: _Way, worth: float) -> Share:
    """How often an answer contains another task's expected answer: with few distinct answers, matches by chance are frequent."""
    n, held, pairs = len(samples), 0, 0
    for step in range(1, CONTROLS + 1):
        others = np.roll(np.arange(n), step * n // (CONTROLS + 1))
        for position in np.flatnonzero(group != group[others]).tolist():
            held += way.holds(samples[position].answer, samples[others[position]].expected or "")
            pairs += 1
    return share(held, pairs, independent=worth * pairs)


# A second signal


class _Signal(NamedTuple):
    """Other evidence about the missed answers: a clause that supports the suspicion, and one that refutes it."""

    supports: str = ""
    refutes: str = ""


def _second_signal(run: Evidence, missed: Missed) -> _Signal:
    """Independent evidence on disk: the verifier's own fields, other verifiers' verdicts, a probe, what `collect` saw."""
    signals = [
        _by_extraction(missed),
        _by_metric(run, missed),
        _by_others(run, missed),
        _by_probe(run),
        _by_watch(run),
    ]
    supports = "; ".join(signal.supports for signal in signals if signal.supports)
    refutes = "; ".join(signal.refutes for signal in signals if signal.refutes)
    return _Signal(supports, "" if supports else refutes)


def _by_extraction(missed: Missed) -> _Signal:
    """Whether the verifier extracted something other than the answer that the text ends in."""
    hits = [item for item, is_hit in zip(missed.samples, missed.hits, strict=True) if is_hit]
    with_extraction = [item for item in hits if item.extracted is not None]
    if len(with_extraction) < LEAST:
        return _Signal()
    same = share(
        sum(_is_same(item.extracted or "", item.expected or "") for item in with_extraction),
        len(with_extraction),
    )
    if same.high < MOSTLY:
        other = len(with_extraction) - same.count
        return _Signal(
            supports=f"the verifier extracted something else, or nothing, from {other:,} of {len(with_extraction):,}"
        )
    if same.low > MOSTLY:
        return _Signal(
            refutes=f"it did extract the expected answer from {same.count:,} of {len(with_extraction):,}"
        )
    return _Signal()


def _is_same(extracted: str, expected: str) -> bool:
    if bare(extracted) == bare(expected):
        return True
    try:
        return float(extracted) == float(expected)
    except ValueError:
        return False


def _by_metric(run: Evidence, missed: Missed) -> _Signal:
    """Whether another number of the verifier calls most of these answers right."""
    positions = missed.positions[missed.hits]
    for name, metric in run.each_number([name for name in run.metrics if is_goodness(name)]):
        with_metric = positions[~np.isnan(metric[positions])]
        high = float(np.nanmax(metric[run.judged], initial=-np.inf))
        if len(with_metric) < LEAST or not high > 0:
            continue
        right = share(int((metric[with_metric] >= high).sum()), len(with_metric))
        others = missed.positions[~missed.hits]
        beside = float((metric[others] >= high).mean()) if len(others) else 0.0
        if right.low > max(MOSTLY, beside):
            return _Signal(supports=f"{name} is {high:g} for {right.count:,} of {right.n:,}")
    return _Signal()


def _by_others(run: Evidence, missed: Missed) -> _Signal:
    """Whether another verifier rewards these answers more often than the other unrewarded ones."""
    others = {name: rewards[missed.positions] for name, rewards in run.other_rewards.items()}
    counting = _names_of(run, missed.positions)
    recorded = [item.recorded for item in missed.samples]
    earlier = np.array(
        [
            math.nan if reward is None or name is None or name == now else reward
            for (name, reward), now in zip(recorded, counting, strict=True)
        ]
    )
    if not np.isnan(earlier).all():
        others.setdefault("the recorded verifier", earlier)
    refutes = ""
    for name, rewards in others.items():
        disagreement = _disagreement(run, rewards, missed.hits)
        if disagreement is None:
            continue
        among, beside = disagreement
        if among.low > max(SOMETIMES, beside.value):
            return _Signal(supports=f"{name} rewards {among.count:,} of {among.n:,} of them")
        if among.high < SOMETIMES:
            refutes = f"{name} rewards only {among.count:,} of {among.n:,} of them"
    return _Signal(refutes=refutes)


def _names_of(run: Evidence, positions: Ints) -> list[str | None]:
    """The verifier whose reward counts, for each position."""
    codes = run.verifier.codes[positions].tolist()
    return [run.verifier.names[code] if code >= 0 else None for code in codes]


def _disagreement(run: Evidence, rewards: Floats, hits: np.ndarray) -> tuple[Share, Share] | None:
    """The share of hits that another verifier rewards, and its share among the unrewarded answers that are no hits."""
    is_judged = ~np.isnan(rewards)
    success = run.range.low + run.success_at * (run.range.high - run.range.low)
    is_success = np.nan_to_num(rewards, nan=-np.inf) >= success
    if int((is_judged & hits).sum()) < LEAST:
        return None
    return (
        share(int((is_success & hits).sum()), int((is_judged & hits).sum())),
        share(int((is_success & ~hits).sum()), int((is_judged & ~hits).sum())),
    )


def _by_probe(run: Evidence) -> _Signal:
    """Whether a probe found the verifier broken."""
    probe = run.probe
    return (
        _Signal(supports=f"a probe found it broken: {probe.reason}")
        if probe and probe.is_broken
        else _Signal()
    )


def _by_watch(run: Evidence) -> _Signal:
    """Whether the live detectors of `collect` tripped."""
    window = run.about.suspect
    if window is None:
        return _Signal()
    return _Signal(supports=f"collect itself marked {window.rollouts:,} rollouts as suspect")
