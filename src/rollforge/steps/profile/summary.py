"""This module says what the per-task numbers mean together: bands, learning signal, variance, and where to look first."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa

from rollforge import at_k, stats
from rollforge.index.grouped import ByTask, Floats, Ints
from rollforge.steps.profile.records import BANDS, Look, NoSignal, ProfileSummary, VarianceParts, Yield

YIELD_K = (2, 4, 8, 16, 32, 64)
FEW = 4
"""Fewer samples than this say nothing about how reward goes with length."""


def summarize(rows: ByTask, tasks: pa.Table, threshold: float, tolerance: float, look: int) -> ProfileSummary:
    """The summary of a profile."""
    index = rows.index
    reward = rows.one("reward")
    found = stats.summarize_groups(reward, rows.starts)
    difficulty = tasks.column("difficulty").to_pylist()
    signal = tasks.column("has_signal")
    of = len(signal) - signal.null_count
    has_signal = (found.max - found.min > tolerance) & (found.n > 1)
    without = of - int(has_signal.sum())
    length = rows.one("answer_chars")
    within = _within_correlation(rows, reward, length)
    parts = stats.variance_parts(found.mean, found.std, found.n)
    return ProfileSummary(
        run=", ".join(str(files.rollouts) for files in index.runs),
        tasks=tasks.num_rows,
        rollouts=len(rows),
        judged=int(found.n.sum()),
        expected=index.expected if rows.where is None else None,
        rejected_lines=index.rejected_lines,
        noted_lines=index.noted_lines,
        duplicates=index.duplicate_count,
        threshold=threshold,
        bands={band: difficulty.count(band) for band in BANDS},
        unjudged_tasks=difficulty.count(None),
        no_signal=NoSignal(tasks=without, share=without / of if of else None, of=of, tolerance=tolerance),
        group_yield=_yields(rows, reward, tolerance),
        variance=VarianceParts(
            between_tasks=parts.between, within_tasks=parts.within, intraclass=parts.intraclass
        ),
        tokens_per_success=_tokens_per_success(rows, reward, threshold),
        reward_against_length=within[0],
        look=_looks(
            rows, found, reward, length, within[1], threshold=threshold, tolerance=tolerance, most=look
        ),
    )


def _tokens_per_success(rows: ByTask, reward: Floats, threshold: float) -> float | None:
    solved = int((reward >= threshold).sum())
    if not solved or "output_tokens" not in rows.index.numbers:
        return None
    return float(np.nansum(rows.one("output_tokens"))) / solved


def _yields(rows: ByTask, reward: Floats, tolerance: float) -> list[Yield]:
    """Expected group yield for the usual k, from how often each task's distinct rewards occur."""
    patterns: dict[tuple[int, ...], int] = {}
    widest = 0
    for size, _, ascending in at_k.groups_by_size(reward, rows.starts):
        widest = max(widest, size)
        for counts, times in _class_counts(ascending, tolerance):
            patterns[counts] = patterns.get(counts, 0) + times
    if widest < 2:
        return []
    yields = []
    for k in sorted({*YIELD_K, widest}):
        total = sum(patterns.values())
        value = (
            sum((at_k.group_yield([counts], k) or 0.0) * times for counts, times in patterns.items()) / total
        )
        is_exact = all(sum(counts) >= k for counts in patterns)
        yields.append(Yield(k=k, value=value, is_exact=is_exact))
    return yields


def _class_counts(ascending: Floats, tolerance: float) -> list[tuple[tuple[int, ...], int]]:
    """How often a task's distinct rewards occur (most frequent first), and how many tasks have that pattern."""
    size = ascending.shape[1]
    if size == 1:
        return [((1,), len(ascending))]
    steps = np.diff(ascending, axis=1) > tolerance
    packed = np.packbits(steps, axis=1)
    times = Counter(packed.view(f"V{packed.shape[1]}").ravel().tolist())
    found = []
    for bits, count in sorted(times.items()):
        cuts = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8), count=size - 1)) + 1
        found.append((tuple(sorted(np.diff(np.r_[0, cuts, size]).tolist(), reverse=True)), count))
    return found


def _within_correlation(rows: ByTask, reward: Floats, length: Floats) -> tuple[float | None, Floats]:
    """Correlation inside tasks: over all of them, and of each one (NaN where it cannot be told)."""
    known = ~np.isnan(reward) & ~np.isnan(length)
    one, two = np.where(known, reward, np.nan), np.where(known, length, np.nan)
    sums_one, counts = rows.sums(one)
    sums_two, _ = rows.sums(two)
    sizes = np.diff(np.append(rows.starts, len(rows)))
    with np.errstate(invalid="ignore", divide="ignore"):
        centred_one = one - np.repeat(sums_one / counts, sizes)
        centred_two = two - np.repeat(sums_two / counts, sizes)
        product, _ = rows.sums(centred_one * centred_two)
        square_one, _ = rows.sums(centred_one**2)
        square_two, _ = rows.sums(centred_two**2)
        each = np.where(counts >= FEW, product / np.sqrt(square_one * square_two), np.nan)
        spread = float(np.sqrt(square_one.sum() * square_two.sum()))
    each[~np.isfinite(each)] = np.nan
    return (float(product.sum()) / spread if spread > 0 else None), each


def _looks(
    rows: ByTask,
    found: Any,
    reward: Floats,
    length: Floats,
    correlation: Floats,
    *,
    threshold: float,
    tolerance: float,
    most: int,
) -> dict[str, list[Look]]:
    """The tasks that deserve a look, by reason, the most deserving first."""
    hits = np.where(np.isnan(reward), np.nan, (reward >= threshold).astype(np.float64))
    solved, judged = rows.sums(hits)
    chars, counted = rows.sums(length)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_chars, rate = chars / counted, solved / judged
    usual = stats.median(mean_chars[counted > 0]) if (counted > 0).any() else 0.0
    picks: dict[str, tuple[str, Floats, Any]] = {
        "highest_variance": ("rewards differ most", found.std, found.max - found.min > tolerance),
        "never_solved_long": (
            "never solved, answers are long", mean_chars, (judged > 0) & (solved == 0) & (mean_chars > usual),
        ),
        "solved_once": ("solved by one sample only", judged, (solved == 1) & (judged > 2)),
        "reward_against_length": ("reward goes with length", np.abs(correlation), np.abs(correlation) > 0.8),
    }  # fmt: skip
    looks: dict[str, list[Look]] = {}
    for reason, (why, ranked_by, chosen) in picks.items():
        places = np.flatnonzero(chosen & ~np.isnan(ranked_by))
        best: Ints = places[np.lexsort((rows.tasks[places], -ranked_by[places]))][:most]
        shown = correlation if reason == "reward_against_length" else ranked_by
        looks[reason] = [
            Look(
                task=int(rows.tasks[place]), why=why, pass_rate=float(rate[place]), mean_reward=float(found.mean[place]),
                std_reward=None if np.isnan(found.std[place]) else float(found.std[place]),
                judged=int(judged[place]), value=float(shown[place]),
            )
            for place in best.tolist()
        ]  # fmt: skip
    return looks
