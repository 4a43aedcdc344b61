"""Decides, before any text is read, which examples are written to which file and in which order.

If some examples turn out to be inexpressible, the recipe chooses again without them (`plan_again`): the best of a task, pairs,
class balance and group statistics depend on which examples can be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rollforge.errors import UsageError
from rollforge.exporters.base import Exporter
from rollforge.recipes.base import (
    Candidates,
    Ints,
    Mask,
    Selection,
    group_stats,
    load_recipe,
    scrambled,
)
from rollforge.recipes.prompting import select_groups, task_numbers
from rollforge.steps.prepare.rollout_pool import Pool
from rollforge.steps.prepare.sequences import with_all_sequences
from rollforge.steps.prepare.settings import SPLIT_NAMES, Settings

PAIRED = ("dpo", "rm")


@dataclass
class DatasetPlan:
    """Examples in writing order, each with its split."""

    selection: Selection
    split: Ints
    """Number of the split of each example."""
    splits: tuple[str, ...]
    planned: int
    """Number of examples before `--limit`."""
    lost_before: Counter[str] = field(default_factory=Counter)
    """Inexpressible examples of earlier plans: reason → number."""

    def swap_into_first(self, number: int, keep: Sequence[int], prompts: Ints) -> None:
        """Move the prompt of example `number` into the first split, and one prompt of the first split into that example's.

        The sizes of the splits do not change. Prompts of examples in `keep` do not move; if there are no others, the first split
        grows.
        """
        prompt = prompts[self.selection.first]
        left, moved = self.split[number], prompt == prompt[number]
        is_free = (self.split == 0) & ~np.isin(prompt, prompt[np.array(keep, dtype=np.int64)])
        self.split[moved] = 0
        if is_free.any():
            self.split[prompt == prompt[is_free][-1]] = left

    def files(self, shards: int, front: Sequence[int] = ()) -> list[tuple[str, int, Ints]]:
        """(split, shard, example numbers) of each file, in writing order; in the first split, `front` comes first."""
        planned = []
        for split, name in enumerate(self.splits):
            numbers = np.flatnonzero(self.split == split)
            if split == 0 and front:
                numbers = np.concatenate([np.array(front), numbers[~np.isin(numbers, front)]])
            planned += [(name, shard, part) for shard, part in enumerate(np.array_split(numbers, shards))]
        return planned


def make_plan(recipe: str, pool: Pool, settings: Settings) -> DatasetPlan:
    """Select, order, limit and split."""
    selection = _select(recipe, pool, settings)
    if settings.sequences == "all":
        selection = with_all_sequences(selection, pool)
    planned = len(selection)
    order = _order(selection, pool, settings)
    if settings.limit is not None and settings.limit < len(order):
        order = order[_sample(selection.take(order), pool, settings)]
    selection = selection.take(order)
    split = _split(pool.prompt[selection.first], settings)
    return DatasetPlan(selection, split, SPLIT_NAMES[: len(settings.split)], planned)


def plan_again(
    recipe: str,
    pool: Pool,
    plan: DatasetPlan,
    settings: Settings,
    *,
    lost: Mapping[int, str],
    unreadable: Mapping[int, str],
) -> DatasetPlan | None:
    """A new plan without the lost examples; None if its other examples are unchanged.

    The pool records lost examples, so that no later plan selects them.

    Args:
        lost: inexpressible example number → reason. unreadable: for lost pairs, position of each inexpressible rollout → reason.
    """
    if not lost:
        return None
    pool.candidates = _without(pool.candidates, plan.selection, lost, unreadable)
    lost_before = plan.lost_before + Counter(lost.values())
    again = replace(make_plan(recipe, pool, settings), lost_before=lost_before)
    written = plan.selection.take(np.setdiff1d(np.arange(len(plan.selection)), list(lost)))
    return None if _are_the_same(written, again.selection) else again


def _without(
    candidates: Candidates, selection: Selection, lost: Mapping[int, str], unreadable: Mapping[int, str]
) -> Candidates:
    """Exclude the lost examples; a pair is excluded only as a pair if both its rollouts are expressible."""
    unusable, unpairable = dict(candidates.unusable), dict(candidates.unpairable)
    for reason, numbers in _by_reason(lost).items():
        name = f"cannot be expressed: {reason}"
        if selection.kind == "pair":
            pairs = selection.picks[numbers]
            pairs = pairs[~np.isin(pairs, list(unreadable)).any(axis=1)]
            unpairable[name] = np.concatenate([unpairable.get(name, pairs[:0]), pairs])
        else:
            mask = rollouts_of(selection, candidates.group, numbers)
            unusable[name] = unusable.get(name, np.zeros_like(mask)) | mask
    for reason, positions in _by_reason(unreadable).items():
        name = f"cannot be expressed: {reason}"
        mask = np.zeros(len(candidates), dtype=bool)
        mask[positions] = True
        unusable[name] = unusable.get(name, np.zeros_like(mask)) | mask
    return replace(candidates, unusable=unusable, unpairable=unpairable)


def _by_reason(reasons: Mapping[int, str]) -> dict[str, Ints]:
    grouped: dict[str, list[int]] = {}
    for number, reason in reasons.items():
        grouped.setdefault(reason, []).append(number)
    return {reason: np.array(grouped[reason], dtype=np.int64) for reason in sorted(grouped)}


def _are_the_same(one: Selection, other: Selection) -> bool:
    """Whether both have the same examples with the same numbers, in any order."""
    if len(one) != len(other):
        return False
    one, other = (each.take(np.lexsort(np.atleast_2d(each.picks.T))) for each in (one, other))
    return np.array_equal(one.picks, other.picks) and all(
        np.array_equal(column, other.values[name], equal_nan=True) for name, column in one.values.items()
    )


def rollouts_of(selection: Selection, group: Ints, numbers: Ints) -> Mask:
    """The rollouts behind these examples."""
    picks = selection.picks[numbers].ravel()
    if selection.members is not None:
        return selection.members & np.isin(group, group[picks])
    behind = np.zeros(len(group), dtype=bool)
    behind[picks] = True
    return behind


def refuse_wrong_shape(recipe: str, settings: Settings, exporter: type[Exporter]) -> None:
    """Raise if a shape or tier does not fit the recipe or the trainer."""
    like = load_recipe(recipe).like
    shapes = {"rm": ("pairs", "scored"), "ppo": ("prompts", "groups"), "grpo": ("prompts", "groups")}
    allowed = shapes.get(like, ("pairs",) if like == "dpo" else ())
    if settings.shape != "auto" and settings.shape not in allowed:
        raise UsageError(
            f"--shape {settings.shape} does not apply to {recipe}",
            hint=f"{recipe}: {', '.join(allowed) or 'none'}",
        )
    if settings.shape in ("groups", "scored") and not exporter.takes_groups:
        raise UsageError(
            f"{exporter.name} reads no scored rollouts from a file",
            hint=f"write them plainly: --to chat --shape {settings.shape}",
        )
    if settings.across_prompts and like in (*PAIRED, "sft", "ppo", "grpo"):
        raise UsageError(
            f"--across-prompts is for unpaired methods; {recipe} compares answers to one prompt" if like in PAIRED
            else f"--across-prompts does not apply to {recipe}",
            hint="unpaired tiers: rollforge prepare kto RUN -o data/kto --to trl --across-prompts --high 0.7 --low 0.4",
        )  # fmt: skip


def _select(recipe: str, pool: Pool, settings: Settings) -> Selection:
    options = settings.recipe_options()
    chosen = load_recipe(recipe)
    if settings.shape in ("groups", "scored"):
        return select_groups(
            pool.candidates,
            options,
            needs_spread=chosen.like == "grpo",
            drop_truncated=chosen.like in PAIRED,
        )
    return chosen(pool.candidates, options)


def _sample(selection: Selection, pool: Pool, settings: Settings) -> Ints:
    """A seeded sample instead of the first rows, so that a small trial is representative. Groups stay complete."""
    first = selection.first
    if selection.kind != "scored":
        keys = pool.candidates.ties(settings.seed + 1)[first]
        return np.sort(np.argsort(keys, kind="stable")[: settings.limit])
    groups, codes, counts = np.unique(pool.candidates.group[first], return_inverse=True, return_counts=True)
    drawn = np.argsort(scrambled(groups, settings.seed + 1), kind="stable")
    fits = np.cumsum(counts[drawn]) <= (settings.limit or 0)
    fits[0] = True
    return np.flatnonzero(np.isin(codes, drawn[fits]))


def _order(selection: Selection, pool: Pool, settings: Settings) -> Ints:
    """Example numbers in writing order; rollouts of a scored group stay together in every order."""
    first = selection.first
    group = (
        pool.candidates.group[first] if selection.kind == "scored" else np.zeros(len(first), dtype=np.int64)
    )
    if settings.order == "shuffled" and selection.kind == "scored":
        return np.lexsort((first, scrambled(group, settings.seed)))
    if settings.order == "shuffled":
        return np.argsort(pool.candidates.ties(settings.seed)[first], kind="stable")
    last = selection.picks[:, -1] if selection.picks.ndim == 2 else first
    if settings.order == "task":
        return np.lexsort((last, first, group))
    if settings.order == "file":
        return np.lexsort((pool.candidates.row[first], pool.run[first], _first_lines(group, first, pool)))
    rate = _difficulty(selection, pool, settings)
    return np.lexsort((first, group, rate if settings.order == "easy-first" else -rate))


def _first_lines(group: Ints, first: Ints, pool: Pool) -> Ints:
    """Per example, the first line of its group; 0 if groups may be separated."""
    if not group.any():
        return np.zeros(len(first), dtype=np.int64)
    rows = pool.order[first]
    earliest = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(earliest, group, rows)
    return np.asarray(earliest[group])


def _difficulty(selection: Selection, pool: Pool, settings: Settings) -> np.ndarray:
    if selection.kind == "prompt":
        return selection.values["difficulty"]
    groups = pool.candidates.group[selection.first]
    return task_numbers(group_stats(pool.candidates, settings.recipe_options()), groups)["difficulty"]


def _split(prompts: Ints, settings: Settings) -> Ints:
    """The split of each example. A prompt is in one split only, and shares are of prompts."""
    if len(settings.split) == 1 or not len(prompts):
        return np.zeros(len(prompts), dtype=np.int64)
    distinct, codes = np.unique(prompts, return_inverse=True)
    rank = np.empty(len(distinct), dtype=np.int64)
    rank[np.argsort(scrambled(distinct, settings.seed + 2), kind="stable")] = np.arange(len(distinct))
    shares = np.array(settings.split) / sum(settings.split)
    bounds = np.floor(np.cumsum(shares) * len(distinct) + 0.5).astype(np.int64)
    for number in range(len(bounds) - 1):  # no split stays empty while there are prompts for it
        bounds[number] = min(bounds[number], len(distinct) - (len(bounds) - 1 - number))
        bounds[number] = max(bounds[number], number + 1)
    bounds[-1] = len(distinct)
    return np.searchsorted(bounds, rank[codes], side="right")
