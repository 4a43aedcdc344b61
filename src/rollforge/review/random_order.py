"""The random order of rollouts for a seed: any prefix is a random sample."""

from __future__ import annotations


def random_order_sql(seed: int) -> str:
    """A SQL expression to order rollouts by, from their keys alone: the lines of a file may be in any order.

    DuckDB's `hash` maps zeros to 0, and it combines its last argument by XOR without mixing: `hash(task, rollout, seed)` puts
    task 0, sample 0 first for seed 0, and the same rollouts near the front for many seeds. The constant and the outer hash mix it.
    """
    return f"hash(hash(task, rollout, {int(seed)}, 'random order'))"
