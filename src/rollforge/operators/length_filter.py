"""Keeps experiences whose response length lies between `min` and `max`, in tokens or characters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, sift, spread


class LengthFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A band of lengths, both ends included."""

    min: int | None = None
    max: int | None = None
    unit: Literal["tokens", "chars"] = "tokens"

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        outcome = sift(experiences, self._reason)
        lengths = [length for length in map(self._length, experiences) if length is not None]
        outcome.metrics = spread("length", lengths)
        return outcome

    def _length(self, experience: Experience) -> int | None:
        return len(experience.response) if self.unit == "chars" else experience.response_length

    def _reason(self, experience: Experience) -> str | None:
        length = self._length(experience)
        if length is None:
            return "unknown_length"
        if self.min is not None and length < self.min:
            return "too_short"
        return "too_long" if self.max is not None and length > self.max else None
