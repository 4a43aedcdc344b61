"""Columns of exported rows, defined in one table per kind of example.

A column defines its type (used as Parquet type and as contract for reading back) and how to compute its value from an example.
Columns in this file are shared by several trainers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from rollforge.exporters.contract import ReadMessage
from rollforge.exporters.examples import Kind, Prompt
from rollforge.exporters.writer import RowWriter

Messages = list[ReadMessage]
"""A list of messages. If no message of a dataset has optional keys, it is read back as messages of role and content only."""
Tools = list[msgspec.Raw] | str | None


class RowColumn(NamedTuple):
    """One column of a row."""

    type: Any
    value: Callable[[Any, RowWriter, str], object]
    """(example, writer, column name) → value."""


Columns = Mapping[str, RowColumn]
RowTables = Mapping[Kind, Columns]
"""Kind of example → the columns of its row, in order."""


def field(name: str, kind: Any) -> RowColumn:
    """A column with an unchanged field of the example."""
    return RowColumn(kind, lambda example, write, column: getattr(example, name))


def number(name: str) -> RowColumn:
    """A column with one of the example's statistics, or null."""
    return RowColumn(float | None, lambda example, write, column: example.numbers.get(name))


def messages(name: str) -> RowColumn:
    """A column with a list of messages of the example."""
    return RowColumn(Messages, lambda example, write, column: write.messages(getattr(example, name), column))


conversation = RowColumn(
    Messages,
    lambda example, write, column: (
        write.prompt(example.prompt, column, example.tools) + write.messages(example.answer, column)
    ),
)
"""Prompt and answer as one list."""

prompt = RowColumn(
    Messages, lambda example, write, column: write.prompt(example.prompt, column, example.tools)
)
"""The prompt; tool schemas are in its system text if the form says so."""

bare_prompt = RowColumn(Messages, lambda example, write, column: write.prompt(example.prompt, column))
"""The prompt without tool schemas, which a prompt set has in a separate column."""

tools = RowColumn(Tools, lambda example, write, column: write.tools(example.tools))

STATISTICS = (
    "n_rollouts",
    "mean_reward",
    "std_reward",
    "min_reward",
    "max_reward",
    "pass_rate",
    "difficulty",
)
"""Reward statistics of a task; the same names in every prompt set."""

PROMPT_COLUMNS: dict[str, RowColumn] = {
    "ground_truth": field("ground_truth", str),
    "task_id": field("task", str),
    "data_source": field("source", str),
    "n_rollouts": number("n_rollouts")._replace(type=int),
    **{name: number(name) for name in STATISTICS[1:]},
    "tool_schemas": RowColumn(str, lambda example, write, column: (example.tools or b"").decode()),
    "task_fields": RowColumn(str, lambda example, write, column: example.fields.decode()),
}
"""Columns of every prompt set besides the prompt. They are in every row with one type, so that a loader that infers types from
the first rows reads all rows correctly.
"""


def nested(name: str, columns: Columns) -> RowColumn:
    """An object column made of other columns."""
    kind = msgspec.defstruct(
        name, [(key, column.type) for key, column in columns.items()], forbid_unknown_fields=True
    )

    def value(example: Prompt, write: RowWriter, column: str) -> dict[str, object]:
        return {key: inner.value(example, write, key) for key, inner in columns.items()}

    return RowColumn(kind, value)
