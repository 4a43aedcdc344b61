"""Experiences: records for trainers. `record` defines the record and its encoding, `from_rollout` makes records from rollout
rows.
"""

from __future__ import annotations

from rollforge.experience.from_rollout import RowSource, experiences_from_row
from rollforge.experience.record import Experience, Fidelity, from_bytes, from_row, to_bytes, to_row

__all__ = [
    "Experience",
    "Fidelity",
    "RowSource",
    "experiences_from_row",
    "from_bytes",
    "from_row",
    "to_bytes",
    "to_row",
]
