"""LLaMA-Factory: SFT, DPO, reward-model and KTO rows in its sharegpt form, with `dataset_info.json`.

It wants strict turns: human or observation, then gpt or function_call, even in number. Results of parallel calls are joined into one
observation; a call that comes with text is written in that text, because its own form would lose the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from rollforge.exporters.base import Exporter
from rollforge.exporters.contract import struct
from rollforge.exporters.examples import Demonstration, Kind, Labelled, Pair
from rollforge.exporters.messages import Call, Inexpressible, Message
from rollforge.exporters.shape import Shaping, object_bytes, shape, unshape
from rollforge.exporters.snippets import config, fenced, files_of
from rollforge.exporters.tidy import Policies
from rollforge.records import JsonObject, to_json

_ASKING = ("human", "observation")
_ANSWERING = ("gpt", "function_call")
_ROLES = {"user": "human", "tool": "observation", "assistant": "gpt"}
_BACK = {"human": "user", "observation": "tool", "gpt": "assistant", "function_call": "assistant"}


class Turn(msgspec.Struct, forbid_unknown_fields=True, rename={"speaker": "from"}):
    """A sharegpt message."""

    speaker: Literal["human", "observation", "gpt", "function_call"]
    value: str


class LlamaFactoryExporter(Exporter):
    """Rows for the stages sft, dpo, rm and kto."""

    name = "llama-factory"
    recipes = ("sft", "dpo", "kto", "rm")
    shaping = Shaping(arguments="text", tools="string", reasoning="think", keys="present")
    containers = ("jsonl", "parquet")
    policies = Policies(ends_in_tool_result="cut", unanswered_call="keep", assistant_first="refuse")
    pair_form = "step"

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        return {"arguments": ("text",), "tools": ("string",), "reasoning": ("think", "drop")}

    def demonstration(self, example: Demonstration) -> JsonObject:
        return self._conversation(example.prompt + example.answer, example.tools)

    def pair(self, example: Pair) -> JsonObject:
        row = self._conversation(example.prompt, example.tools, is_open=True)
        return {**row, "chosen": self._turn(example.chosen[-1]), "rejected": self._turn(example.rejected[-1])}

    def labelled(self, example: Labelled) -> JsonObject:
        row = self._conversation(example.prompt + example.answer, example.tools)
        return {**row, "label": example.label}

    def _conversation(
        self, messages: list[Message], tools: bytes | None, *, is_open: bool = False
    ) -> JsonObject:
        system = ""
        if messages and messages[0].role == "system":
            system, messages = messages[0].content, messages[1:]
        turns = [self._turn(message) for message in _join_results(messages)]
        for number, turn in enumerate(turns):
            if turn["from"] not in (_ANSWERING if number % 2 else _ASKING):
                raise Inexpressible("turns do not alternate")
        if len(turns) % 2 != is_open:
            raise Inexpressible(
                "the last turn is not the assistant's"
                if not is_open
                else "the context ends with the assistant"
            )
        return {"conversations": turns, "system": system, "tools": _flat_tools(tools)}

    def _turn(self, message: Message) -> JsonObject:
        if message.role == "system":
            raise Inexpressible("system message inside the conversation")
        if message.calls and not message.content:
            calls = [
                f'{{"name": {to_json(call.name).decode()}, "arguments": {_raw(call)}}}'
                for call in message.calls
            ]
            value = calls[0] if len(calls) == 1 else f"[{', '.join(calls)}]"
            if message.reasoning and self.shape_as.reasoning != "drop":
                value = f"<think>\n{message.reasoning}\n</think>\n\n{value}"
            return {"from": "function_call", "value": value}
        return {"from": _ROLES[message.role], "value": shape([message], self.shape_as)[0]["content"]}

    def row_type(self, recipe: str, kind: Kind) -> Any:
        columns: dict[str, Any] = {"conversations": list[Turn], "system": str, "tools": str}
        if kind == "pair":
            columns |= {"chosen": Turn, "rejected": Turn}
        if kind == "labelled":
            columns["label"] = bool
        return struct("LlamaFactoryRow", **columns)

    def problems(self, recipe: str, kind: Kind, row: Any) -> Iterator[str]:
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

    def back(self, row: JsonObject) -> dict[str, list[Message]]:
        system = [Message("system", row["system"])] if row["system"] else []
        found = {"messages": system + [_message(turn) for turn in row["conversations"]]}
        if "chosen" in row:
            found = {
                "prompt": found["messages"],
                "chosen": [_message(row["chosen"])],
                "rejected": [_message(row["rejected"])],
            }
        return found

    def arrow_schema(self, recipe: str, kind: Kind) -> Any:
        import pyarrow as pa

        from rollforge.exporters.arrow import schema

        turn = pa.struct([("from", pa.string()), ("value", pa.string())])
        columns: dict[str, Any] = {"conversations": pa.list_(turn), "system": "string", "tools": "string"}
        if kind == "pair":
            columns |= {"chosen": turn, "rejected": turn}
        if kind == "labelled":
            columns["label"] = "bool"
        return schema(**columns)

    def snippet(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> str:
        wanted = {
            "stage": recipe,
            "dataset_dir": ".",
            "dataset": ",".join(_entry_names("train", files_of(files))),
            "template": "YOUR_TEMPLATE",
        }
        command = "llamafactory-cli train config.yaml  # the lines above, and your model; dataset_info.json is beside the data"
        return config(wanted) + "\n\n" + fenced("sh", [command])

    def companions(self, recipe: str, kind: Kind, files: Mapping[str, list[str]]) -> dict[str, str]:
        columns = {"messages": "conversations", "system": "system", "tools": "tools"}
        if kind == "pair":
            columns |= {"chosen": "chosen", "rejected": "rejected"}
        if kind == "labelled":
            columns["kto_tag"] = "label"
        entries: JsonObject = {}
        for split, names in files.items():
            for entry_name, name in zip(_entry_names(split, names), names, strict=True):
                entry: JsonObject = {"file_name": name, "formatting": "sharegpt", "columns": columns}
                if kind == "pair":
                    entry["ranking"] = True
                entries[entry_name] = entry
        return {"dataset_info.json": msgspec.json.format(to_json(entries), indent=2).decode() + "\n"}


def _entry_names(split: str, names: list[str]) -> list[str]:
    """What `dataset_info.json` calls the files of a split."""
    return [split] if len(names) == 1 else [f"{split}_{number}" for number in range(len(names))]


def _raw(call: Call) -> str:
    return bytes(object_bytes(call)).decode()


def _join_results(messages: list[Message]) -> Iterator[Message]:
    """Neighbouring tool results as one."""
    held: Message | None = None
    for message in messages:
        if message.role == "tool" and held is not None:
            held = Message("tool", f"{held.content}\n{message.content}", call_id=held.call_id)
        elif message.role == "tool":
            held = message
        else:
            if held is not None:
                yield held
                held = None
            yield message
    if held is not None:
        yield held


def _flat_tools(tools: bytes | None) -> str:
    if tools is None:
        return ""
    chat = msgspec.json.decode(tools, type=list[dict[str, msgspec.Raw]])
    return to_json([tool["function"] for tool in chat]).decode()


class _WrittenCall(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


_THINK = Shaping(arguments="text", reasoning="think")


def _message(turn: JsonObject) -> Message:
    role, value = _BACK[turn["from"]], turn["value"]
    message = unshape([{"role": role, "content": value}], _THINK)[0]
    if turn["from"] == "function_call":
        text = message.content
        written = msgspec.json.decode(text, type=_WrittenCall | list[_WrittenCall])
        calls = written if isinstance(written, list) else [written]
        message.calls = [
            Call(f"call_{i}", call.name, bytes(call.arguments).decode()) for i, call in enumerate(calls)
        ]
        message.text = ""
    return message
