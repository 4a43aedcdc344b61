"""Measured ratios beside their limits, one line each: met or not."""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """One ratio and what it must be."""

    name: str
    measured: float
    limit: float
    is_floor: bool = False
    """The ratio must be at least the limit; otherwise at most."""

    @property
    def is_met(self) -> bool:
        return self.measured >= self.limit if self.is_floor else self.measured <= self.limit


def share(name: str, ours: float, theirs: float, limit: float) -> Limit:
    """How many times less ours takes than theirs: 1/50 is written as 50 and must be at least that."""
    return Limit(f"{name}: 1/N of the baseline, N", theirs / ours, limit, is_floor=True)


def show(limits: list[Limit]) -> bool:
    """Print the table; whether every limit is met."""
    width = max(len(one.name) for one in limits)
    print(f"{'limit':<{width}}  measured          wanted")
    for one in limits:
        wanted = f"{'>=' if one.is_floor else '<='} {one.limit:g}"
        print(
            f"{one.name:<{width}}  {one.measured:>8.2f}  {wanted:>14}  {'met' if one.is_met else 'NOT MET'}"
        )
    return all(one.is_met for one in limits)
