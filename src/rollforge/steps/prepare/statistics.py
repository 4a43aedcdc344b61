"""This module says what a data set looks like in numbers, and which of them should make its maker look twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollforge.recipes.base import NOISE, Floats, Ints, Options, Selection, reaches, success_threshold
from rollforge.records import JsonObject
from rollforge.stats import distinct, median
from rollforge.steps.prepare.gather import Pool

FEW = 100
_OPTION = {"min_reward": "--min-reward", "success_from": "--min-reward", "high": "--high", "low": "--low"}
"""Threshold → the option that sets it."""
OUTLOOK_REWARDS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.0)
OUTLOOK_GAPS = (0.1, 0.15, 0.2, 0.3, 0.5, 0.8)


def summary(values: np.ndarray) -> JsonObject | None:
    """Mean, spread and range, with how many values they are over; None over nothing."""
    values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    if not len(values):
        return None
    return {
        "n": len(values),
        "mean": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "min": float(np.min(values)),
        "median": median(values),
        "max": float(np.max(values)),
    }


def histogram(values: np.ndarray) -> JsonObject:
    """Counts in five equal bins, the last one closed; over 0…1 unless values leave it."""
    values = values[~np.isnan(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    span = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    counts, edges = np.histogram(values, bins=5, range=span)
    return {"edges": [round(float(edge), 6) for edge in edges], "counts": counts.tolist()}


def describe(pool: Pool, selection: Selection, numbers: Ints) -> JsonObject:
    """Statistics of the written examples."""
    candidates = pool.candidates
    picks = selection.picks[numbers]
    if selection.kind == "pair":
        chosen, rejected = picks[:, 0], picks[:, 1]
        gap = candidates.reward[chosen] - candidates.reward[rejected]
        longer = candidates.chars[chosen] > candidates.chars[rejected]
        return {
            "gap": summary(gap),
            "histogram": histogram(gap),
            "share_gap_at_least_0.3": _share(reaches(gap, 0.3)),
            "share_gap_below_0.1": _share(~reaches(gap, 0.1)),
            "chosen_reward": summary(candidates.reward[chosen]),
            "rejected_reward": summary(candidates.reward[rejected]),
            "chosen_chars": summary(candidates.chars[chosen]),
            "rejected_chars": summary(candidates.chars[rejected]),
            "share_chosen_longer": _share(longer),
            "tasks": len(distinct(candidates.group[chosen])),
        }
    found: JsonObject = {"tasks": len(distinct(candidates.group[picks.ravel()]))}
    if selection.kind == "prompt":
        for name in ("mean_reward", "std_reward", "pass_rate", "difficulty"):
            found[name] = summary(selection.values[name][numbers])
        return found | {"histogram": histogram(selection.values["mean_reward"][numbers])}
    found |= {"reward": summary(candidates.reward[picks]), "chars": summary(candidates.chars[picks])}
    found["histogram"] = histogram(candidates.reward[picks])
    if selection.kind == "labelled":
        label = selection.values["label"][numbers]
        found |= {"desirable": int(label.sum()), "undesirable": int((~label).sum())}
    if selection.kind == "scored":
        found["advantage_grpo"] = summary(selection.values["advantage_grpo"][numbers])
    found["exact_duplicates"] = _repeats(candidates.group[picks], candidates.answer[picks])
    return found


def _repeats(group: Ints, answer: Ints) -> int:
    """Examples whose answer an earlier one of the same task has."""
    order = np.lexsort((answer, group))
    group, answer = group[order], answer[order]
    return int(((group[1:] == group[:-1]) & (answer[1:] == answer[:-1])).sum())


def _share(mask: np.ndarray) -> float | None:
    return float(np.mean(mask)) if len(mask) else None


def red_flags(recipe: str, rows: int, statistics: JsonObject) -> list[JsonObject]:
    """What should be looked at before training, each with a stable id and what to do."""
    flags: list[JsonObject] = []

    def flag(name: str, text: str) -> None:
        flags.append({"id": name, "text": text})

    if rows < FEW:
        flag("few-examples", f"only {rows} examples: lower the threshold, or collect more rollouts")
    match recipe:
        case "sft":
            _sft_flags(statistics, flag)
        case "dpo" | "rm" if statistics.get("gap"):
            _pair_flags(statistics, flag)
        case "kto" if rows:
            wanted, unwanted = statistics["desirable"], statistics["undesirable"]
            if min(wanted, unwanted) * 4 < max(wanted, unwanted) * 3:
                flag(
                    "label-imbalance",
                    f"{wanted} desirable and {unwanted} undesirable: balance with --balance label, or set the trainer's weights",
                )
        case "ppo" | "grpo":
            _prompt_flags(statistics, flag)
    return flags


def scale_flags(rewards: Floats, thresholds: JsonObject, options: Options) -> list[JsonObject]:
    """Whether default thresholds, for which 1 is the best reward, were used on rewards of another scale."""
    asked = {
        "min_reward": options.min_reward,
        "success_from": options.min_reward,
        "high": options.high if options.high is not None else options.min_reward,
        "low": options.low,
    }
    defaults = [name for name in thresholds if name in asked and asked[name] is None]
    judged = rewards[~np.isnan(rewards)]
    if not defaults or not len(judged):
        return []
    low, high = float(judged.min()), float(judged.max())
    if (low >= 0 and high <= 1) or abs(high - 1) <= NOISE:
        return []
    used = " and ".join(f"{_OPTION[name]} {thresholds[name]:g}" for name in defaults)
    text = f"rewards go from {low:g} to {high:g}, but {used}, the default, is meant for 0 to 1: give your own"
    return [{"id": "reward-scale", "text": text}]


def _sft_flags(statistics: JsonObject, flag: Any) -> None:
    reward = statistics.get("reward")
    if reward and reward["mean"] < 0.9:
        flag(
            "low-mean-reward", f"mean reward {reward['mean']:.3f} is below 0.90: the threshold may be too low"
        )
    repeated = statistics.get("exact_duplicates", 0)
    if reward and repeated > 0.2 * reward["n"]:
        flag(
            "duplicates",
            f"{repeated} of {reward['n']} answers repeat another one of their task: --dedupe exact",
        )


def _pair_flags(statistics: JsonObject, flag: Any) -> None:
    gap = statistics["gap"]
    if gap["mean"] < 0.2:
        flag("small-gaps", f"mean gap {gap['mean']:.3f} is below 0.2: the pairs are too similar")
    if statistics["share_gap_below_0.1"] > 0.2:
        flag("ambiguous-pairs", f"{statistics['share_gap_below_0.1']:.0%} of the gaps are below 0.1")
    if gap["min"] > 0.95:
        flag("only-large-gaps", "every gap is near 1.0: the pairs may be too easy (binary rewards)")
    longer = statistics["share_chosen_longer"]
    if gap["n"] >= FEW and not 0.25 <= longer <= 0.75:
        flag(
            "length-bias",
            f"the chosen answer is the longer one in {longer:.0%} of pairs: --length-ratio 1.5 matches lengths",
        )


def _prompt_flags(statistics: JsonObject, flag: Any) -> None:
    mean, spread = statistics.get("mean_reward"), statistics.get("std_reward")
    if mean and mean["mean"] > 0.9:
        flag("too-easy", f"mean reward {mean['mean']:.3f}: little is left to learn")
    if mean and mean["mean"] < 0.1:
        flag("too-hard", f"mean reward {mean['mean']:.3f}: few rollouts succeed")
    if spread and spread["mean"] < 0.1:
        flag(
            "flat-rewards",
            f"rewards within a task spread by {spread['mean']:.3f} on average: they hardly discriminate",
        )


def outlook(recipe: str, pool: Pool, options: Options) -> list[JsonObject]:
    """How many examples other thresholds would give."""
    from dataclasses import replace

    from rollforge.recipes.base import load_recipe

    select = load_recipe(recipe)
    if recipe == "sft":
        used = success_threshold(pool.candidates.reward, options.min_reward)
        thresholds = sorted({*OUTLOOK_REWARDS, used}, reverse=True)
        return [
            {"min_reward": at, "examples": len(select(pool.candidates, replace(options, min_reward=at)))}
            for at in thresholds
        ]
    if recipe in ("dpo", "rm"):
        gaps = sorted({*OUTLOOK_GAPS, options.min_gap})
        return [
            {"min_gap": at, "examples": len(select(pool.candidates, replace(options, min_gap=at)))}
            for at in gaps
        ]
    if recipe == "kto":
        tiers = ((0.5, 0.5 - 1e-9), (0.7, 0.4), (0.9, 0.1), (1.0, 0.0))
        return [
            {
                "high": high,
                "low": low,
                "examples": len(select(pool.candidates, replace(options, high=high, low=low))),
            }
            for high, low in tiers
        ]
    return [
        {"min_spread": at, "examples": len(select(pool.candidates, replace(options, min_spread=at)))}
        for at in (0.0, 0.1, 0.2, 0.3, 0.5)
    ]
