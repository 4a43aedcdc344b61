"""Prompt sets for reinforcement learning, and rollouts scored against the others of their group."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rollforge.recipes.base import (
    Candidates,
    Floats,
    GroupStats,
    RecipeOptions,
    Selection,
    balanced,
    drop_duplicates,
    group_stats,
    in_band,
    screen,
    success_threshold,
)

EPSILON = 1e-6
"""Added to a group's standard deviation, as in the trainers."""


def select_prompts(candidates: Candidates, options: RecipeOptions, *, needs_spread: bool) -> Selection:
    """One example per task: its first usable rollout represents it, and its statistics are over all usable ones."""
    success_from = success_threshold(candidates.reward, options.min_reward)
    options = replace(options, min_reward=success_from)
    fates = screen(candidates, replace(options, band=None), drop_truncated=False)
    usable = replace(candidates, reward=np.where(fates.alive, candidates.reward, np.nan))
    stats = group_stats(usable, options)
    if options.band is not None:
        fates.drop(~in_band(usable, options), "outside the difficulty band")
    if needs_spread:
        fates.drop((stats.count < 2)[candidates.group], "alone in its group")
        fates.drop(~stats.has_signal(options)[candidates.group], "group without signal")
    alive = np.flatnonzero(fates.alive)
    _, firsts = np.unique(candidates.group[alive], return_index=True)
    picks = alive[np.sort(firsts)]
    if candidates.balance is not None:
        picks = picks[balanced(candidates.balance[picks], candidates.ties(options.seed)[picks])]
        chosen = np.isin(candidates.group, candidates.group[picks])
        fates.drop(~chosen, "left out for balance")
    numbers = task_numbers(stats, candidates.group[picks])
    settings = {"success_from": success_from}
    return Selection("prompt", picks, fates.counts(), numbers, settings, fates.alive, fate_of=fates.codes())


def task_numbers(stats: GroupStats, groups: np.ndarray) -> dict[str, np.ndarray]:
    """Reward statistics of these groups, with the names used in prompt sets.

    Difficulty is one minus the mean reward. Rewards outside 0…1 are first scaled by the observed range.
    """
    low = min(0.0, float(np.nanmin(stats.low, initial=0.0)))
    high = max(1.0, float(np.nanmax(stats.high, initial=1.0)))
    return {
        "n_rollouts": stats.count[groups],
        "mean_reward": stats.mean[groups],
        "std_reward": stats.std[groups],
        "min_reward": stats.low[groups],
        "max_reward": stats.high[groups],
        "pass_rate": stats.pass_rate[groups],
        "difficulty": 1.0 - (stats.mean[groups] - low) / (high - low),
    }


def select_groups(
    candidates: Candidates, options: RecipeOptions, *, needs_spread: bool, drop_truncated: bool = False
) -> Selection:
    """Every usable rollout of the selected tasks, grouped, with advantages."""
    fates = screen(candidates, options, drop_truncated=drop_truncated)
    drop_duplicates(fates, candidates, options)
    if needs_spread:
        # A rollout that is not written gives its group no signal.
        usable = replace(candidates, reward=np.where(fates.alive, candidates.reward, np.nan))
        stats = group_stats(usable, options)
        fates.drop((stats.count < 2)[candidates.group], "alone in its group")
        fates.drop(~stats.has_signal(options)[candidates.group], "group without signal")
    alive = np.flatnonzero(fates.alive)
    firsts = np.unique(candidates.group[alive], return_index=True, return_inverse=True)
    order = alive[np.lexsort((alive, firsts[1][firsts[2]]))]
    values = advantages(candidates.group[order], candidates.reward[order])
    return Selection(
        "scored", order, fates.counts(), values, {"min_spread": options.min_spread}, fate_of=fates.codes()
    )


def advantages(group: np.ndarray, reward: Floats) -> dict[str, np.ndarray]:
    """Each rollout's advantage in its group, in the named variants; NaN if the group is too small.

    grpo: (r − mean) / (std + 1e-6), std with n − 1. dr_grpo: r − mean. rloo: r − mean of the others.
    """
    _, codes, counts = np.unique(group, return_inverse=True, return_counts=True)
    mean = np.bincount(codes, reward) / counts if len(reward) else np.empty(0)
    centred = reward - mean[codes] if len(reward) else reward
    squares = np.bincount(codes, centred**2) if len(reward) else np.empty(0)
    several = counts > 1
    std = np.sqrt(squares / np.where(several, counts - 1, 1))
    std = np.where(several, std, np.nan)
    size = counts[codes] if len(reward) else np.empty(0, dtype=np.int64)
    return {
        "reward": reward,
        "advantage_grpo": centred / (std[codes] + EPSILON),
        "advantage_dr_grpo": centred,
        "advantage_rloo": np.where(size > 1, centred * size / np.maximum(size - 1, 1), np.nan),
        "group_size": size,
        "group_mean": mean[codes],
        "group_std": std[codes],
    }
