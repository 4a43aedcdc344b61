"""This module says when two prompts are the same: by a hash in which key order, white space and spelling do not matter.

A prompt given as text, as Responses items or as chat messages hashes alike when it says the same.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from rollforge.index.hashes import hash_text

_canonical = msgspec.json.Encoder(order="sorted").encode


def prompt_hash(prompt: object, instructions: str | None = None) -> int | None:
    """The hash of a prompt (text or items), with its instructions as a first system message; None for an empty one."""
    items = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(items, list) or not items:
        return None
    plain = [_plain(item) for item in items]
    if instructions:
        plain.insert(0, {"role": "system", "content": instructions})
    return hash_text(_canonical(plain))


def _plain(item: object) -> object:
    """The item without what says nothing: nulls, the default type, a lone text part's wrapping."""
    if not isinstance(item, dict):
        return item
    kept = {key: value for key, value in item.items() if value is not None}
    if kept.get("type") == "message":
        del kept["type"]
    content = kept.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.get("type") in ("input_text", "text") and isinstance(part.get("text"), str):
            kept["content"] = part["text"]
    return kept


def split_messages(messages: object) -> tuple[list[Any], list[Any]]:
    """A conversation as (what was asked, what was answered): the answer begins after the last user message.

    What follows the first assistant message after it (tool calls, tool answers, more assistant messages) is the answer too.
    """
    if not isinstance(messages, list):
        raise TypeError("expected an array of messages")
    for number in range(len(messages), 0, -1):
        role = messages[number - 1].get("role") if isinstance(messages[number - 1], dict) else None
        if role in ("user", "system", "developer"):
            return messages[:number], messages[number:]
    return [], messages


def as_messages(raw: Raw | None, role: str) -> list[Any]:
    """`prompt` or `completion` of a chat row: a text or a list of messages, as messages."""
    value = msgspec.json.decode(raw) if raw is not None else None
    if value is None:
        return []
    return value if isinstance(value, list) else [{"role": role, "content": value}]
