"""Fit for reinforcement learning on rollouts: ppo needs a spread of rewards, grpo needs groups that disagree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from rollforge.adaptive.group_yield import Rewards, group_yields
from rollforge.checks.base import Limits, check
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Finding, Level, settle_text, share
from rollforge.statistics.counts import count_of

LOGPROBS = re.compile(rb'"generation_log_probs"\s*:\s*\[\s*[-0-9]')


@check(
    "ppo-success-rate", "recipe", recipes=("ppo",), min_rate=0.3, max_rate=0.7, worst_low=0.1, worst_high=0.9
)
def ppo_success_rate(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """The success rate is outside the band in which ppo learns well."""
    estimate = share(int(run.succeeded.sum()), run.judged_n, independent=run.independent(run.judged))
    if not run.judged_n:
        return
    low = estimate.level_below(warning=limits["min_rate"], error=limits["worst_low"])
    high = estimate.level_above(warning=limits["max_rate"], error=limits["worst_high"])
    level = low or high
    if level is None:
        return
    limit = limits["min_rate"] if low else limits["max_rate"]
    yield Finding(
        level=level,
        text=f"{estimate.value:.0%} of {count_of(run.judged_n, 'rollout succeeds', 'rollouts succeed')}; "
        f"ppo learns best between {limits['min_rate']:.0%} and "
        f"{limits['max_rate']:.0%}{settle_text(estimate, level, limit)}{run.range.note}",
        value=estimate.value,
        threshold=limit,
        n=run.judged_n,
        interval=estimate.interval,
        next="choose easier tasks or better prompts" if low else "choose harder tasks",
    )


@check("ppo-narrow-spread", "recipe", recipes=("ppo",), min_std=0.1, good_std=0.15)
def ppo_narrow_spread(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rewards differ too little to learn from."""
    if run.judged_n < 2:
        return
    std = float(np.std(run.scaled[run.judged], ddof=1))
    if std > limits["good_std"]:
        return
    yield Finding(
        level="error" if std < limits["min_std"] and run.judged_n >= 100 else "warning",
        text=f"the standard deviation of scaled rewards is {std:.3f}; ppo wants more than {limits['good_std']:g}{run.range.note}",
        value=std,
        threshold=limits["good_std"],
        n=run.judged_n,
        next="use a verifier with partial credit, or tasks of mixed difficulty",
    )


@check("ppo-empty-bins", "recipe", recipes=("ppo",), min_bins=3)
def ppo_empty_bins(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rewards use few of the fifths of their range."""
    if run.judged_n < 50:
        return
    used = int((run.fifths > 0.01 * run.judged_n).sum())
    if used >= limits["min_bins"]:
        return
    yield Finding(
        level="note" if run.is_binary else "warning",
        text=f"rewards use {used} of the 5 fifths of their range"
        f"{': the reward has two values; partial credit is a richer signal' if run.is_binary else run.range.note}",
        value=float(used),
        threshold=limits["min_bins"],
        n=run.judged_n,
        next="a verifier with partial credit (math with a judge, multi-part answers) fills them",
    )


@check("text-only", "recipe", recipes=("ppo", "grpo"), min_share=0.99)
def text_only(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Token ids or log-probabilities are missing, so training would be off-policy."""
    if not run.n:
        return
    estimate = share(int(run.has_token_ids.sum()), run.n)
    if estimate.value >= limits["min_share"]:
        yield from _without_logprobs(run, limits)
        return
    label = "text-only" if estimate.count == 0 else "partly token-exact"
    yield Finding(
        level="warning",
        text=f"token fidelity is {label}: {estimate.count:,} of {count_of(run.n, 'rollout carries', 'rollouts carry')} "
        f"the token ids that were sampled; text "
        f"alone is "
        "tokenised anew and is not on-policy",
        value=estimate.value,
        threshold=limits["min_share"],
        n=run.n,
        interval=estimate.interval,
        next="collect with --logprobs from a server that returns token ids, or let the trainer sample itself",
    )


def _without_logprobs(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Token ids come without the log-probabilities they were sampled with; measured on some rollouts."""
    drawn = run.spread[run.has_token_ids[run.spread]]
    has_them = [LOGPROBS.search(line) is not None for line in run.source.read(run.row[drawn].tolist())]
    estimate = share(sum(has_them), len(drawn))
    if not len(drawn) or estimate.value >= limits["min_share"]:
        return
    yield Finding(
        level="warning",
        text=f"{estimate.count:,} of {estimate.n:,} rollouts looked at carry the log-probabilities of their token ids: without "
        f"them the "
        "policy's old probabilities must be computed anew",
        value=estimate.value,
        threshold=limits["min_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.lines(drawn[~np.asarray(has_them, dtype=np.bool_)]),
        next="collect with --logprobs from a server that returns them with the token ids",
    )


@check("flat-groups", "recipe", recipes=("grpo",), min_share=0.2, good_share=0.5)
def flat_groups(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Too few tasks have rollouts with different rewards: the others give no gradient."""
    many = (run.profile.n > 1) & run.filled
    if not many.any():
        return
    signal = many & (np.nan_to_num(run.profile.std) > 0)
    estimate = share(int(signal.sum()), int(many.sum()))
    level = estimate.level_below(warning=limits["good_share"], error=limits["min_share"])
    if level is None:
        return
    yield Finding(
        level=level,
        text=f"{estimate.count:,} of {estimate.n:,} tasks ({estimate.value:.0%}) have rollouts with different rewards; "
        f"{_at_other_k(run)}"
        f"{settle_text(estimate, level, limits['min_share'])}",
        value=estimate.value,
        threshold=limits["min_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.tasks(many & ~signal),
        next="sample more (--samples 16), and drop tasks that are always or never solved: "
        f"rollforge prepare grpo {run.name} -o data/grpo --to trl",
    )


def _at_other_k(run: Evidence) -> str:
    """The share of groups with signal at other group sizes, for two-valued rewards."""
    many = run.profile.n > 1
    won = run.per_group(run.succeeded)[many]
    lost = run.profile.n[many] - won
    tasks_by_pattern: Counter[Rewards] = Counter(zip(won.tolist(), lost.tolist(), strict=True))
    sizes = (4, 8, 16, 32)
    shares = group_yields(tasks_by_pattern, sizes, are_two=True)
    return "expected " + ", ".join(f"{value:.0%} at k={k}" for k, value in zip(sizes, shares, strict=True))


@check("near-equal-groups", "recipe", recipes=("grpo",), min_std=0.02, max_share=0.5)
def near_equal_groups(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Rewards within tasks hardly differ: normalised advantages would be noise."""
    many = (run.profile.n > 1) & (np.nan_to_num(run.profile.std) > 0)
    if not many.any() or run.is_binary:
        return
    near = many & (run.scaled_profile.std < limits["min_std"])
    estimate = share(int(near.sum()), int(many.sum()))
    level = estimate.level_above(warning=limits["max_share"] / 2, error=limits["max_share"])
    if level is None:
        return
    yield Finding(
        level=level,
        text=f"in {estimate.count:,} of {estimate.n:,} tasks ({estimate.value:.0%}) rewards differ by a standard deviation below "
        f"{limits['min_std']:g} of their range: grpo would blow up noise{run.range.note}",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.tasks(near),
        next="round the reward to what the verifier can really tell apart, or turn off normalisation by the group's spread",
    )


@check("partial-groups", "recipe", recipes=("grpo",), complete=0.75, warn_share=0.05, max_share=0.2)
def partial_groups(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Groups are incomplete: their baselines are noisier, and biased unless rollouts are missing at random."""
    if run.samples < 2 or not run.groups:
        return
    if run.about.design is not None:  # its rule fills up every group that is usable, and stops others
        return
    short = run.profile.n < run.samples
    estimate = share(int(short.sum()), run.groups)
    torn = share(int((run.profile.n < limits["complete"] * run.samples).sum()), run.groups)
    level: Level | None = "error" if torn.low > limits["max_share"] and run.is_samples_certain else None
    level = level or ("warning" if estimate.low > limits["warn_share"] else None)
    if level is None:
        return
    yield Finding(
        level=level,
        text=f"{estimate.count:,} of {estimate.n:,} groups ({estimate.value:.0%}) have fewer than {run.samples} judged rollouts",
        value=estimate.value,
        threshold=limits["max_share"],
        n=estimate.n,
        interval=estimate.interval,
        where=run.tasks(short),
        next=f"collect and judge the rest, or drop them: rollforge prepare grpo {run.name} -o data/grpo --to trl",
    )


@check("difficulty-mix", "recipe", recipes=("grpo",), max_share=0.8)
def difficulty_mix(run: Evidence, limits: Limits) -> Iterator[Finding]:
    """Most tasks are always solved, or never."""
    many = (run.profile.n > 1) & run.filled
    n = int(many.sum())
    if n < 20:
        return
    mean = run.scaled_profile.mean[many]
    for what, count in (("always", int((mean >= 0.99).sum())), ("never", int((mean <= 0.01).sum()))):
        estimate = share(count, n)
        level: Level | None = "warning" if estimate.low > limits["max_share"] else None
        if level is None:
            continue
        yield Finding(
            level=level,
            text=f"{count:,} of {n:,} tasks ({estimate.value:.0%}) are {what} solved: choose tasks of other difficulty",
            value=estimate.value,
            threshold=limits["max_share"],
            n=n,
            interval=estimate.interval,
            next=f"see rewards per task: rollforge profile {run.name}",
        )
