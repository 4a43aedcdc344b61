"""When two items of a conversation are the same, although an agent wrote one of them anew.

Agents parse what the model said and write it again: arguments come back with other spaces and key order, an absent text as null or
"", call ids renamed, reasoning left out. All that is the same item. Whether the tokens are the same is another question, which only
token ids answer.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rollforge.conversations.apis.messages_api import input_of
from rollforge.json_shapes import ItemJson, without
from rollforge.records import content_text, to_json

ItemKey = tuple[str, ...]
"""Equal for items that are the same."""

_sorted_json = msgspec.json.Encoder(order="sorted").encode


def item_keys(items: Iterable[ItemJson]) -> list[ItemKey]:
    """The keys of the items that a later prompt repeats: reasoning and empty words of the model are left out."""
    return [key for item in items if (key := item_key(item)) is not None]


def item_key(item: ItemJson) -> ItemKey | None:
    """What makes the item the same as another; None for one that agents may leave out."""
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
    """The arguments as sorted JSON; nothing at all is an empty object.

    Text that is no JSON object becomes one as in Anthropic's API, whose agents can repeat nothing but objects.
    """
    if isinstance(arguments, str):
        arguments = input_of(arguments if arguments.strip() else None)
    return _sorted_json(arguments if arguments is not None else {}).decode()


def _content(content: object) -> str:
    """The text of a content; what is no text (an image) counts too."""
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
