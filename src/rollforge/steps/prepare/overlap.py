"""Text similarity by word sequences: MinHash signatures for near duplicates, n-grams for contamination.

Both compare lower-case words without punctuation, so that formatting does not matter.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"\w+")
_SIZE = 64
_PRIME = np.uint64(4294967291)
_STEPS = np.arange(1, _SIZE + 1, dtype=np.uint64)
_FACTORS = (_STEPS * np.uint64(2654435761)) % _PRIME
_OFFSETS = (_STEPS * np.uint64(40503) + np.uint64(12345)) % _PRIME
SHINGLE = 3
BANDS = 16


def words(text: str) -> list[str]:
    """The words of a text, normalised for comparison."""
    return _WORD.findall(text.casefold())


def grams(tokens: Sequence[str], size: int) -> set[int]:
    """Hashes of every sequence of `size` words; of the whole text if it is shorter."""
    if len(tokens) <= size:
        return {zlib.crc32(" ".join(tokens).encode())} if tokens else set()
    return {zlib.crc32(" ".join(tokens[i : i + size]).encode()) for i in range(len(tokens) - size + 1)}


def signature(text: str) -> np.ndarray:
    """MinHash signature of word triples; the share of equal entries estimates the Jaccard similarity."""
    shingles = grams(words(text), SHINGLE)
    if not shingles:
        return np.zeros(_SIZE, dtype=np.uint64)
    hashes = np.fromiter(shingles, dtype=np.uint64, count=len(shingles)) % _PRIME
    return np.asarray(((hashes[:, None] * _FACTORS + _OFFSETS) % _PRIME).min(axis=0))


def similarity(a: np.ndarray, b: np.ndarray) -> float:
    """Estimated Jaccard similarity of the word triples of two texts."""
    return float(np.mean(a == b))


class SignatureIndex:
    """Locality-sensitive index of signatures: candidates share at least one band."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._kept: list[np.ndarray] = []
        self._by_band: dict[tuple[int, bytes], list[int]] = {}

    def has_near(self, own: np.ndarray) -> bool:
        """Whether a similar signature is in the index; otherwise this one is added."""
        width = _SIZE // BANDS
        bands = [(number, own[number * width : (number + 1) * width].tobytes()) for number in range(BANDS)]
        rivals = {rival for band in bands for rival in self._by_band.get(band, ())}
        if any(similarity(own, self._kept[rival]) >= self._threshold for rival in rivals):
            return True
        for band in bands:
            self._by_band.setdefault(band, []).append(len(self._kept))
        self._kept.append(own)
        return False


class Grams:
    """Word n-grams of evaluation prompts."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._long: set[int] = set()
        self._short: dict[int, set[int]] = {}

    def add(self, text: str) -> None:
        """Add a prompt; one shorter than `size` words matches only as a whole."""
        tokens = words(text)
        if len(tokens) >= self._size:
            self._long |= grams(tokens, self._size)
        elif tokens:
            self._short.setdefault(len(tokens), set()).update(grams(tokens, len(tokens)))

    def __len__(self) -> int:
        return len(self._long) + sum(map(len, self._short.values()))

    def overlaps(self, text: str) -> bool:
        """Whether the text has an n-gram of an evaluation prompt."""
        tokens = words(text)
        if not grams(tokens, self._size).isdisjoint(self._long) and len(tokens) >= self._size:
            return True
        return any(
            not grams(tokens, size).isdisjoint(eval_grams)
            for size, eval_grams in self._short.items()
            if len(tokens) >= size
        )
