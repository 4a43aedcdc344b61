"""Seeded random draws that depend only on named parts, never on a clock or on earlier draws.

Two servers with the same seed draw the same numbers for the same parts, in any order and after any restart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct
from typing import TypeVar

T = TypeVar("T")

_EIGHT = Struct(">8Q")
_TO_UNIT = 2.0**-53


def digest(*parts: object) -> int:
    """A stable 64-bit hash of the parts; Python's `hash()` differs between processes."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class Chance:
    """A stream of random draws that is determined by its parts.

    Draws come from a hash of the parts, eight at a time. Starting a stream costs a tenth of seeding `random.Random`, and each
    request starts several.
    """

    __slots__ = ("_key", "_left")

    def __init__(self, *parts: object) -> None:
        self._key = blake2b("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()
        self._left = list(_EIGHT.unpack(self._key))

    def _draw(self) -> float:
        """The next number in [0, 1)."""
        if not self._left:
            self._key = blake2b(self._key).digest()
            self._left = list(_EIGHT.unpack(self._key))
        drawn: int = self._left.pop()
        return (drawn >> 11) * _TO_UNIT

    def happens(self, probability: float) -> bool:
        """True with the given probability."""
        return self._draw() < probability

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self._draw()

    def between(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return low + int(self._draw() * (high - low + 1))

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, with equal probability."""
        return choices[int(self._draw() * len(choices))]

    def normal(self) -> float:
        """A draw from the standard normal distribution."""
        return math.sqrt(-2 * math.log(1 - self._draw())) * math.cos(2 * math.pi * self._draw())

    def lognormal(self, median: float, spread: float) -> float:
        """A positive number around `median`; `spread` is the standard deviation of its logarithm."""
        return median * math.exp(spread * self.normal()) if spread else median

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in random order."""
        return [
            item
            for _, item in sorted(((self._draw(), position), item) for position, item in enumerate(items))
        ]
