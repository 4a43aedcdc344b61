"""Innocent explanations of a change of rewards along a run: other tasks, another agent, tasks sorted by difficulty.

A broken verifier changes rewards and nothing else. Checks that accuse it call `honest_reason` first. Each function returns a
clause for the finding, empty when the explanation does not apply.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np

from rollforge.checks.building_blocks.chance import superiority, superiority_error
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.finding import Location
from rollforge.statistics.stats import Floats, Ints

LEAST_TASKS = 8
"""Fewest tasks from which an order can be detected."""

STRONG_Z, WEAK_Z = (2.6, 4.0), (1.645, 2.0)
"""z scores for "tasks are sorted" and "answers have another length". One shuffled run in 200 looks sorted by the strong limit,
one in 20 by the weak one."""

DRIFT_Z, DRIFT_SURE = 1.0, 1.645
"""z score from which a drift counts as real, and the one-sided z of the bound at its end."""

LENGTH_SHIFT = 0.15
"""Minimal distance of P(longer) from 0.5 when answers of two stretches are compared."""


def timed(run: Evidence) -> Ints:
    """Judged positions in time order."""
    if "timed" not in run.shared:
        run.shared["timed"] = run.in_time[run.judged[run.in_time]]
    positions: Ints = run.shared["timed"]
    return positions


def when(run: Evidence, position: int) -> str:
    """Line and, where it is known, time of a rollout."""
    line = f"line {run.line[position]:,}"
    if math.isnan(run.started[position]):
        return line
    return f"{line}, {datetime.fromtimestamp(run.started[position], UTC):%Y-%m-%d %H:%M:%S} UTC"


def location_of(run: Evidence, first: int, last: int) -> Location:
    """A stretch of the run as a finding's location."""
    return {
        "first_line": int(run.line[first]),
        "last_line": int(run.line[last]),
        "task": int(run.task_id[first]),
        "rollout": int(run.rollout[first]),
        "at": None if math.isnan(run.started[first]) else float(run.started[first]),
    }


def width_around(run: Evidence) -> int:
    """Number of rollouts on either side to compare a stretch with: near ones, because tasks may be sorted by difficulty."""
    return max(400, 100 * run.samples)


def honest_reason(run: Evidence, inside: Ints, before: Ints, after: Ints, *, is_weak: bool = False) -> str:
    """An innocent reason why rollouts inside a stretch differ from those around it; empty if there is none.

    Args:
        is_weak: the evidence of a fault is weak, so weaker signs of an innocent reason suffice.
    """
    sorted_z, length_z = WEAK_Z if is_weak else STRONG_Z
    falls = bool(run.scaled[inside].mean() < 0.5)
    sides = [side for side in (before, after[::-1]) if len(np.unique(run.group[side])) >= LEAST_TASKS]
    if not sides:
        return "too few tasks are beside them to tell whether tasks are sorted"
    width = width_around(run)
    around = np.concatenate([before[-width:], after[:width]])
    # A sorted file has its extremes at its ends: in the middle, both sides must lead there.
    orders = [sorted_tasks(run, side, falls, sorted_z) for side in sides]
    is_sorted = orders[0] if all(orders) else ""
    return same_name(run, inside, around) or is_sorted or other_lengths(run, inside, around, length_z)


def same_name(run: Evidence, inside: Ints, around: Ints) -> str:
    """Whether exactly the rollouts inside the stretch belong to one agent or one family of tasks."""
    for kind in ("agent", *run.family_fields):
        names = run.agent if kind == "agent" else run.family(kind)
        codes = names.codes[inside]
        named_codes = codes[codes >= 0]
        if len(names.names) < 2 or not len(named_codes):
            continue
        code = int(np.bincount(named_codes).argmax())
        if (codes == code).mean() > 0.95 and (names.codes[around] == code).mean() < 0.05:
            return f"they are all of {kind} {names.names[code]!r}"
    return ""


def sorted_tasks(run: Evidence, side: Ints, falls: bool, sorted_z: float) -> str:
    """Whether tasks get steadily harder along these rollouts (easier if `falls` is False); the last ones are next to the stretch.

    Sorted tasks end in a stretch of equal rewards without any fault. A side on which all tasks score the same is inconclusive.
    """
    means, positions = task_means(run, side, run.scaled)
    if np.ptp(means) == 0:
        return "the rewards beside them are all alike too"
    correlation = float(np.corrcoef(_ranks(means), _ranks(positions))[0, 1])
    z = -correlation * math.sqrt(len(means) - 1) * (1 if falls else -1)
    return "tasks seem to be sorted by difficulty" if z > sorted_z else ""


def most_at_end(means: Floats, positions: Floats) -> float:
    """Upper bound for a task at the last position, extrapolating the drift over positions even if it is not significant.

    A drift too weak to prove that tasks are sorted still weakens the accusation.
    """
    n = len(means)
    centred = positions - positions.mean()
    spread = float((centred**2).sum())
    if n < 3 or spread == 0:
        return float(means.mean())
    slope = float((centred * means).sum()) / spread
    noise = math.sqrt(float(((means - means.mean() - slope * centred) ** 2).sum()) / (n - 2))
    if slope * math.sqrt(spread) <= DRIFT_Z * noise:
        return float(means.mean())
    reach = float(centred.max())
    return float(means.mean()) + slope * reach + DRIFT_SURE * noise * math.sqrt(1 / n + reach**2 / spread)


def task_means(run: Evidence, positions: Ints, values: Floats) -> tuple[Floats, Floats]:
    """Mean value and mean position of each task among these rollouts."""
    groups = run.group[positions]
    counts = np.bincount(groups, minlength=run.groups)
    sums = np.bincount(groups, weights=values[positions], minlength=run.groups)
    position_sums = np.bincount(groups, weights=np.arange(len(positions)), minlength=run.groups)
    has_rollouts = counts > 0
    return sums[has_rollouts] / counts[has_rollouts], position_sums[has_rollouts] / counts[has_rollouts]


def _ranks(values: Floats) -> Floats:
    _, codes, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Floats = (np.cumsum(counts) - (counts - 1) / 2)[codes]
    return ranks


def other_lengths(run: Evidence, inside: Ints, around: Ints, length_z: float) -> str:
    """Whether answers inside are much longer or shorter: then tasks or model changed too, not only the verdicts."""
    one, other = (part[~np.isnan(run.answer_chars[part])] for part in (around, inside))
    if not len(one) or not len(other):
        return ""
    above = superiority(run.answer_chars[one], run.answer_chars[other])
    error = superiority_error(len(np.unique(run.group[one])), len(np.unique(run.group[other])))
    if abs(above - 0.5) < max(LENGTH_SHIFT, length_z * error):
        return ""
    here, there = (np.median(run.answer_chars[part]) for part in (other, one))
    return f"their answers are of another length too (median {here:,.0f} against {there:,.0f} characters)"
