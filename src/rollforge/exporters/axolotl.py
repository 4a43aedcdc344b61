"""Axolotl: SFT and DPO rows as JSONL for its `chat_template` types.

Its loader parses argument and tool texts and drops nulls, so strings and uniform keys are safe. A preference uses one message
a side, so pairs are step pairs with calls written in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rollforge.exporters.contract import PlainMessage, ReadMessage, message_problems, struct
from rollforge.exporters.examples import Demonstration, Kind, Pair
from rollforge.exporters.guard import NOT_AN_OBJECT
from rollforge.exporters.guarded import GuardedExporter
from rollforge.exporters.messages import Inexpressible, Message, is_object
from rollforge.exporters.shape import Shaping, shape, tools_from_system, tools_in_system, unshape
from rollforge.exporters.snippets import config, fenced
from rollforge.exporters.tidy import Policies
from rollforge.records import JsonObject

_TEXT = Shaping(arguments="text", tools="system", reasoning="think", keys="uniform")


class AxolotlExporter(GuardedExporter):
    """Rows for `type: chat_template` and `type: chat_template.default`."""

    name = "axolotl"
    recipes = ("sft", "dpo")
    shaping = Shaping(arguments="string", tools="string", reasoning="field", keys="uniform")
    containers = ("jsonl", "parquet")
    policies = Policies(ends_in_tool_result="cut")  # its loader warns of a last turn it cannot train
    pair_form = "step"

    @classmethod
    def shaping_for(cls, kind: Kind) -> Shaping:
        return _TEXT if kind == "pair" else cls.shaping

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        if kind == "demonstration":
            return {}
        return {"arguments": ("text",), "tools": ("system",), "reasoning": ("think", "drop")}

    def messages(
        self, messages: list[Message], tools: bytes | None = None, *, column: str = "messages"
    ) -> list[Any]:
        for call in (call for message in messages for call in message.calls):
            if not call.is_checked and not is_object(call.arguments):
                raise Inexpressible(
                    NOT_AN_OBJECT
                )  # its loader parses every one, and stops at the first it cannot
            call.is_checked = True
        return super().messages(messages, tools, column=column)

    def demonstration(self, example: Demonstration) -> JsonObject:
        return {
            "messages": self.conversation(example.prompt, example.answer, example.tools),
            "tools": self.tools(example.tools),
        }

    def pair(self, example: Pair) -> JsonObject:
        return {
            "messages": shape(tools_in_system(example.prompt, example.tools, as_text=True), self.shape_as),
            "chosen": shape(example.chosen, self.shape_as)[-1],
            "rejected": shape(example.rejected, self.shape_as)[-1],
        }

    def row_type(self, recipe: str, kind: Kind) -> Any:
        if kind == "demonstration":
            message: Any = ReadMessage if self.keys or self.shape_as.keys == "present" else PlainMessage
            return struct("AxolotlSft", messages=list[message], tools=list[msgspec.Raw] | str | None)
        return struct("AxolotlPair", messages=list[PlainMessage], chosen=PlainMessage, rejected=PlainMessage)

    def problems(self, recipe: str, kind: Kind, row: Any) -> Iterator[str]:
        yield from message_problems(row.messages, self.shape_as, where="messages")
        if kind == "pair":
            if row.chosen == row.rejected:
                yield "chosen equals rejected"
            if row.chosen.role != "assistant" or row.rejected.role != "assistant":
                yield "a side is not the assistant's"

    def back(self, row: JsonObject) -> dict[str, list[Message]]:
        if "chosen" not in row:
            return super().back(row)
        context, _ = tools_from_system(unshape(row["messages"], _TEXT))
        return {
            "prompt": context,
            "chosen": unshape([row["chosen"]], _TEXT),
            "rejected": unshape([row["rejected"]], _TEXT),
        }

    def arrow_schema(self, recipe: str, kind: Kind) -> Any:
        from rollforge.exporters.arrow import messages_type, schema

        if kind == "demonstration":
            return schema(messages=messages_type(self.keys.get("messages", frozenset())), tools="string")
        plain = messages_type(frozenset())
        return schema(messages=plain, chosen=plain.value_type, rejected=plain.value_type)

    def snippet(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> str:
        entry: JsonObject = {"type": "chat_template.default" if kind == "pair" else "chat_template"}
        entry["field_messages"] = "messages"
        if kind == "pair":
            entry |= {"field_chosen": "chosen", "field_rejected": "rejected"}
        else:
            entry |= {
                "field_tools": "tools",
                "field_thinking": "reasoning_content",
                "roles_to_train": ["assistant"],
            }
        wanted: JsonObject = {"rl": "dpo"} if kind == "pair" else {}
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
