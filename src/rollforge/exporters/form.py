"""The form of a dataset: how its rows are written. It is decided once, before the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rollforge.conversations.shape import Shaping

Container = Literal["jsonl", "parquet"]
Layout = Literal["messages", "completion"]
"""Columns of a demonstration: one list of messages, or prompt and completion separately."""


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How all rows of one dataset are written."""

    shaping: Shaping
    container: Container = "jsonl"
    layout: Layout = "messages"
    keys: Mapping[str, frozenset[str]] = {}
    """Column → the optional keys of its messages. Loaders infer the type of each column separately, so each has its own keys."""
    front: tuple[int, ...] = ()
    """Examples moved to the start of the first file, so that the loader infers the types of their columns."""
    changes: tuple[str, ...] = ()
    """Reasons for deviations from the requested form."""

    @property
    def is_columnar(self) -> bool:
        """Whether rows are written to typed columns, which need plain values instead of encoded JSON."""
        return self.container == "parquet"

    def writes_like(self, other: Form) -> bool:
        """Whether both forms produce the same bytes for every row, in the same order."""
        if (
            not self.is_columnar and self.shaping.keys == "present"
        ):  # each message has its own keys, independent of others
            other = msgspec.structs.replace(other, keys=self.keys)
        return self == msgspec.structs.replace(other, changes=self.changes)
