"""Exporter: one trainer's rows, as tables of columns, and the contract those rows must keep.

An exporter turns an example into a row; it reads no files and selects no rollouts. A member declares the supported recipes, a
table of columns per kind of example, defaults (form of arguments, tools and reasoning; policies for untidy rollouts), additional
rules for rows that are read back, and a loading snippet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from rollforge.conversations.shape import Shaping, Tools
from rollforge.conversations.tidy import Policies
from rollforge.errors import UsageError
from rollforge.exporters import EXPORTERS
from rollforge.exporters.columns import Columns, Messages, RowTables
from rollforge.exporters.contract import PlainMessage, message_problems, struct
from rollforge.exporters.examples import Example, Kind, Prompt
from rollforge.exporters.form import Container, Form, Layout
from rollforge.exporters.writer import RowWriter
from rollforge.records import JsonFields


class Exporter:
    """Writes rows for one trainer."""

    name: ClassVar[str]
    recipes: ClassVar[tuple[str, ...]]
    """Built-in recipes that the trainer supports; a recipe of another package is treated like the built-in one it resembles."""
    columns: ClassVar[RowTables] = {}
    completion_columns: ClassVar[Columns | None] = None
    """Columns for demonstrations whose answers are single messages, for trainers that compute loss on the completion only."""
    shaping: ClassVar[Shaping] = Shaping()
    policies: ClassVar[Policies] = Policies()
    container: ClassVar[Container] = "jsonl"
    containers: ClassVar[tuple[Container, ...]] = ("jsonl",)
    pair_form: ClassVar[Literal["whole", "step"]] = "whole"
    """`step` for trainers that would otherwise compute loss on tool results, or train only the last message."""
    is_raw: ClassVar[bool] = False
    """Whether rows are rollout lines copied without conversion."""
    has_task_rows: ClassVar[bool] = False
    """Whether a prompt is written as its task row instead of messages."""
    keeps_arguments: ClassVar[bool] = False
    """Whether call arguments are objects until the loader would damage one; then the whole dataset uses another form."""
    prompt_tools: ClassVar[Tools] = "string"
    """Form of tool schemas in a prompt set: a separate column unless it is `system`."""
    takes_images: ClassVar[bool] = False
    takes_groups: ClassVar[bool] = False
    """Whether the exporter can write offline scored groups."""

    @classmethod
    def shaping_for(cls, kind: Kind) -> Shaping:
        """Default message form for rows of this kind."""
        return cls.shaping

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        """Field of `Shaping` → allowed values for rows of this kind; a field that is not listed may have any value."""
        return {}

    @classmethod
    def containers_for(cls, kind: Kind) -> tuple[Container, ...]:
        """File types that the trainer can read for rows of this kind."""
        return cls.containers

    @classmethod
    def is_inferred(cls, kind: Kind) -> bool:
        """Whether the trainer's loader infers types from JSON rows of this kind, and so can change values."""
        return not cls.is_raw

    def table(self, kind: Kind, form: Form) -> Columns:
        """Columns of rows of this kind in this form."""
        if kind == "demonstration" and form.layout == "completion" and self.completion_columns is not None:
            return self.completion_columns
        return self.columns[kind]

    def row(self, example: Example, kind: Kind, write: RowWriter) -> JsonFields:
        """The example as a row for this trainer."""
        table = self.table(kind, write.form)
        return {name: column.value(example, write, name) for name, column in table.items()}

    def line(self, example: Example, kind: Kind, write: RowWriter) -> bytes:
        """The example as one JSONL line, without its newline."""
        if self.has_task_rows and isinstance(example, Prompt):
            return example.fields
        return msgspec.json.encode(self.row(example, kind, write))

    def frame(self, kind: Kind, value: float | bool) -> tuple[bytes, ...]:
        """For copied rows: the bytes before, between and after the lines of one row, with its gap or label."""
        raise NotImplementedError

    def row_type(self, kind: Kind, form: Form) -> Any:
        """The exact type for reading a row back; missing or additional fields break the contract."""
        columns = self.table(kind, form)
        is_plain = not form.keys and form.shaping.keys == "uniform"
        fields = {
            name: list[PlainMessage] if is_plain and column.type == Messages else column.type
            for name, column in columns.items()
        }
        return struct(f"{type(self).__name__}_{kind}", **fields)

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        """Contract violations of a row that has the right type; an exporter that names the answers of a pair otherwise compares them
        itself.
        """
        tables = [self.columns[kind], self.completion_columns or {}]
        for name in (name for table in tables for name, column in table.items() if column.type == Messages):
            if hasattr(row, name):
                yield from message_problems(getattr(row, name), shaping, where=name)
        has_both = kind == "pair" and hasattr(row, "chosen") and hasattr(row, "rejected")
        if has_both and row.chosen == row.rejected:
            yield "chosen equals rejected"

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        """Markdown with code that loads these files in this trainer.

        Args:
            has_verifier: Whether the manifest beside the files names the verifier, so that `rollforge.rewards` can provide the
                reward.
        """
        raise NotImplementedError

    def companions(self, kind: Kind, files: Mapping[str, list[str]]) -> dict[str, str]:
        """Additional files that the trainer reads beside the data."""
        return {}


def load_exporter(name: str) -> type[Exporter]:
    """The exporter called `name`."""
    exporter: type[Exporter] = EXPORTERS.load(name)
    return exporter


def refuse_unsupported(exporter: type[Exporter], recipe: str, like: str) -> None:
    """Raise if the trainer does not support the recipe, naming its recipes and other exporters.

    Args:
        like: the built-in recipe that `recipe` is, or whose kind of examples it makes.
    """
    if like in exporter.recipes:
        return
    others = [name for name in EXPORTERS.names() if like in load_exporter(name).recipes]
    raise UsageError(
        f"{exporter.name} cannot take {recipe} data; it takes {', '.join(exporter.recipes)}",
        hint=f"exporters that take {recipe}: {', '.join(others)}",
    )
