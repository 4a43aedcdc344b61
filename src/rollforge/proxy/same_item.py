"""Decides whether two conversation items are the same although an agent rewrote one of them.

Agents parse the model's output and serialise it again: arguments with other spaces and key order, missing text as null or "",
renamed call ids, omitted reasoning. Such items are the same. Whether their tokens are the same can only be decided from token
ids.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollforge.conversations.apis.messages_api import input_of
from rollforge.json_shapes import ItemJson, without
from rollforge.records import content_text, to_json

ItemKey = tuple[str, ...]
"""A key that is equal for items that are the same."""

_sorted_json = msgspec.json.Encoder(order="sorted").encode


def item_keys(items: Iterable[ItemJson]) -> list[ItemKey]:
    """Keys of the items that a later prompt repeats, without the model's reasoning and empty texts."""
    return [key for item in items if (key := item_key(item)) is not None]


def item_key(item: ItemJson) -> ItemKey | None:
    """Key of an item; None for an item that agents may omit."""
    kind = item.get("type") or "message"
    if kind == "reasoning":
        return None
    if kind == "function_call":
        return ("call", str(item.get("name") or ""), canonical_arguments(item.get("arguments")))
    if kind == "function_call_output":
        output = item.get("output")
        return ("output", output if isinstance(output, str) else _content(output))
    if kind == "message":
        role, text = str(item.get("role") or "assistant"), _content(item.get("content"))
        return None if role == "assistant" and not text else ("message", role, text)
    rest = without(item, ("id", "call_id", "status"))
    return (str(kind), _sorted_json(rest).decode())


def canonical_arguments(arguments: object) -> str:
    """The arguments as sorted JSON; an empty text becomes an empty object.

    Other text is wrapped in an object as in Anthropic's API, whose agents can only repeat objects.
    """
    if isinstance(arguments, str):
        arguments = input_of(arguments if arguments.strip() else None)
    return _sorted_json(arguments if arguments is not None else {}).decode()


def _content(content: object) -> str:
    """The text of a content, with non-text parts such as images included."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return to_json(content).decode()
    others = [
        part
        for part in content
        if not (isinstance(part, dict) and isinstance(part.get("text") or part.get("refusal"), str))
    ]
    refusals = "".join(str(part.get("refusal") or "") for part in content if isinstance(part, dict))
    text = content_text(content) + refusals
    others = [part for part in others if not (isinstance(part, dict) and part.get("text") == "")]
    return text + (_sorted_json(others).decode() if others else "")
