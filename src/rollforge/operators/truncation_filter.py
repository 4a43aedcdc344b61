"""Drops answers that were cut off at the token limit, or masks them: they stay in their group but are not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, sift


class TruncationFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Treatment of truncated answers; an answer with unknown finish reason is kept."""

    action: Literal["drop", "mask"] = "drop"

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        if self.action == "drop":
            return sift(experiences, lambda experience: "truncated" if experience.truncated else None)
        masked = sum(bool(experience.truncated) for experience in experiences)
        return Outcome(
            experiences=[_masked(experience) for experience in experiences], metrics={"masked": masked}
        )


def _masked(experience: Experience) -> Experience:
    if not experience.truncated:
        return experience
    info = {**experience.info, "masked": True}
    mask = None if experience.mask is None else np.zeros_like(experience.mask)
    return msgspec.structs.replace(experience, mask=mask, info=info)
