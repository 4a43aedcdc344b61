"""Fit for preference training (dpo, rm) and for kto: enough pairs of one task with a clear gap, not decided by length or format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import SAMPLE, Finding, Level, share
from rollforge.checks.building_blocks.text_samples import bare
from rollforge.statistics.stats import Floats, Ints

LOOKED_AT = 100


class Pairs(NamedTuple):
    """Pairs within a task: best with worst, second best with second worst, and so on, while rewards differ."""

    gaps: Floats
    """Scaled reward of the chosen rollout minus that of the rejected one."""
    group: Ints
    chosen: Ints
    """Positions of the rollouts."""
    rejected: Ints

    def at(self, gap: float) -> Pairs:
        """The pairs with at least this gap."""
        is_wide = self.gaps >= gap - 1e-9
        return Pairs(self.gaps[is_wide], self.group[is_wide], self.chosen[is_wide], self.rejected[is_wide])

    def tasks(self) -> int:
        """Number of tasks with at least one pair."""
        return int((np.bincount(self.group) > 0).sum())


def all_pairs(run: Evidence) -> Pairs:
    """All preference pairs of a run; both rollouts of a pair share a prompt."""
    if "pairs" not in run.shared:
        run.shared["pairs"] = _all_pairs(run)
    pairs: Pairs = run.shared["pairs"]
    return pairs


def _all_pairs(run: Evidence) -> Pairs:
    positions = run.by_reward
    scaled = run.scaled[positions]
    sizes = run.profile.n
    begins = np.cumsum(sizes) - sizes
    parts: list[Pairs] = []
    for step in range(int(sizes.max(initial=0)) // 2):
        groups = np.flatnonzero(sizes >= 2 * step + 2)
        best, worst = begins[groups] + sizes[groups] - 1 - step, begins[groups] + step
        gaps = scaled[best] - scaled[worst]
        is_pair = gaps > 0
        if not is_pair.any():
            break  # later steps pair answers that lie between these
        parts.append(
            Pairs(gaps[is_pair], groups[is_pair], positions[best[is_pair]], positions[worst[is_pair]])
        )
    if not parts:
        empty = np.zeros(0, dtype=np.int64)
        return Pairs(np.zeros(0), empty, empty, empty)
    gaps, groups, chosen, rejected = (np.concatenate(items) for items in zip(*parts, strict=True))
    return Pairs(gaps, groups, chosen, rejected)


@check("no-groups", "recipe", recipes=("dpo", "rm", "grpo"), min_samples=2)
def no_groups(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Tasks have one rollout each, so there is nothing to compare."""
    if run.judged_n == 0 or int(run.profile.n.max(initial=0)) >= limits["min_samples"]:
        return
    yield Finding(
        level="error",
        text=f"every task has fewer than {limits['min_samples']:.0f} judged rollouts: there is nothing to compare within a task",
        value=float(run.profile.n.max(initial=0)),
        threshold=limits["min_samples"],
        n=run.groups,
        is_final=True,
        next="collect several rollouts per task: the same collect command with --samples 8",
    )


@check("thin-pairs", "recipe", recipes=("dpo", "rm"), min_gap=0.2, min_pairs=100, min_tasks=0.2)
def thin_pairs(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Too few pairs have a clear gap, or they come from few tasks."""
    if int(run.profile.n.max(initial=0)) < 2:
        return
    pairs, gap = all_pairs(run), limits["min_gap"]
    usable = pairs.at(gap)
    with_pair = usable.tasks()
    estimate = share(with_pair, max(int(run.filled.sum()), with_pair))
    few, thin = len(usable.gaps) < limits["min_pairs"], estimate.high < limits["min_tasks"]
    if not few and not thin and estimate.value >= 0.5:
        return
    is_proven = not len(usable.gaps) or run.judged_n >= SAMPLE * limits["min_pairs"]
    level: Level = "error" if few and is_proven else "warning" if few or thin else "note"
    lower = len(pairs.at(0.75 * gap).gaps) - len(usable.gaps)
    easier = f"; lowering the gap to {0.75 * gap:.2g} adds {lower:,} pairs" if lower else ""
    yield Finding(
        level=level,
        needs_more=few,
        text=_pairs_text(run.groups, with_pair, len(usable.gaps), limits) + easier + run.range.note,
        value=float(len(usable.gaps)),
        threshold=limits["min_pairs"],
        n=run.groups,
        interval=estimate.interval,
        where=run.tasks(np.setdiff1d(np.arange(run.groups), usable.group)),
        next="collect more rollouts per task, or tasks the model sometimes solves; a verifier with partial credit gives more gaps",
    )


def _pairs_text(tasks: int, with_pair: int, pairs: int, limits: Limits) -> str:
    gap, wanted = limits["min_gap"], limits["min_pairs"]
    if with_pair == tasks:
        return f"only {pairs:,} of the {wanted:,.0f} pairs wanted with gap >= {gap:g}, though all {tasks:,} tasks have one"
    text = f"{tasks - with_pair:,} of {tasks:,} tasks have no pair with gap >= {gap:g}"
    text += f"; the others give {pairs:,} pairs" if with_pair else ""
    return text + (f"; {wanted:,.0f} are wanted" if pairs < wanted else "")


@check("one-sided", "recipe", recipes=("dpo", "rm", "kto"), high=0.7, low=0.5, min_share=0.2)
def one_sided(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Nearly all rollouts are good, or nearly all bad."""
    if not run.judged_n:
        return
    for name, among in (
        (f"high (> {limits['high']:g})", run.scaled > limits["high"]),
        (f"low (< {limits['low']:g})", run.scaled < limits["low"]),
    ):
        chosen = run.judged & among
        estimate = share(int(chosen.sum()), run.judged_n, independent=run.independent(run.judged))
        level = estimate.level_below(warning=limits["min_share"], error=limits["min_share"] / 4)
        if level is None:
            continue
        yield Finding(
            level=level,
            text=f"only {estimate.count:,} of {run.judged_n:,} scaled rewards ({estimate.value:.0%}) are {name}{run.range.note}",
            value=estimate.value,
            threshold=limits["min_share"],
            n=run.judged_n,
            interval=estimate.interval,
            next="choose tasks that the model solves about half of the time",
        )


@check("small-gaps", "recipe", recipes=("dpo", "rm"), min_mean=0.2, unclear=0.1, max_unclear=0.5)
def small_gaps(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Chosen and rejected answers have nearly equal rewards."""
    pairs = all_pairs(run)
    n = len(pairs.gaps)
    if n < 20:
        return
    mean = float(pairs.gaps.mean())
    unclear = share(int((pairs.gaps < limits["unclear"]).sum()), n)
    clear = float((pairs.gaps >= 0.3).mean())
    if mean >= limits["min_mean"] and unclear.low <= limits["max_unclear"]:
        return
    yield Finding(
        level="warning",
        text=f"the mean gap of {n:,} pairs is {mean:.2f}; {unclear.value:.0%} are below {limits['unclear']:g}, "
        f"{clear:.0%} at least 0.3{run.range.note}",
        value=mean,
        threshold=limits["min_mean"],
        n=n,
        interval=unclear.interval,
        next=f"keep clear pairs only: rollforge prepare dpo {run.name} -o data/dpo --to trl --min-gap 0.3",
    )


@check("binary-gaps", "recipe", recipes=("dpo", "rm"), near=0.95)
def binary_gaps(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """All gaps are as large as can be: the pairs may be too easy to tell apart."""
    gaps = all_pairs(run).gaps
    if len(gaps) < 20 or float((gaps >= limits["near"]).mean()) < 0.99:
        return
    yield Finding(
        level="note",
        text=f"all {len(gaps):,} pairs have a gap near 1.0: the reward has two values, so no pair is a close call",
        value=float(gaps.mean()),
        threshold=limits["near"],
        n=len(gaps),
        next="a verifier with partial credit gives harder pairs",
    )


@check("pair-length-bias", "recipe", recipes=("dpo", "rm"), min_gap=0.2, max_share=0.65, max_strong=0.8)
def pair_length_bias(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The chosen answer is nearly always the longer, or the shorter, one."""
    pairs = all_pairs(run).at(limits["min_gap"])
    chosen, rejected = run.answer_chars[pairs.chosen], run.answer_chars[pairs.rejected]
    differ = chosen != rejected
    n = int(differ.sum())
    if n < 50:
        return
    longer = int((chosen > rejected)[differ].sum())
    is_longer = longer * 2 >= n
    estimate = share(max(longer, n - longer), n, independent=pairs.tasks())
    level = estimate.level_above(warning=limits["max_share"], error=limits["max_strong"])
    if level is None:
        return
    yield Finding(
        level=level,
        text=f"in {estimate.value:.0%} of {n:,} pairs the chosen answer is the {'longer' if is_longer else 'shorter'} one "
        f"(median {np.median(chosen):,.0f} against {np.median(rejected):,.0f} characters): length may be learned instead",
        value=estimate.value,
        threshold=limits["max_share"],
        n=n,
        interval=estimate.interval,
        next=f"pair answers of like length: rollforge prepare dpo {run.name} -o data/dpo --to trl --length-ratio 1.5",
    )


@check("format-only-pairs", "recipe", recipes=("dpo", "rm"), min_gap=0.2, warn_share=0.02, max_share=0.2)
def format_only_pairs(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Chosen and rejected differ in formatting only."""
    pairs = all_pairs(run).at(limits["min_gap"])
    drawn = run.draw(np.arange(len(pairs.gaps)), LOOKED_AT)
    if len(drawn) < 10:
        return
    chosen, rejected = (run.read(side) for side in (pairs.chosen[drawn], pairs.rejected[drawn]))
    same = np.asarray(
        [bare(one.answer) == bare(two.answer) for one, two in zip(chosen, rejected, strict=True)]
    )
    estimate = share(int(same.sum()), len(drawn))
    level = estimate.level_above(warning=limits["warn_share"], error=limits["max_share"])
    if level is None:
        return
    yield Finding(
        level=level,
        text=f"in {estimate.count:,} of {estimate.n:,} pairs looked at, chosen and rejected differ in case, spaces or "
        f"punctuation only",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.tasks(pairs.group[drawn][same]),
        next="make the verifier's extraction tolerant of formatting, then judge again",
    )
