"""Axolotl: SFT and DPO rows as JSONL for its `chat_template` types.

Its loader parses argument and tool texts and drops nulls, so strings and uniform keys are safe. A preference row has one message
per side, so pairs are step pairs, and calls are written into the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from rollforge.conversations.messages import NOT_AN_OBJECT, ChatMessage, Inexpressible, is_object
from rollforge.conversations.shape import Shaping, shape, tools_in_system
from rollforge.conversations.tidy import Policies
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import Messages, RowColumn, RowTables, conversation, tools
from rollforge.exporters.contract import PlainMessage, message_problems
from rollforge.exporters.examples import Demonstration, Kind
from rollforge.exporters.form import Layout
from rollforge.exporters.snippets import config, fenced
from rollforge.exporters.writer import RowWriter
from rollforge.records import JsonFields

_TEXT = Shaping(arguments="text", tools="system", reasoning="think", keys="uniform")


def _parsable(example: Demonstration, write: RowWriter, column: str) -> object:
    """The conversation, checked: Axolotl's loader parses the arguments of every call and fails at the first that is no object."""
    _refuse_other_arguments(example.prompt)
    _refuse_other_arguments(example.answer)
    return conversation.value(example, write, column)


def _refuse_other_arguments(messages: list[ChatMessage]) -> None:
    for call in (call for message in messages for call in message.calls):
        if not call.is_checked and not is_object(call.arguments):
            raise Inexpressible(NOT_AN_OBJECT)
        call.is_checked = True


def _side(name: str) -> RowColumn:
    """The single message of one side: its last one."""
    return RowColumn(
        PlainMessage, lambda example, write, column: shape(getattr(example, name), write.form.shaping)[-1]
    )


class AxolotlExporter(Exporter):
    """Rows for `type: chat_template` and `type: chat_template.default`."""

    name = "axolotl"
    recipes = ("sft", "dpo")
    columns: ClassVar[RowTables] = {
        "demonstration": {"messages": RowColumn(Messages, _parsable), "tools": tools},
        "pair": {
            "messages": RowColumn(
                list[PlainMessage],
                lambda example, write, column: shape(
                    tools_in_system(example.prompt, example.tools, as_text=True), write.form.shaping
                ),
            ),
            "chosen": _side("chosen"),
            "rejected": _side("rejected"),
        },
    }
    shaping = Shaping(arguments="string", tools="string", reasoning="field", keys="uniform")
    containers = ("jsonl", "parquet")
    policies = Policies(ends_in_tool_result="cut")  # its loader warns of a last turn it cannot train
    pair_form = "step"
    keeps_arguments = True

    @classmethod
    def shaping_for(cls, kind: Kind) -> Shaping:
        return _TEXT if kind == "pair" else cls.shaping

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        if kind == "demonstration":
            return {}
        return {"arguments": ("text",), "tools": ("system",), "reasoning": ("think", "drop")}

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        yield from message_problems(row.messages, shaping, where="messages")
        if kind == "pair":
            if row.chosen == row.rejected:
                yield "chosen equals rejected"
            if row.chosen.role != "assistant" or row.rejected.role != "assistant":
                yield "a side is not the assistant's"

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        entry: JsonFields = {"type": "chat_template.default" if kind == "pair" else "chat_template"}
        entry["field_messages"] = "messages"
        if kind == "pair":
            entry |= {"field_chosen": "chosen", "field_rejected": "rejected"}
        else:
            entry |= {
                "field_tools": "tools",
                "field_thinking": "reasoning_content",
                "roles_to_train": ["assistant"],
            }
        wanted: JsonFields = {"rl": "dpo"} if kind == "pair" else {}
        for key, split in (("datasets", "train"), ("test_datasets", "validation")):
            if split in files:
                wanted[key] = [
                    {"path": name, "ds_type": name.rpartition(".")[2].replace("jsonl", "json"), **entry}
                    for name in files[split]
                ]
        return (
            config(wanted)
            + "\n\n"
            + fenced("sh", ["axolotl train config.yaml  # the lines above, and your model"])
        )
