"""This module decides, before any text is read, which examples are written where and in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rollforge.errors import UsageError
from rollforge.exporters.base import Exporter
from rollforge.recipes.base import Ints, Selection, load_recipe, scrambled
from rollforge.recipes.prompting import select_groups
from rollforge.steps.prepare.gather import Pool
from rollforge.steps.prepare.settings import SPLIT_NAMES, Settings

PAIRED = ("dpo", "rm")


@dataclass
class Plan:
    """Examples in writing order, each with its split."""

    selection: Selection
    split: Ints
    """Number of the split of each example."""
    splits: tuple[str, ...]
    planned: int
    """Examples before `--limit`."""
    lost_before: Counter[str] = field(default_factory=Counter)
    """Why examples of earlier plans are not in this one: they cannot be expressed, and how many for each reason."""

    def swap_into_first(self, number: int, keep: Sequence[int], prompts: Ints) -> None:
        """Move the prompt of example `number` into the first split, and one of its prompts into that example's.

        Shares stay what they were. Prompts of the examples in `keep` stay; with no other to give, the first split grows.
        """
        prompt = prompts[self.selection.first]
        left, moved = self.split[number], prompt == prompt[number]
        is_free = (self.split == 0) & ~np.isin(prompt, prompt[np.array(keep, dtype=np.int64)])
        self.split[moved] = 0
        if is_free.any():
            self.split[prompt == prompt[is_free][-1]] = left


def make_plan(recipe: str, pool: Pool, settings: Settings) -> Plan:
    """Select, order, limit and split."""
    selection = _select(recipe, pool, settings)
    planned = len(selection)
    order = _order(selection, pool, settings)
    if settings.limit is not None and settings.limit < len(order):
        order = order[_sample(selection.take(order), pool, settings)]
    selection = selection.take(order)
    split = _split(pool.prompt[selection.first], settings)
    return Plan(selection, split, SPLIT_NAMES[: len(settings.split)], planned)


def _sample(selection: Selection, pool: Pool, settings: Settings) -> Ints:
    """A seeded sample, not the head of the file: a small trial should look like the whole. Groups are taken whole."""
    first = selection.first
    if selection.kind != "scored":
        keys = scrambled(pool.candidates.row[first], settings.seed + 1)
        return np.sort(np.argsort(keys, kind="stable")[: settings.limit])
    groups, codes, counts = np.unique(pool.candidates.group[first], return_inverse=True, return_counts=True)
    drawn = np.argsort(scrambled(groups, settings.seed + 1), kind="stable")
    fits = np.cumsum(counts[drawn]) <= (settings.limit or 0)
    fits[0] = True
    return np.flatnonzero(np.isin(codes, drawn[fits]))


def _select(recipe: str, pool: Pool, settings: Settings) -> Selection:
    options = settings.recipe_options()
    if settings.shape in ("groups", "scored"):
        return select_groups(
            pool.candidates, options, needs_spread=recipe == "grpo", drop_truncated=recipe in PAIRED
        )
    return load_recipe(recipe)(pool.candidates, options)


def refuse_wrong_shape(recipe: str, settings: Settings, exporter: type[Exporter]) -> None:
    """Raise when a shape or tier does not go with the recipe or the trainer."""
    shapes = {"rm": ("pairs", "scored"), "ppo": ("prompts", "groups"), "grpo": ("prompts", "groups")}
    allowed = shapes.get(recipe, ("pairs",) if recipe == "dpo" else ())
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
    if settings.across_prompts and recipe in (*PAIRED, "sft", "ppo", "grpo"):
        raise UsageError(
            f"--across-prompts is for unpaired methods; {recipe} compares answers to one prompt" if recipe in PAIRED
            else f"--across-prompts does not apply to {recipe}",
            hint="unpaired tiers: rollforge prepare kto RUN --across-prompts --high 0.7 --low 0.4",
        )  # fmt: skip


def _order(selection: Selection, pool: Pool, settings: Settings) -> Ints:
    """Example numbers in writing order; examples of one task stay together where the file has them so."""
    first = selection.first
    # The rollouts of a group stay together, whatever the order of the groups.
    group = (
        pool.candidates.group[first] if selection.kind == "scored" else np.zeros(len(first), dtype=np.int64)
    )
    if settings.order == "shuffled" and selection.kind == "scored":
        return np.lexsort((first, scrambled(group, settings.seed)))
    if settings.order == "shuffled":
        keys = scrambled(pool.candidates.row[first] * 2 + pool.run[first], settings.seed)
        return np.argsort(keys, kind="stable")
    if settings.order == "file":
        if selection.kind == "scored":
            return np.arange(len(first))
        return np.lexsort((pool.candidates.row[first], pool.run[first]))
    rate = _difficulty(selection, pool, settings)
    return np.lexsort((first, group, rate if settings.order == "easy-first" else -rate))


def _difficulty(selection: Selection, pool: Pool, settings: Settings) -> np.ndarray:
    if selection.kind == "prompt":
        return selection.values["difficulty"]  # as the rows have it
    from rollforge.recipes.base import group_stats
    from rollforge.recipes.prompting import task_numbers

    groups = pool.candidates.group[selection.first]
    return task_numbers(group_stats(pool.candidates, settings.recipe_options()), groups)["difficulty"]


def _split(prompts: Ints, settings: Settings) -> Ints:
    """The split of each example: a prompt is in one split only, and shares are of prompts."""
    if len(settings.split) == 1 or not len(prompts):
        return np.zeros(len(prompts), dtype=np.int64)
    distinct, codes = np.unique(prompts, return_inverse=True)
    rank = np.empty(len(distinct), dtype=np.int64)
    rank[np.argsort(scrambled(distinct, settings.seed + 2), kind="stable")] = np.arange(len(distinct))
    shares = np.array(settings.split) / sum(settings.split)
    bounds = np.floor(np.cumsum(shares) * len(distinct) + 0.5).astype(np.int64)
    for number in range(len(bounds) - 1):  # a split that was asked for is not left empty while prompts remain
        bounds[number] = min(bounds[number], len(distinct) - (len(bounds) - 1 - number))
        bounds[number] = max(bounds[number], number + 1)
    bounds[-1] = len(distinct)
    return np.searchsorted(bounds, rank[codes], side="right")
