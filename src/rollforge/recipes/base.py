"""Recipe: columns in, chosen rollouts out, every other rollout counted with its reason.

A recipe is a pure function over numpy columns. It reads no text and no file; filters that need text (near duplicates, token
lengths, contamination) come as masks. Each rollout has exactly one fate (kept, or dropped with a reason), so the counts add up to
the number of rollouts.

Ties are broken by a seeded hash of the rollout's key (task, sample). Line order would be biased: short answers finish first, so
ties broken by it would select short answers.
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
"""Rewards closer than this count as equal, because sums in another order differ in the last digits."""

ExampleKind = Literal["demonstration", "pair", "labelled", "prompt", "scored"]
"""The kind of example that a recipe makes. Exporters have a row format per kind."""

Strategy = Literal["inwards", "all", "best", "hardest"]
Dedupe = Literal["none", "exact", "near"]
Order = Literal["task", "file", "shuffled", "easy-first", "hard-first"]


@dataclass(frozen=True)
class RecipeOptions:
    """Options of all recipes; each reads the ones that concern it."""

    min_reward: float | None = None
    """None means 1.0 if all rewards are 0 or 1, else 0.95."""
    per_task: int | None = None
    band: tuple[float, float] | None = None
    """Keep tasks with a pass rate in this closed range; 0 to 1 means tasks that neither always nor never pass."""
    dedupe: Dedupe = "none"
    min_gap: float = 0.2
    strategy: Strategy = "inwards"
    high: float | None = None
    low: float | None = None
    max_pairs: int | None = None
    """Most pairs per task."""
    max_uses: int | None = None
    """Most pairs that may use one rollout."""
    length_ratio: float | None = None
    """Largest ratio of characters between the longer and the shorter answer of a pair."""
    min_spread: float = 0.0
    """A group has signal when its highest reward exceeds its lowest by more than this."""
    keep_truncated: bool = False
    keep_error_text: bool = False
    balance_labels: bool = False
    """Balance desirable and undesirable answers."""
    seed: int = 0


@dataclass(frozen=True)
class Candidates:
    """The rollouts of one or several runs as columns of equal length."""

    row: Ints
    """Row number in the run's index."""
    group: Ints
    """Number of the task: equal only for rollouts with the same task and prompt."""
    reward: Floats
    """NaN for an unjudged rollout."""
    answer: Ints
    """Code that is equal for equal answers to one task."""
    chars: Ints
    """Characters of the answer."""
    key: Ints | None = None
    """Hash of the rollout's identity (task, sample); None means the row number is used."""
    flags: Mapping[str, Mask] = field(default_factory=dict)
    """Masks: `truncated`, `filtered`, `failed`, `masked`, `empty`, `error_text`; `where`, `chosen_where`, `rejected_where` for
    the user's conditions.
    """
    near_duplicate: Mask | None = None
    unusable: Mapping[str, Mask] = field(default_factory=dict)
    """Reason → mask of rollouts that a text filter excludes (too long, contaminated, …)."""
    unpairable: Mapping[str, Ints] = field(default_factory=dict)
    """Reason → rows of (chosen, rejected) that a text filter excludes as pairs."""
    balance: Ints | None = None
    """Class of each rollout; the result should have equal numbers of each class."""

    def __len__(self) -> int:
        return len(self.row)

    def flag(self, name: str, default: bool = False) -> Mask:
        """A mask, or `default` everywhere if it is missing."""
        mask = self.flags.get(name)
        return mask if mask is not None else np.full(len(self), default)

    def ties(self, seed: int) -> NDArray[np.uint64]:
        """Pseudo-random number per rollout, from its key and the seed only; the smaller one wins a tie."""
        return scrambled(self.row if self.key is None else self.key, seed)

    def best_first(self, positions: Ints, seed: int, *, within: Ints | None = None) -> Ints:
        """Positions sorted by group, then by `within` if given, then by descending reward, ties by hash."""
        reward = np.round(self.reward[positions], 9)
        keys = [self.ties(seed)[positions], -reward, self.group[positions]]
        if within is not None:
            keys.insert(2, within[positions])
        return positions[np.lexsort(tuple(keys))]

    @cached_property
    def barred(self) -> frozenset[tuple[int, int]]:
        """All excluded pairs of `unpairable`."""
        return frozenset((int(a), int(b)) for pairs in self.unpairable.values() for a, b in pairs)


class FateCodes(NamedTuple):
    """The fate of every rollout, as codes into `reasons`."""

    codes: Ints
    reasons: tuple[str, ...]


@dataclass
class Selection:
    """What a recipe chose."""

    kind: ExampleKind
    picks: Ints
    """Positions in the candidates: one per example, or a row of (chosen, rejected) per pair."""
    fates: dict[str, int]
    """Fate → number of rollouts; `kept` are those in the result."""
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    """Additional numbers, one per example."""
    settings: Mapping[str, float | str | dict[str, int]] = field(default_factory=dict)
    """Thresholds that were derived from the data."""
    members: Mask | None = None
    """For examples that represent a group: the rollouts kept in each."""
    fate_of: FateCodes | None = None
    """The fate of every rollout; a recipe that leaves it empty reports only counts."""

    def __len__(self) -> int:
        return len(self.picks)

    @property
    def first(self) -> Ints:
        """Position of the rollout that represents each example; for a pair, the chosen one."""
        return self.picks[:, 0] if self.picks.ndim == 2 else self.picks

    def take(self, chosen: NDArray[Any]) -> Selection:
        """The examples with these indices, in this order."""
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
    """A selection function with metadata for exporters and checks."""

    def __init__(self, select: Select, kind: ExampleKind, like: str) -> None:
        self.kind = kind
        self.like = like
        """The built-in recipe whose exporters, checks and descriptions apply; a built-in recipe's own name."""
        self._select = select
        update_wrapper(self, select)

    def __call__(self, candidates: Candidates, options: RecipeOptions) -> Selection:
        return self._select(candidates, options)


def recipe(
    kind: Literal["demonstration", "pair", "labelled", "prompt"], *, like: str | None = None
) -> Callable[[Select], Recipe]:
    """Decorator that declares a recipe and its kind of examples.

    Args:
        kind: the kind of every example it selects.
        like: a built-in recipe of this kind, whose trainers, checks and descriptions apply; by default sft, dpo, kto or grpo.
    """
    return lambda select: Recipe(select, kind, like or _FIRST_OF_KIND[kind])


def load_recipe(name: str) -> Recipe:
    """The recipe with this name."""
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
    """Assigns one fate to every rollout."""

    def __init__(self, size: int) -> None:
        self._fate = np.zeros(size, dtype=np.int32)
        self._reasons = ["kept"]

    @property
    def alive(self) -> Mask:
        """Mask of rollouts without a reason to drop them so far."""
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
    """Drop the rollouts that every recipe excludes: failed, unjudged, masked, empty, truncated, excluded by text or by the user."""
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
    """The reward from which a rollout counts as correct."""
    if threshold is not None:
        return threshold
    judged = rewards[~np.isnan(rewards)]
    return 1.0 if bool(np.isin(judged, (0.0, 1.0)).all()) else 0.95


def reaches(rewards: Floats, threshold: float) -> Mask:
    """Mask of rewards at or above the threshold, up to rounding: 0.6 + 0.3 reaches 0.9."""
    return np.asarray(rewards >= threshold - NOISE)


@dataclass(frozen=True)
class GroupStats:
    """Reward statistics of each group over its judged rollouts; NaN for groups with too few."""

    count: Ints
    mean: Floats
    std: Floats
    """Sample standard deviation (n − 1); NaN for fewer than two."""
    low: Floats
    high: Floats
    pass_rate: Floats

    @property
    def spread(self) -> Floats:
        """Highest minus lowest reward of each group."""
        return self.high - self.low

    def has_signal(self, options: RecipeOptions) -> Mask:
        """Whether a group's rewards differ by more than `min_spread` and more than rounding."""
        return np.asarray(self.spread > options.min_spread + NOISE)


def group_stats(candidates: Candidates, options: RecipeOptions) -> GroupStats:
    """Statistics per group, without unjudged rollouts."""
    size = int(candidates.group.max()) + 1 if len(candidates) else 0
    judged = ~np.isnan(candidates.reward)
    group, reward = candidates.group[judged], candidates.reward[judged]
    count = np.bincount(group, minlength=size)
    passed = reaches(reward, success_threshold(candidates.reward, options.min_reward))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(group, reward, minlength=size) / count
        squares = np.bincount(group, (reward - mean[group]) ** 2, minlength=size)
        std = np.sqrt(squares / np.maximum(count - 1, 0))  # 0 / 0 of one reward
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
    """Keep the best of equal answers to one task; with `near`, also of nearly equal ones."""
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
    """SplitMix64 of each number and a seed: identical on every machine and numpy version."""
    with np.errstate(over="ignore"):
        key = numbers.astype(np.uint64) + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
        key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(key ^ (key >> np.uint64(31)))


def balanced(classes: Ints, ties: NDArray[np.uint64]) -> Mask:
    """Mask of examples to keep so that every class is as small as the smallest; the lowest values of `ties` stay."""
    if not len(classes):
        return np.zeros(0, dtype=bool)
    _, codes, counts = np.unique(classes, return_inverse=True, return_counts=True)
    order = np.lexsort((ties, codes))
    keep = np.zeros(len(classes), dtype=bool)
    keep[order] = rank_in_group(codes[order]) < counts.min()
    return keep
