"""Drops experiences whose response was seen before: within the task, or anywhere in the run.

Responses are compared with runs of white space collapsed. The first one stays. Seen responses are remembered across steps as
8-byte digests. A resumed session starts with an empty memory, which affects only the scope `run`; an offline pass is exact.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec

from rollforge.experience import Experience
from rollforge.operators.base import Outcome, sift


class Dedupe(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Drops repeated responses."""

    scope: Literal["task", "run"] = "task"
    """`task`: compare answers within a task. `run`: compare answers across all tasks."""
    _seen: set[bytes] = msgspec.field(default_factory=set, name="_seen")

    def apply(self, experiences: Sequence[Experience]) -> Outcome:
        return sift(experiences, self._reason)

    def _reason(self, experience: Experience) -> str | None:
        text = " ".join(experience.response.split())
        if self.scope == "task":
            text = f"{experience.task}\0{experience.turn}\0{text}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        if digest in self._seen:
            return "duplicate"
        self._seen.add(digest)
        return None
