"""Statistics of a dataset: fates of rollouts and examples, distributions, red flags, counts at other thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from rollforge.recipes.base import (
    NOISE,
    Floats,
    Ints,
    RecipeOptions,
    Selection,
    group_stats,
    load_recipe,
    reaches,
    success_threshold,
)
from rollforge.recipes.prompting import task_numbers
from rollforge.statistics.counts import count_of
from rollforge.statistics.stats import distinct, median
from rollforge.steps.prepare.dataset_manifest import (
    BinCounts,
    DatasetCounts,
    DatasetStatistics,
    Distribution,
    RedFlag,
    TaskCounts,
    Threshold,
)
from rollforge.steps.prepare.dataset_plan import DatasetPlan, rollouts_of
from rollforge.steps.prepare.rollout_pool import Pool

BEYOND = "beyond the limit"
DRY = "not written (dry run)"
FEW = 100
_OPTION = {"min_reward": "--min-reward", "success_from": "--min-reward", "high": "--high", "low": "--low"}
"""Threshold → the option that sets it."""
OUTLOOK_REWARDS = (1.0, 0.95, 0.9, 0.8, 0.7, 0.5, 0.0)
OUTLOOK_GAPS = (0.1, 0.15, 0.2, 0.3, 0.5, 0.8)


def count_fates(pool: Pool, plan: DatasetPlan, numbers: Ints, lost: Mapping[int, str]) -> DatasetCounts:
    """Count rollouts and examples; `numbers` are the written examples, `lost` the inexpressible ones with reasons.

    The recipe assigns fates before any text is read. The limit and inexpressible rows determine the fates of rollouts in no other
    example.
    """
    selection, candidates = plan.selection, pool.candidates
    limited = plan.planned - len(selection)
    all_lost = plan.lost_before + Counter(lost.values())
    reasons = {f"cannot be expressed: {reason}": count for reason, count in all_lost.items()}
    kept_groups = candidates.group[selection.picks[numbers].ravel()]
    return DatasetCounts(
        rollouts={"in": len(candidates), **_fates(selection, candidates.group, numbers, lost)},
        examples={
            "planned": plan.planned + plan.lost_before.total(),
            **({BEYOND: limited} if limited else {}),
            **dict(sorted(reasons.items())),
            "written": len(numbers),
        },
        tasks=TaskCounts(len(distinct(candidates.group)), len(distinct(kept_groups))),
        failed_attempts=pool.failed,
        rejected_lines=pool.rejected,
        overruled_rows=pool.overruled,
    )


def _fates(selection: Selection, group: Ints, numbers: Ints, lost: Mapping[int, str]) -> dict[str, int]:
    """The recipe's fates, updated for `kept` rollouts that are in no written example."""
    fates = dict(selection.fates)
    settled = rollouts_of(selection, group, numbers)
    later = {"kept": int(settled.sum())}
    examples_by_reason: dict[str, list[int]] = {}
    for number, reason in lost.items():
        examples_by_reason.setdefault(reason, []).append(number)
    for reason, examples in sorted(examples_by_reason.items()):
        behind = rollouts_of(selection, group, np.array(examples, dtype=np.int64)) & ~settled
        settled |= behind
        if behind.any():
            later[f"cannot be expressed: {reason}"] = int(behind.sum())
    beyond = fates.pop("kept") - sum(later.values())
    if beyond:
        later[BEYOND] = beyond
    kept_count = later.pop("kept")
    # A reason can come from both: some rollouts are ruled out before any row is written.
    together = {reason: fates.get(reason, 0) + later.get(reason, 0) for reason in (*fates, *later)}
    return {"kept": kept_count, **together}


def later_fates(
    selection: Selection, group: Ints, numbers: Ints, lost: Mapping[int, str]
) -> tuple[Ints, list[str]]:
    """Final fate code of every rollout, 0 for those in a written example; requires a recipe with fates."""
    assert selection.fate_of is not None
    codes, reasons = selection.fate_of.codes.copy(), list(selection.fate_of.reasons)

    def give(mask: np.ndarray, reason: str) -> None:
        if reason not in reasons:
            reasons.append(reason)
        codes[mask & (codes == 0)] = reasons.index(reason)

    settled = rollouts_of(selection, group, numbers)
    for reason in sorted(set(lost.values())):
        examples = np.array([number for number, why in lost.items() if why == reason], dtype=np.int64)
        give(rollouts_of(selection, group, examples) & ~settled, f"cannot be expressed: {reason}")
    give(~settled, BEYOND)
    return codes, reasons


def summary(values: np.ndarray) -> Distribution | None:
    """Distribution of the values without NaN; None if there are none."""
    values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    if not len(values):
        return None
    return Distribution(
        n=len(values),
        mean=float(np.mean(values)),
        std=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        min=float(np.min(values)),
        median=median(values),
        max=float(np.max(values)),
    )


def histogram(values: np.ndarray) -> BinCounts:
    """Counts in five equal bins, the last one closed, over 0…1 unless values lie outside."""
    values = values[~np.isnan(values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    span = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
    counts, edges = np.histogram(values, bins=5, range=span)
    return BinCounts([round(float(edge), 6) for edge in edges], counts.tolist())


def describe(pool: Pool, selection: Selection, numbers: Ints) -> DatasetStatistics:
    """Statistics of the written examples."""
    candidates = pool.candidates
    picks = selection.picks[numbers]
    tasks = len(distinct(candidates.group[picks.ravel()]))
    difficulty = _difficulty(pool, selection, numbers)
    match selection.kind:
        case "pair":
            chosen, rejected = picks[:, 0], picks[:, 1]
            gap = candidates.reward[chosen] - candidates.reward[rejected]
            return DatasetStatistics(
                tasks=tasks,
                gap=summary(gap),
                histogram=histogram(gap),
                share_gap_at_least=_share(reaches(gap, 0.3)),
                share_gap_below=_share(~reaches(gap, 0.1)),
                chosen_reward=summary(candidates.reward[chosen]),
                rejected_reward=summary(candidates.reward[rejected]),
                pool_chars=summary(candidates.chars[~np.isnan(candidates.reward)]),
                chosen_chars=summary(candidates.chars[chosen]),
                rejected_chars=summary(candidates.chars[rejected]),
                share_chosen_longer=_share(candidates.chars[chosen] > candidates.chars[rejected]),
                difficulty=summary(difficulty),
                difficulty_histogram=histogram(difficulty),
            )
        case "prompt":
            values = {name: column[numbers] for name, column in selection.values.items()}
            return DatasetStatistics(
                tasks=tasks,
                mean_reward=summary(values["mean_reward"]),
                std_reward=summary(values["std_reward"]),
                pass_rate=summary(values["pass_rate"]),
                difficulty=summary(difficulty),
                histogram=histogram(values["mean_reward"]),
            )
    statistics = DatasetStatistics(
        tasks=tasks,
        reward=summary(candidates.reward[picks]),
        chars=summary(candidates.chars[picks]),
        pool_chars=summary(candidates.chars[~np.isnan(candidates.reward)]),
        histogram=histogram(candidates.reward[picks]),
        exact_duplicates=_repeats(candidates.group[picks], candidates.answer[picks]),
        difficulty=summary(difficulty),
        difficulty_histogram=histogram(difficulty),
    )
    if selection.kind == "labelled":
        label = selection.values["label"][numbers]
        statistics.desirable, statistics.undesirable = int(label.sum()), int((~label).sum())
    if selection.kind == "scored":
        statistics.advantage_grpo = summary(selection.values["advantage_grpo"][numbers])
    return statistics


def _difficulty(pool: Pool, selection: Selection, numbers: Ints) -> Floats:
    """Difficulty of each written example's task."""
    if selection.kind == "prompt":  # over the rollouts that the recipe can use
        return selection.values["difficulty"][numbers]
    groups = pool.candidates.group[selection.first[numbers]]
    return task_numbers(group_stats(pool.candidates, RecipeOptions()), groups)["difficulty"]


def _repeats(group: Ints, answer: Ints) -> int:
    """Number of examples with the same task and answer as an earlier one."""
    order = np.lexsort((answer, group))
    group, answer = group[order], answer[order]
    return int(((group[1:] == group[:-1]) & (answer[1:] == answer[:-1])).sum())


def _share(mask: np.ndarray) -> float | None:
    return float(np.mean(mask)) if len(mask) else None


def red_flags(recipe: str, rows: int, statistics: DatasetStatistics) -> list[RedFlag]:
    """Problems to review before training, each with a stable id and advice."""
    flags: list[RedFlag] = []
    if rows < FEW:
        text = f"only {count_of(rows, 'example')}: lower the threshold, or collect more rollouts"
        flags.append(RedFlag("few-examples", text))
    match recipe:
        case "sft":
            flags += _sft_flags(statistics)
        case "dpo" | "rm":
            flags += _pair_flags(statistics)
        case "kto" if rows:
            flags += _label_flags(statistics)
        case "ppo" | "grpo":
            flags += _prompt_flags(statistics)
    return flags


def scale_flags(
    rewards: Floats, thresholds: Mapping[str, Threshold], options: RecipeOptions
) -> list[RedFlag]:
    """Flags for default thresholds, which assume a best reward of 1, on rewards of another scale."""
    threshold_by_name = {
        "min_reward": options.min_reward,
        "success_from": options.min_reward,
        "high": options.high if options.high is not None else options.min_reward,
        "low": options.low,
    }
    defaults = [name for name in thresholds if name in threshold_by_name and threshold_by_name[name] is None]
    judged = rewards[~np.isnan(rewards)]
    if not defaults or not len(judged):
        return []
    low, high = float(judged.min()), float(judged.max())
    if (low >= 0 and high <= 1) or abs(high - 1) <= NOISE:
        return []
    used = " and ".join(f"{_OPTION[name]} {thresholds[name]:g}" for name in defaults)
    text = f"rewards go from {low:g} to {high:g}, but {used}, the default, is meant for 0 to 1: give your own"
    return [RedFlag("reward-scale", text)]


def _sft_flags(statistics: DatasetStatistics) -> list[RedFlag]:
    flags = []
    reward, repeated = statistics.reward, statistics.exact_duplicates or 0
    if not reward:
        return []
    if reward.mean < 0.9:
        text = f"mean reward {reward.mean:.3f} is below 0.90: the threshold may be too low"
        flags.append(RedFlag("low-mean-reward", text))
    if repeated > 0.2 * reward.n:
        text = f"{repeated} of {reward.n} answers repeat another one of their task: --dedupe exact"
        flags.append(RedFlag("duplicates", text))
    return flags


def _pair_flags(statistics: DatasetStatistics) -> list[RedFlag]:
    flags = []
    gap = statistics.gap
    if not gap:
        return []
    if gap.mean < 0.2:
        flags.append(
            RedFlag("small-gaps", f"mean gap {gap.mean:.3f} is below 0.2: the pairs are too similar")
        )
    small = statistics.share_gap_below or 0.0
    if small > 0.2:
        flags.append(RedFlag("ambiguous-pairs", f"{small:.0%} of the gaps are below 0.1"))
    if gap.min > 0.95:
        text = "every gap is near 1.0: the pairs may be too easy (binary rewards)"
        flags.append(RedFlag("only-large-gaps", text))
    longer = statistics.share_chosen_longer or 0.0
    if gap.n >= FEW and not 0.25 <= longer <= 0.75:
        text = f"the chosen answer is the longer one in {longer:.0%} of pairs: --length-ratio 1.5 matches lengths"
        flags.append(RedFlag("length-bias", text))
    return flags


def _label_flags(statistics: DatasetStatistics) -> list[RedFlag]:
    wanted, unwanted = statistics.desirable or 0, statistics.undesirable or 0
    if min(wanted, unwanted) * 4 >= max(wanted, unwanted) * 3:
        return []
    text = f"{wanted} desirable and {unwanted} undesirable: balance with --balance label, or set the trainer's weights"
    return [RedFlag("label-imbalance", text)]


def _prompt_flags(statistics: DatasetStatistics) -> list[RedFlag]:
    flags = []
    mean, spread = statistics.mean_reward, statistics.std_reward
    if mean and mean.mean > 0.9:
        flags.append(RedFlag("too-easy", f"mean reward {mean.mean:.3f}: little is left to learn"))
    if mean and mean.mean < 0.1:
        flags.append(RedFlag("too-hard", f"mean reward {mean.mean:.3f}: few rollouts succeed"))
    if spread and spread.mean < 0.1:
        text = f"rewards within a task spread by {spread.mean:.3f} on average: they hardly discriminate"
        flags.append(RedFlag("flat-rewards", text))
    return flags


def outlook(recipe: str, pool: Pool, options: RecipeOptions) -> list[dict[str, float]]:
    """Number of examples at other thresholds."""
    select = load_recipe(recipe)

    def count(**changed: float) -> dict[str, float]:
        return {**changed, "examples": len(select(pool.candidates, replace(options, **changed)))}  # type: ignore[arg-type]

    match select.like:
        case "sft":
            used = success_threshold(pool.candidates.reward, options.min_reward)
            return [count(min_reward=at) for at in sorted({*OUTLOOK_REWARDS, used}, reverse=True)]
        case "dpo" | "rm":
            return [count(min_gap=at) for at in sorted({*OUTLOOK_GAPS, options.min_gap})]
        case "kto":
            tiers = ((0.5, 0.5 - 1e-9), (0.7, 0.4), (0.9, 0.1), (1.0, 0.0))
            return [count(high=high, low=low) for high, low in tiers]
    return [count(min_spread=at) for at in (0.0, 0.1, 0.2, 0.3, 0.5)]
