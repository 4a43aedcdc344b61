"""This module hashes texts: a number below 2⁶³, the same from Python and from the compiled reader, on every machine.

It is the number that the bytes spell, modulo a prime that has nothing to do with bytes. So it tells apart what differs by
chance; it is no seal against somebody who makes two texts with the same hash on purpose.
"""

from __future__ import annotations

from collections.abc import Callable

PRIME = 7_244_019_458_077_122_899
"""The first after π/4 · 2⁶³."""
FACTOR = 0x2B7E_1516_28AE_D2A6
"""The digits of e: with it the hashes of short texts are as far apart as those of long ones."""

Bytes = bytes | memoryview


def hash_in_python(text: Bytes) -> int:
    """What defines the hash; takes a few times as long as the compiled way."""
    return int.from_bytes(text, "big") % PRIME * FACTOR % PRIME


hash_text: Callable[[Bytes], int]
try:
    from rollforge.index._rows import hash_text
except ImportError:  # installed without a compiler
    hash_text = hash_in_python
