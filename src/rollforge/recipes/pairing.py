"""Pairs of a better and a worse rollout of one task, for `dpo` and `rm`.

Pairs never cross tasks or prompts: a preference between answers to different questions is meaningless.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollforge.recipes.base import (
    NOISE,
    Candidates,
    Fates,
    Ints,
    Mask,
    RecipeOptions,
    Selection,
    balanced,
    drop_duplicates,
    rank_in_group,
    reaches,
    screen,
)


def select_pairs(candidates: Candidates, options: RecipeOptions) -> Selection:
    """Pairs by the selected strategy; every other rollout is counted with a reason."""
    fates = screen(candidates, options)
    drop_duplicates(fates, candidates, options)
    may_win = fates.alive & candidates.flag("chosen_where", True)
    may_lose = fates.alive & candidates.flag("rejected_where", True)
    if options.high is not None:
        may_win &= reaches(candidates.reward, options.high)
    if options.low is not None:
        may_lose &= reaches(-candidates.reward, -options.low)
    has_tiers = options.high is not None or options.low is not None or "chosen_where" in candidates.flags
    has_tiers = has_tiers or "rejected_where" in candidates.flags
    if has_tiers:
        fates.drop(~(may_win | may_lose), "in neither tier")
    alive = np.flatnonzero(fates.alive)
    order = candidates.best_first(alive, options.seed)
    if options.strategy == "inwards" and not has_tiers:
        pairs = _inwards(candidates.group[order], order)
    else:
        pairs = _by_group(candidates, options, order, may_win, may_lose)
    pairs, pair_counts = _usable(candidates, options, pairs)
    if candidates.balance is not None:
        chosen = pairs[:, 0]
        pairs = pairs[balanced(candidates.balance[chosen], candidates.ties(options.seed)[chosen])]
    _settle(fates, candidates, options, pairs)
    settings = {"min_gap": options.min_gap, "strategy": options.strategy, "pairs": pair_counts}
    return Selection("pair", pairs, fates.counts(), settings=settings, fate_of=fates.codes())


def _inwards(group: Ints, order: Ints) -> Ints:
    """Best with worst, second best with second worst, and so on, from sorted rollouts; vectorised over groups."""
    if not len(order):
        return np.empty((0, 2), dtype=np.int64)
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    sizes = np.diff(np.r_[starts, len(group)])
    start, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
    rank = np.arange(len(group)) - start
    upper = rank < size // 2
    partner = start[upper] + size[upper] - 1 - rank[upper]
    return np.stack([order[upper], order[partner]], axis=1)


def _by_group(
    candidates: Candidates, options: RecipeOptions, order: Ints, may_win: np.ndarray, may_lose: np.ndarray
) -> Ints:
    """Pairs of strategies that process one group at a time."""
    if not len(order):
        return np.empty((0, 2), dtype=np.int64)
    group = candidates.group[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    pairs: list[tuple[int, int]] = []
    for members in np.split(order, starts[1:]):
        winners = [int(i) for i in members if may_win[i]]
        losers = [int(i) for i in members[::-1] if may_lose[i]]
        pairs += _allowed(candidates, options, _proposals(candidates, options, winners, losers))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _proposals(
    candidates: Candidates, options: RecipeOptions, winners: list[int], losers: list[int]
) -> Iterator[tuple[int, int]]:
    """Candidate pairs of one task in order of preference; `winners` are sorted best first, `losers` worst first."""
    reward, ties = np.round(candidates.reward, 9), candidates.ties(options.seed)
    match options.strategy:
        case "inwards":
            yield from zip(winners, losers, strict=False)
        case "best":
            yield from ((winner, loser) for winner in winners[:1] for loser in losers)
        case "hardest":
            for winner in winners:
                worse = [loser for loser in losers if _may_pair(candidates, options, winner, loser)]
                yield from (
                    (winner, loser) for loser in sorted(worse, key=lambda i: (-reward[i], ties[i]))[:1]
                )
        case "all":
            both = [(winner, loser) for winner in winners for loser in losers]
            yield from sorted(
                both,
                key=lambda pair: (round(reward[pair[1]] - reward[pair[0]], 9), ties[pair[0]], ties[pair[1]]),
            )


def _allowed(
    candidates: Candidates, options: RecipeOptions, proposals: Iterator[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Candidate pairs that satisfy the limits on pairs per task and uses per rollout."""
    pairs: list[tuple[int, int]] = []
    uses: dict[int, int] = {}
    for winner, loser in proposals:
        if options.max_pairs is not None and len(pairs) >= options.max_pairs:
            break
        if not _may_pair(candidates, options, winner, loser):
            continue
        if options.max_uses is not None and max(uses.get(winner, 0), uses.get(loser, 0)) >= options.max_uses:
            continue
        uses[winner] = uses.get(winner, 0) + 1
        uses[loser] = uses.get(loser, 0) + 1
        pairs.append((winner, loser))
    return pairs


def _may_pair(candidates: Candidates, options: RecipeOptions, winner: int, loser: int) -> bool:
    """Whether two rollouts have the gap, differ, are expressible as a pair, and have similar lengths if required."""
    return bool(
        candidates.reward[winner] - candidates.reward[loser] >= _least_gap(options)
        and candidates.answer[winner] != candidates.answer[loser]
        and (winner, loser) not in candidates.barred
        and _are_of_like_length(candidates.chars[winner], candidates.chars[loser], options)
    )


def _are_of_like_length(one: Ints, other: Ints, options: RecipeOptions) -> Mask:
    if options.length_ratio is None:
        return np.ones(np.shape(one), dtype=bool)
    shorter = np.maximum(np.minimum(one, other), 1)
    return np.asarray(np.maximum(one, other) <= options.length_ratio * shorter + NOISE)


def _least_gap(options: RecipeOptions) -> float:
    """The smallest allowed gap: the option's value, up to rounding, and always above 0."""
    return max(options.min_gap - NOISE, NOISE)


def _usable(candidates: Candidates, options: RecipeOptions, pairs: Ints) -> tuple[Ints, dict[str, int]]:
    """Pairs that differ enough, and the number of excluded ones by reason."""
    chosen, rejected = pairs[:, 0], pairs[:, 1]
    gap = candidates.reward[chosen] - candidates.reward[rejected]
    wide = gap >= _least_gap(options)
    differs = candidates.answer[chosen] != candidates.answer[rejected]
    near = _are_of_like_length(candidates.chars[chosen], candidates.chars[rejected], options)
    is_usable = wide & differs & near
    if candidates.barred:
        is_usable &= np.array([tuple(pair) not in candidates.barred for pair in pairs.tolist()], dtype=bool)
    counts = {
        "considered": len(pairs),
        "gap too small": int((~wide).sum()),
        "same answer": int((wide & ~differs).sum()),
        "lengths too different": int((wide & differs & ~near).sum()),
    }
    pairs = pairs[is_usable]
    if options.max_pairs is not None and len(pairs):
        order = np.argsort(candidates.group[pairs[:, 0]], kind="stable")
        pairs = pairs[order][rank_in_group(candidates.group[pairs[order, 0]]) < options.max_pairs]
    return pairs, counts


def _settle(fates: Fates, candidates: Candidates, options: RecipeOptions, pairs: Ints) -> None:
    """Give each rollout outside every pair its reason."""
    used = np.zeros(len(candidates), dtype=bool)
    used[pairs.ravel()] = True
    alive = fates.alive
    size = int(candidates.group.max()) + 1 if len(candidates) else 0
    high, low = np.full(size, -np.inf), np.full(size, np.inf)
    members = np.bincount(candidates.group[alive], minlength=size)
    np.maximum.at(high, candidates.group[alive], candidates.reward[alive])
    np.minimum.at(low, candidates.group[alive], candidates.reward[alive])
    alone = members[candidates.group] < 2
    flat = ~(high - low >= _least_gap(options))[candidates.group] if size else alone
    for reason, barred in candidates.unpairable.items():
        fates.drop(~used & np.isin(np.arange(len(used)), barred), reason)
    fates.drop(~used & alone, "no partner")
    fates.drop(~used & flat, "gap too small")
    fates.drop(~used, "left without a pair")
