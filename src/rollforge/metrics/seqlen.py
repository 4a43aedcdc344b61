"""Balance of a batch's tokens over data-parallel workers: `global_seqlen/*`.

Computed for consecutive chunks, and after balancing into parts of equal size by largest-difference partitioning (Karmarkar-Karp).
"""

from __future__ import annotations

import heapq

import numpy as np

from rollforge.metrics.moments import FloatArray


def seqlen_metrics(lengths: FloatArray, workers: int) -> dict[str, float]:
    """`min`, `max`, `minmax_diff`, `mean` of the chunks' token sums, and `balanced_min`, `balanced_max` after
    balancing."""
    workers = max(1, min(workers, len(lengths)))
    if len(lengths) % workers:
        return {}
    sums = lengths.reshape(workers, -1).sum(axis=1)
    balanced = [float(lengths[part].sum()) for part in balanced_parts(lengths, workers)]
    return {
        "global_seqlen/min": float(sums.min()),
        "global_seqlen/max": float(sums.max()),
        "global_seqlen/minmax_diff": float(sums.max() - sums.min()),
        "global_seqlen/balanced_min": min(balanced),
        "global_seqlen/balanced_max": max(balanced),
        "global_seqlen/mean": float(lengths.sum() / workers),
    }


def balanced_parts(lengths: FloatArray, parts: int) -> list[list[int]]:
    """Partition the rows into `parts` of equal size with approximately equal sums."""
    order = np.argsort(lengths, kind="stable").tolist()
    heap = []
    for start in range(0, len(order), parts):
        state = _sorted([(float(lengths[row]), [row]) for row in order[start : start + parts]])
        heap.append((_key(state), start, state))
    heapq.heapify(heap)
    serial = len(order)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        paired = zip(first, reversed(second), strict=True)
        merged = _sorted([(a + b, rows + more) for (a, rows), (b, more) in paired])
        serial += 1
        heapq.heappush(heap, (_key(merged), serial, merged))
    return [rows for _, rows in heap[0][2]]


def _sorted(state: list[tuple[float, list[int]]]) -> list[tuple[float, list[int]]]:
    return sorted(state, key=lambda part: part[0], reverse=True)


def _key(state: list[tuple[float, list[int]]]) -> tuple[float, float]:
    """Sort key: the widest spread first; ties by the larger maximum."""
    return (-(state[0][0] - state[-1][0]), -state[0][0])
