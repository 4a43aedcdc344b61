"""The messages behind a written row: the inverse of each exporter, for the round-trip tests only."""

from __future__ import annotations

import msgspec

from rollforge.conversations.messages import ChatMessage, FunctionCall
from rollforge.conversations.shape import Shaping, tools_from_system, unshape
from tests.builders import Row

_SPEAKERS = {"human": "user", "observation": "tool", "gpt": "assistant", "function_call": "assistant"}


class WrittenCall(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


def back(name: str, row: Row, shaping: Shaping) -> dict[str, list[ChatMessage]]:
    """Column → the messages that were written into it."""
    if name == "llama-factory":
        return _from_sharegpt(row)
    if name == "nemo-rl" and "completions" in row:
        chosen, rejected = (side["completion"] for side in row["completions"])
        row = {"prompt": row["context"], "chosen": chosen, "rejected": rejected}
    if name == "axolotl" and "chosen" in row:
        row = {"prompt": row["messages"], "chosen": [row["chosen"]], "rejected": [row["rejected"]]}
    found = {}
    for column in ("messages", "prompt", "chosen", "rejected", "completion", "input"):
        if isinstance(row.get(column), list):
            messages = unshape(row[column], shaping)
            if shaping.tools == "system":
                messages, _ = tools_from_system(messages)
            found[column] = messages
    return found


def _from_sharegpt(row: Row) -> dict[str, list[ChatMessage]]:
    system = [ChatMessage("system", row["system"])] if row["system"] else []
    messages = system + [_from_turn(turn) for turn in row["conversations"]]
    if "chosen" not in row:
        return {"messages": messages}
    return {
        "prompt": messages,
        "chosen": [_from_turn(row["chosen"])],
        "rejected": [_from_turn(row["rejected"])],
    }


def _from_turn(turn: Row) -> ChatMessage:
    shaping = Shaping(arguments="text", reasoning="think")
    message = unshape([{"role": _SPEAKERS[turn["from"]], "content": turn["value"]}], shaping)[0]
    if turn["from"] == "function_call":
        calls = msgspec.json.decode(message.content, type=WrittenCall | list[WrittenCall])
        calls = calls if isinstance(calls, list) else [calls]
        message.calls = [
            FunctionCall(f"call_{i}", call.name, bytes(call.arguments).decode())
            for i, call in enumerate(calls)
        ]
        message.text = ""
    return message
