"""Recipe: columns in, chosen rollouts out, every other rollout counted with its reason.

A recipe is a pure function over numpy columns. It reads no text and no file; filters that need text (near duplicates, token lengths,
contamination) come as masks. Each rollout has exactly one fate, so the counts add up to the number of rollouts.

Ties are broken by a seeded hash of the rollout's key (task, sample). The order of lines is the order of arrival, which follows speed,
which follows length: breaking ties by it would select short answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, update_wrapper
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollforge.errors import UsageError
from rollforge.recipes import RECIPES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

NOISE = 1e-9
"""Rewards closer than this are equal: sums in another order differ in the last digits."""

ExampleKind = Literal["demonstration", "pair", "labelled", "prompt", "scored"]
"""What a recipe makes of rollouts. Exporters have rows per kind."""

Strategy = Literal["inwards", "all", "best", "hardest"]
Dedupe = Literal["none", "exact", "near"]
Order = Literal["task", "file", "shuffled", "easy-first", "hard-first"]


@dataclass(frozen=True)
class RecipeOptions:
    """Options of all recipes; each reads the ones that concern it."""

    min_reward: float | None = None
    """None: 1.0 when rewards are only 0 and 1, else 0.95."""
    per_task: int | None = None
    band: tuple[float, float] | None = None
    """Keep tasks whose pass rate lies in this closed range; 0 to 1 means those that neither always nor never pass."""
    dedupe: Dedupe = "none"
    min_gap: float = 0.2
    strategy: Strategy = "inwards"
    high: float | None = None
    low: float | None = None
    max_pairs: int | None = None
    """Pairs per task."""
    max_uses: int | None = None
    """Pairs that one rollout may be in."""
    length_ratio: float | None = None
    """The longer answer of a pair has at most this many times the characters of the shorter."""
    min_spread: float = 0.0
    """A group has signal when its highest reward exceeds its lowest by more than this."""
    keep_truncated: bool = False
    keep_error_text: bool = False
    balance_labels: bool = False
    """As many wanted as unwanted answers."""
    seed: int = 0


@dataclass(frozen=True)
class Candidates:
    """The rollouts of one or several runs as columns, all of one length."""

    row: Ints
    """Row of the run's index."""
    group: Ints
    """Number of the task: equal only for rollouts with the same task and the same prompt."""
    reward: Floats
    """NaN where nothing judged the rollout."""
    answer: Ints
    """Equal for equal answers to one task."""
    chars: Ints
    """Characters of the answer."""
    key: Ints | None = None
    """Hash of the rollout's identity (task, sample); the row where it is None."""
    flags: Mapping[str, Mask] = field(default_factory=dict)
    """`truncated`, `filtered`, `failed`, `masked`, `empty`, `error_text`; `where`, `chosen_where`, `rejected_where`: whether the
    user's conditions hold."""
    near_duplicate: Mask | None = None
    unusable: Mapping[str, Mask] = field(default_factory=dict)
    """Reason → rollouts that a filter over the text has ruled out (too long, contaminated, …)."""
    unpairable: Mapping[str, Ints] = field(default_factory=dict)
    """Reason → rows of (chosen, rejected) that their texts have ruled out as a pair."""
    balance: Ints | None = None
    """Classes that the result should have in equal numbers."""

    def __len__(self) -> int:
        return len(self.row)

    def flag(self, name: str, default: bool = False) -> Mask:
        """A flag, or `default` everywhere if it is not set."""
        mask = self.flags.get(name)
        return mask if mask is not None else np.full(len(self), default)

    def ties(self, seed: int) -> NDArray[np.uint64]:
        """Per rollout a pseudo-random number that depends on its key and the seed alone: the smaller wins a tie."""
        return scrambled(self.row if self.key is None else self.key, seed)

    def best_first(self, positions: Ints, seed: int, *, within: Ints | None = None) -> Ints:
        """The positions ordered by group, then by `within` if given, then the best reward first, ties by hash."""
        reward = np.round(self.reward[positions], 9)
        keys = [self.ties(seed)[positions], -reward, self.group[positions]]
        if within is not None:
            keys.insert(2, within[positions])
        return positions[np.lexsort(tuple(keys))]

    @cached_property
    def barred(self) -> frozenset[tuple[int, int]]:
        """All pairs of `unpairable`."""
        return frozenset((int(a), int(b)) for pairs in self.unpairable.values() for a, b in pairs)


class FateCodes(NamedTuple):
    """The fate of every rollout as a number into `reasons`."""

    codes: Ints
    reasons: tuple[str, ...]


@dataclass
class Selection:
    """What a recipe chose."""

    kind: ExampleKind
    picks: Ints
    """Positions in the candidates: one per example, or one row of (chosen, rejected) per pair."""
    fates: dict[str, int]
    """How many rollouts met each fate; `kept` are those in the result."""
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Further numbers, one per example."""
    settings: Mapping[str, float | str | dict[str, int]] = field(default_factory=dict)
    """Thresholds that the data decided."""
    members: Mask | None = None
    """Where an example stands for a whole group: the rollouts that are kept with it."""
    fate_of: FateCodes | None = None
    """The fate of every rollout; a recipe that leaves it out gives counts alone."""

    def __len__(self) -> int:
        return len(self.picks)

    @property
    def first(self) -> Ints:
        """The position that stands for each example: the chosen one of a pair."""
        return self.picks[:, 0] if self.picks.ndim == 2 else self.picks

    def take(self, chosen: NDArray[Any]) -> Selection:
        """The examples with these numbers, in this order."""
        values = {name: column[chosen] for name, column in self.values.items()}
        return replace(self, picks=self.picks[chosen], values=values)


Select = Callable[[Candidates, RecipeOptions], Selection]

_FIRST_OF_KIND: Mapping[str, str] = {
    "demonstration": "sft",
    "pair": "dpo",
    "labelled": "kto",
    "prompt": "grpo",
}


class Recipe:
    """A function that chooses rollouts, with what the other families need to know about it."""

    def __init__(self, select: Select, kind: ExampleKind, like: str) -> None:
        self.kind = kind
        self.like = like
        """The built-in recipe whose trainers, checks and descriptions apply; its own name for a built-in one."""
        self._select = select
        update_wrapper(self, select)

    def __call__(self, candidates: Candidates, options: RecipeOptions) -> Selection:
        return self._select(candidates, options)


def recipe(
    kind: Literal["demonstration", "pair", "labelled", "prompt"], *, like: str | None = None
) -> Callable[[Select], Recipe]:
    """Declare a recipe: what it makes of rollouts.

    Args:
        kind: the kind of every example it selects.
        like: a built-in recipe of this kind, whose trainers, checks and descriptions apply; by default sft, dpo, kto or grpo.
    """
    return lambda select: Recipe(select, kind, like or _FIRST_OF_KIND[kind])


def load_recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    recipe = RECIPES.load(name)
    if not isinstance(recipe, Recipe):
        raise UsageError(
            f"the recipe {name!r} declares no kind of example",
            hint="decorate its function: @rollforge.recipes.base.recipe('pair') (docs/extending.md)",
        )
    if recipe.like != name and (
        recipe.like not in RECIPES.built_in or load_recipe(recipe.like).kind != recipe.kind
    ):
        alike = [built_in for built_in in RECIPES.built_in if load_recipe(built_in).kind == recipe.kind]
        raise UsageError(
            f"the recipe {name!r} makes {recipe.kind} examples like {recipe.like!r}, which is no such recipe",
            hint=f"one of {', '.join(alike)}",
        )
    return recipe


class Fates:
    """The one fate of every rollout."""

    def __init__(self, size: int) -> None:
        self._fate = np.zeros(size, dtype=np.int32)
        self._reasons = ["kept"]

    @property
    def alive(self) -> Mask:
        return np.asarray(self._fate == 0)

    def drop(self, mask: Mask, reason: str) -> None:
        """Give this fate to the rollouts of `mask` that have none yet."""
        if reason not in self._reasons:
            self._reasons.append(reason)
        self._fate[mask & self.alive] = self._reasons.index(reason)

    def codes(self) -> FateCodes:
        """The fate of every rollout."""
        return FateCodes(self._fate.astype(np.int64), tuple(self._reasons))

    def counts(self) -> dict[str, int]:
        """Reason → rollouts, `kept` first, without empty ones."""
        numbers = np.bincount(self._fate, minlength=len(self._reasons))
        return {r: int(n) for r, n in zip(self._reasons, numbers, strict=True) if n or r == "kept"}


def screen(candidates: Candidates, options: RecipeOptions, *, drop_truncated: bool = True) -> Fates:
    """Drop what every recipe leaves out: failed, unjudged, masked, empty, truncated, ruled out by text, not asked for."""
    fates = Fates(len(candidates))
    fates.drop(candidates.flag("failed"), "the model call failed")
    fates.drop(candidates.flag("masked"), "masked (mask_sample)")
    fates.drop(np.isnan(candidates.reward), "unjudged")
    if drop_truncated and not options.keep_truncated:
        fates.drop(candidates.flag("truncated"), "truncated")
    if drop_truncated:
        fates.drop(candidates.flag("filtered"), "cut off by a content filter")
    fates.drop(candidates.flag("empty"), "empty answer")
    if not options.keep_error_text:
        fates.drop(candidates.flag("error_text"), "error text as answer")
    fates.drop(~candidates.flag("where", True), "where does not hold")
    if options.band is not None:
        fates.drop(~in_band(candidates, options), "outside the difficulty band")
    for reason, mask in candidates.unusable.items():
        fates.drop(mask, reason)
    return fates


def success_threshold(rewards: Floats, threshold: float | None) -> float:
    """The reward from which a rollout counts as right."""
    if threshold is not None:
        return threshold
    judged = rewards[~np.isnan(rewards)]
    return 1.0 if bool(np.isin(judged, (0.0, 1.0)).all()) else 0.95


def reaches(rewards: Floats, threshold: float) -> Mask:
    """Whether rewards are at the threshold or above, up to rounding: 0.6 + 0.3 reaches 0.9."""
    return np.asarray(rewards >= threshold - NOISE)


@dataclass(frozen=True)
class GroupStats:
    """Reward statistics of each group over its judged rollouts; NaN where a group has too few."""

    count: Ints
    mean: Floats
    std: Floats
    """With n − 1; NaN for fewer than two."""
    low: Floats
    high: Floats
    pass_rate: Floats

    @property
    def spread(self) -> Floats:
        return self.high - self.low

    def has_signal(self, options: RecipeOptions) -> Mask:
        """Whether the rewards of a group differ by more than `min_spread`, and by more than rounding."""
        return np.asarray(self.spread > options.min_spread + NOISE)


def group_stats(candidates: Candidates, options: RecipeOptions) -> GroupStats:
    """Statistics per group, unjudged rollouts left out."""
    size = int(candidates.group.max()) + 1 if len(candidates) else 0
    judged = ~np.isnan(candidates.reward)
    group, reward = candidates.group[judged], candidates.reward[judged]
    count = np.bincount(group, minlength=size)
    passed = reaches(reward, success_threshold(candidates.reward, options.min_reward))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(group, reward, minlength=size) / count
        squares = np.bincount(group, (reward - mean[group]) ** 2, minlength=size)
        std = np.sqrt(squares / np.where(count > 1, count - 1, np.nan))
        pass_rate = np.bincount(group, passed.astype(float), minlength=size) / count
    low, high = np.full(size, np.nan), np.full(size, np.nan)
    order = np.lexsort((reward, group))
    ends = np.cumsum(count)
    some = count > 0
    low[some] = reward[order][(ends - count)[some]]
    high[some] = reward[order][ends[some] - 1]
    return GroupStats(count.astype(np.int64), mean, std, low, high, pass_rate)


def in_band(candidates: Candidates, options: RecipeOptions) -> Mask:
    """Whether each rollout's task has a pass rate within the band."""
    low, high = options.band or (0.0, 1.0)
    rate = group_stats(candidates, options).pass_rate[candidates.group]
    if (low, high) == (0.0, 1.0):  # closed, it would leave out nothing
        return np.asarray((rate > low) & (rate < high))
    return np.asarray((rate >= low) & (rate <= high))


def drop_duplicates(fates: Fates, candidates: Candidates, options: RecipeOptions) -> None:
    """Keep the best of equal answers to one task, and with `near` the best of nearly equal ones."""
    if options.dedupe == "none":
        return
    alive = np.flatnonzero(fates.alive)
    order = candidates.best_first(alive, options.seed, within=candidates.answer)
    group, answer = candidates.group[order], candidates.answer[order]
    repeated = np.zeros(len(candidates), dtype=bool)
    repeated[order[1:]] = (group[1:] == group[:-1]) & (answer[1:] == answer[:-1])
    fates.drop(repeated, "duplicate")
    if options.dedupe == "near" and candidates.near_duplicate is not None:
        fates.drop(candidates.near_duplicate, "near duplicate")


def rank_in_group(group: Ints) -> Ints:
    """For sorted group numbers, the rank of each entry within its group, from 0."""
    if not len(group):
        return group
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    return np.asarray(np.arange(len(group)) - np.repeat(starts, np.diff(np.r_[starts, len(group)])))


def scrambled(numbers: NDArray[Any], seed: int) -> NDArray[np.uint64]:
    """SplitMix64 of each number and a seed: the same on every machine and in every version of numpy."""
    with np.errstate(over="ignore"):
        key = numbers.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(key ^ (key >> np.uint64(31)))


def balanced(classes: Ints, ties: NDArray[np.uint64]) -> Mask:
    """Examples to keep so that every class has as many as the smallest; the smallest numbers of `ties` stay."""
    if not len(classes):
        return np.zeros(0, dtype=bool)
    _, codes, counts = np.unique(classes, return_inverse=True, return_counts=True)
    order = np.lexsort((ties, codes))
    keep = np.zeros(len(classes), dtype=bool)
    keep[order] = rank_in_group(codes[order]) < counts.min()
    return keep
