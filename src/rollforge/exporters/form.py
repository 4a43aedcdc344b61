"""The form of a dataset: how its rows are written, decided once and before the first row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from rollforge.conversations.shape import Shaping

Container = Literal["jsonl", "parquet"]
Layout = Literal["messages", "completion"]
"""Columns of a demonstration: one list of messages, or the prompt and the answer apart."""


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """How all rows of one dataset are written."""

    shaping: Shaping
    container: Container = "jsonl"
    layout: Layout = "messages"
    keys: Mapping[str, frozenset[str]] = {}
    """RowColumn → the optional keys of its messages. Loaders type columns one by one, so each column has its own keys."""
    front: tuple[int, ...] = ()
    """Examples moved to the front of the first file, so that the loader learns the types of their columns."""
    changes: tuple[str, ...] = ()
    """Why the form is not the one that was asked for."""

    @property
    def is_columnar(self) -> bool:
        """Whether rows go into typed columns, which take values and no encoded JSON."""
        return self.container == "parquet"

    def writes_like(self, other: Form) -> bool:
        """Whether every row has the same bytes in both forms, in the same order."""
        if (
            not self.is_columnar and self.shaping.keys == "present"
        ):  # a message has its own keys, whatever others have
            other = msgspec.structs.replace(other, keys=self.keys)
        return self == msgspec.structs.replace(other, changes=self.changes)
