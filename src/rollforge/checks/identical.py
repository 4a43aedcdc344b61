"""Rewards that do not differ: over the run, within an agent or task family, within every task."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.chance import ALIKE, EDGES, chance_all_flat, chance_all_same
from rollforge.checks.building_blocks.coded_columns import Bools, TextCodes
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, share
from rollforge.checks.building_blocks.text_samples import BUDGET, concludes, names
from rollforge.statistics.counts import count_of

FEWEST_LOOKS, OFTEN = 20, 0.1
"""Fewest answers to compare with the expected ones, and the share of right and of wrong answers for which rewards must follow the
answers.
"""

MOST_FAMILIES = 50
"""Text fields with more values than this are not task families."""


LIKELY = 0.2
"""Probability above which equal rewards are worth at most a warning."""

RATE_OF_OTHERS = 0.1
"""If others succeed, an agent or a family is assumed to succeed at no less than this fraction of their rate."""


def _is_edge(run: Evidence, value: float) -> bool:
    return value in EDGES or (run.about.declared is not None and value in run.about.declared)


def _chance(run: Evidence, among: Bools, value: float, rate: float) -> float:
    """Probability of that many equal rewards with a working verifier, if this share of rollouts gets another reward."""
    counts = run.per_group(among)
    if not _is_edge(run, value):
        tasks = int((counts > 0).sum())
        return 0.5**tasks  # an honest score between the ends differs from task to task
    return chance_all_same(counts, rate, ALIKE)


@check("identical-rewards", "verification", min_rate=0.01, chance=0.01)
def identical_rewards(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """All rewards of the run are the same number."""
    if run.judged_n < 2 or len(run.levels) != 1:
        return
    value = float(run.levels[0])
    chance = _chance(run, run.judged, value, limits["min_rate"])
    tasks = int((run.profile.n > 0).sum())
    # Equal low rewards may come from a verifier that asks for more than the right answer: see `missed-answers`.
    alike = _alike_text(run) if value > 0 and chance < LIKELY else ""
    is_proof = chance < limits["chance"] or bool(alike)
    level = "error" if is_proof else "warning" if run.judged_n >= 100 and tasks >= 20 else "note"
    doubt = (
        f"{alike}; verification may not be running at all"
        if is_proof
        else f"; with one success in {1 / limits['min_rate']:.0f} that happens in {chance:.0%} of runs, so it is no proof yet"
    )
    yield Finding(
        level=level,  # type: ignore[arg-type]
        text=f"all {run.judged_n:,} rewards are {value:g} over {count_of(tasks, 'task')}{doubt}",
        value=value,
        threshold=limits["chance"],
        n=run.judged_n,
        interval=[value, value],
        where=run.lines(run.judged),
        next=f"read a few verdicts: rollforge show {run.name} --limit 5",
    )


def _alike_text(run: Evidence) -> str:
    """A clause for rewards that ignore the answers: some end in the expected answer, others do not even contain it."""
    whole = run.judged & ~run.is_empty & ~run.is_truncated & (run.answer_chars > 0)
    drawn = run.draw(whole, BUDGET)
    samples = run.read(drawn)
    looked = [position for position, item in enumerate(samples) if item.expected is not None]
    if len(looked) < FEWEST_LOOKS:
        return ""
    texts = [(samples[position].answer, samples[position].expected or "") for position in looked]
    right = sum(concludes(answer, expected) for answer, expected in texts)
    wrong = sum(not names(answer, expected) for answer, expected in texts)
    independent = run.independent(run.flags(drawn[looked]))
    if min(share(count, len(looked), independent=independent).low for count in (right, wrong)) <= OFTEN:
        return ""
    return (
        f", though of {len(looked):,} answers {right:,} end in the expected one and {wrong:,} do not name it"
    )


@check("flat-agent", "verification", min_rate=0.01, chance=0.01)
def flat_agent(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """All rewards of one agent are the same number, while others' differ."""
    if len(run.levels) > 1 and len(run.agent.names) > 1:
        yield from _flat_families(run, run.agent, "agent", limits)


@check("flat-family", "verification", min_rate=0.01, chance=0.01)
def flat_family(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """All rewards of one family of tasks are the same number, while others' differ."""
    if len(run.levels) < 2 or run.judged_n < 100:
        return
    for field in run.family_fields:
        families = run.family(field)
        if 2 <= len(families.names) <= MOST_FAMILIES:
            yield from _flat_families(run, families, field, limits)


def _flat_families(run: Evidence, families: TextCodes, kind: str, limits: Limits) -> Iterator[Finding]:
    codes, rewards = families.codes[run.judged], run.values
    count = len(families.names)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    has_family = codes >= 0
    np.minimum.at(low, codes[has_family], rewards[has_family])
    np.maximum.at(high, codes[has_family], rewards[has_family])
    for code in np.flatnonzero(low == high).tolist():
        among = run.judged & (families.codes == code)
        n = int(among.sum())
        rate = max(limits["min_rate"], RATE_OF_OTHERS * _rate_of_others(run, among, float(low[code])))
        chance = _chance(run, among, float(low[code]), rate) * count  # one of many families had the chance
        if n < 20 or (chance >= LIKELY and n < 100):
            continue
        yield Finding(
            level="error" if chance < limits["chance"] else "warning" if chance < LIKELY else "note",
            text=f"all {n:,} rewards of {kind} {families.names[code]!r} are {low[code]:g}, while the run's differ"
            + (
                ""
                if chance < limits["chance"]
                else f"; at a rate of {rate:.1%} that happens in {min(chance, 1.0):.0%} of runs"
            ),
            value=float(low[code]),
            threshold=limits["chance"],
            n=n,
            where=run.lines(among),
            next=f'read a few of them: rollforge show {run.name} --limit 5 --where "task in ({_some_tasks(run, among)})"',
        )


def _rate_of_others(run: Evidence, among: Bools, value: float) -> float:
    """How often the run's other rollouts get a reward different from this value."""
    others = run.judged & ~among
    return float((run.reward[others] != value).mean()) if others.any() else 0.0


def _some_tasks(run: Evidence, among: Bools) -> str:
    return ", ".join(str(task) for task in np.unique(run.task_id[np.flatnonzero(among)[:40]])[:5].tolist())


@check("task-only-rewards", "verification", alike=0.85, chance=0.005)
def task_only_rewards(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """All rollouts of a task get the same reward, whatever they answered, while tasks differ."""
    if len(run.levels) < 2:
        return
    differs = run.groups_with_different_answers & (run.profile.n > 1)
    if not differs.any() or (run.profile.std[differs] > 0).any():
        return
    chance = _chance_flat(run, differs, limits["alike"])
    if chance >= LIKELY or len(np.unique(run.profile.mean[differs])) < 2:
        return
    n = int(differs.sum())
    yield Finding(
        level="error" if chance < limits["chance"] else "warning",
        text=f"in all {n:,} tasks with different answers every answer got the same reward; "
        "the verdict seems to follow the task, not the answer",
        value=chance,
        threshold=limits["chance"],
        n=int(run.profile.n[differs].sum()),
        where=run.tasks(differs),
        next=f"ask the verifier what it must know: {run.verify('--probe')}",
    )


def _chance_flat(run: Evidence, flat: Bools, alike: float) -> float:
    """Probability that all these tasks are flat: samples often agree at the ends of the range, hardly ever between them."""
    means = run.scaled_profile.mean[flat]
    is_end = (means <= 0) | (means >= 1)
    rate = float(np.clip(means.mean(), 0.05, 0.95))
    return chance_all_flat(run.profile.n[flat][is_end], rate, alike) * 0.5 ** int((~is_end).sum())
