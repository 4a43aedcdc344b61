"""LLaMA-Factory: SFT, DPO, reward-model and KTO rows in its sharegpt form, with `dataset_info.json`.

It requires strictly alternating turns (human or observation, then gpt or function_call), an even number of them. Results of
parallel calls are joined into one observation; a call that comes with text is written into that text, because the `function_call`
form would lose the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypedDict

import msgspec

from rollforge.conversations.messages import ChatMessage, FunctionCall, Inexpressible
from rollforge.conversations.shape import Shaping, object_bytes, shape
from rollforge.conversations.tidy import Policies
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import Columns, RowColumn, RowTables, field
from rollforge.exporters.examples import Demonstration, Kind, Labelled, Pair
from rollforge.exporters.form import Layout
from rollforge.exporters.snippets import config, fenced, files_of
from rollforge.exporters.writer import RowWriter
from rollforge.records import to_json
from rollforge.runtime.typed_decoding import decode_json

_ASKING = ("human", "observation")
_ANSWERING = ("gpt", "function_call")
_ROLES = {"user": "human", "tool": "observation", "assistant": "gpt"}


TurnLine = TypedDict("TurnLine", {"from": str, "value": object})
"""A sharegpt message, ready to encode."""


class DatasetEntryJson(TypedDict, total=False):
    """An entry of `dataset_info.json`."""

    file_name: str
    formatting: str
    columns: dict[str, str]
    ranking: bool


class ShareGptTurn(msgspec.Struct, forbid_unknown_fields=True, rename={"speaker": "from"}):
    """A sharegpt message."""

    speaker: Literal["human", "observation", "gpt", "function_call"]
    value: str


def _turns(example: Demonstration | Labelled | Pair, write: RowWriter, column: str) -> list[TurnLine]:
    """The turns without leading system text: all turns, or for a pair those of the prompt."""
    is_open = isinstance(example, Pair)
    messages = example.prompt if isinstance(example, Pair) else example.prompt + example.answer
    if messages and messages[0].role == "system":
        messages = messages[1:]
    turns = [_turn(message, write.form.shaping) for message in _join_results(messages)]
    for number, turn in enumerate(turns):
        if turn["from"] not in (_ANSWERING if number % 2 else _ASKING):
            raise Inexpressible("turns do not alternate")
    if len(turns) % 2 != is_open:
        raise Inexpressible(
            "the context ends with the assistant" if is_open else "the last turn is not the assistant's"
        )
    return turns


def _system(example: Demonstration | Labelled | Pair, write: RowWriter, column: str) -> str:
    prompt = example.prompt or ([] if isinstance(example, Pair) else example.answer)
    return prompt[0].content if prompt and prompt[0].role == "system" else ""


def _turn(message: ChatMessage, shaping: Shaping) -> TurnLine:
    if message.role == "system":
        raise Inexpressible("system message inside the conversation")
    if message.calls and not message.content:
        calls = [
            f'{{"name": {to_json(call.name).decode()}, "arguments": {_raw(call)}}}' for call in message.calls
        ]
        value = calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
        if message.reasoning and shaping.reasoning != "drop":
            value = f"<think>\n{message.reasoning}\n</think>\n\n{value}"
        return {"from": "function_call", "value": value}
    return {"from": _ROLES[message.role], "value": shape([message], shaping)[0]["content"]}


def _side(name: str) -> RowColumn:
    """The single turn of one side: its last message."""
    return RowColumn(
        ShareGptTurn,
        lambda example, write, column: _turn(getattr(example, name)[-1], write.form.shaping),
    )


def _flat_tools(tools: bytes | None) -> str:
    if tools is None:
        return ""
    chat = decode_json(tools, list[dict[str, msgspec.Raw]])
    return to_json([tool["function"] for tool in chat]).decode()


_CONVERSATION: Columns = {
    "conversations": RowColumn(list[ShareGptTurn], _turns),
    "system": RowColumn(str, _system),
    "tools": RowColumn(str, lambda example, write, column: _flat_tools(example.tools)),
}


class LlamaFactoryExporter(Exporter):
    """Rows for the stages sft, dpo, rm and kto."""

    name = "llama-factory"
    recipes = ("sft", "dpo", "kto", "rm")
    columns: ClassVar[RowTables] = {
        "demonstration": _CONVERSATION,
        "pair": {**_CONVERSATION, "chosen": _side("chosen"), "rejected": _side("rejected")},
        "labelled": {**_CONVERSATION, "label": field("label", bool)},
    }
    shaping = Shaping(arguments="text", tools="string", reasoning="think", keys="present")
    containers = ("jsonl", "parquet")
    policies = Policies(ends_in_tool_result="cut", unanswered_call="keep", assistant_first="refuse")
    pair_form = "step"

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        return {"arguments": ("text",), "tools": ("string",), "reasoning": ("think", "drop")}

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        for number, turn in enumerate(row.conversations):
            if turn.speaker not in (_ANSWERING if number % 2 else _ASKING):
                yield f"turn {number} is {turn.speaker}, out of turn"
        if len(row.conversations) % 2 != (kind == "pair"):
            yield f"{len(row.conversations)} turns"
        if kind == "pair":
            if row.chosen == row.rejected:
                yield "chosen equals rejected"
            if row.chosen.speaker not in _ANSWERING or row.rejected.speaker not in _ANSWERING:
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
        wanted = {
            "stage": recipe,
            "dataset_dir": ".",
            "dataset": ",".join(_entry_names("train", files_of(files))),
            "template": "YOUR_TEMPLATE",
        }
        command = "llamafactory-cli train config.yaml  # the lines above, and your model; dataset_info.json is beside the data"
        return config(wanted) + "\n\n" + fenced("sh", [command])

    def companions(self, kind: Kind, files: Mapping[str, list[str]]) -> dict[str, str]:
        columns = {"messages": "conversations", "system": "system", "tools": "tools"}
        if kind == "pair":
            columns |= {"chosen": "chosen", "rejected": "rejected"}
        if kind == "labelled":
            columns["kto_tag"] = "label"
        entries: dict[str, DatasetEntryJson] = {}
        for split, names in files.items():
            for entry_name, name in zip(_entry_names(split, names), names, strict=True):
                entry: DatasetEntryJson = {"file_name": name, "formatting": "sharegpt", "columns": columns}
                if kind == "pair":
                    entry["ranking"] = True
                entries[entry_name] = entry
        return {"dataset_info.json": msgspec.json.format(to_json(entries), indent=2).decode() + "\n"}


def _entry_names(split: str, names: list[str]) -> list[str]:
    """Names of a split's files in `dataset_info.json`."""
    return [split] if len(names) == 1 else [f"{split}_{number}" for number in range(len(names))]


def _raw(call: FunctionCall) -> str:
    return bytes(object_bytes(call)).decode()


def _join_results(messages: list[ChatMessage]) -> Iterator[ChatMessage]:
    """Merge adjacent tool results into one."""
    held: ChatMessage | None = None
    for message in messages:
        if message.role == "tool" and held is not None:
            held = ChatMessage("tool", f"{held.content}\n{message.content}", call_id=held.call_id)
        elif message.role == "tool":
            held = message
        else:
            if held is not None:
                yield held
                held = None
            yield message
    if held is not None:
        yield held
