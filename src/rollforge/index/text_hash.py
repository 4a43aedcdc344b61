"""Hashes of prompts and answers: non-cryptographic, 63 bits. Good for grouping, not against an adversary.

A prompt has the same hash as text, as Responses items and as chat messages; key order and JSON white space do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import xxhash

_canonical = msgspec.json.Encoder(order="sorted").encode


def text_hash(text: bytes | memoryview) -> int:
    """xxh3 of UTF-8 text without its lowest bit, so that it fits a signed 64-bit column."""
    return xxhash.xxh3_64_intdigest(text) >> 1


def text_hashes(texts: Iterable[bytes]) -> list[int]:
    """The hashes of many texts."""
    digest = xxhash.xxh3_64_intdigest
    return [digest(text) >> 1 for text in texts]


def prompt_hash(prompt: object, instructions: str | None = None) -> int | None:
    """The hash of a prompt (text or items), with its instructions as a first system message; None for an empty one."""
    items = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(items, list) or not items:
        return None
    plain = [_plain(item) for item in items]
    if instructions:
        plain.insert(0, {"role": "system", "content": instructions})
    return text_hash(_canonical(plain))


def _plain(item: object) -> object:
    """The item normalised: without nulls and default type, and with a single text part as text."""
    if not isinstance(item, dict):
        return item
    plain_item = {key: value for key, value in item.items() if value is not None}
    if plain_item.get("type") == "message":
        del plain_item["type"]
    content = plain_item.get("content")
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        part = content[0]
        if part.get("type") in ("input_text", "text") and isinstance(part.get("text"), str):
            plain_item["content"] = part["text"]
    return plain_item


def split_messages(messages: object) -> tuple[list[Any], list[Any]]:
    """Split a conversation into (prompt, answer). The answer begins after the last user, system or developer message.

    Everything after it (tool calls, tool results, more assistant messages) belongs to the answer.
    """
    if not isinstance(messages, list):
        raise TypeError("expected an array of messages")
    for number in range(len(messages), 0, -1):
        role = messages[number - 1].get("role") if isinstance(messages[number - 1], dict) else None
        if role in ("user", "system", "developer"):
            return messages[:number], messages[number:]
    return [], messages
