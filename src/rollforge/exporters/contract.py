"""Types and rules of written messages, applied when a file is read back.

Nothing here uses the code that wrote the messages: a shared mistake would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import msgspec

from rollforge.conversations.shape import Shaping


class ReadFunction(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The function of a written call."""

    name: str
    arguments: msgspec.Raw


class ReadCall(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A written call."""

    id: str
    type: Literal["function"]
    function: ReadFunction


class ReadMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A written message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Any]
    """A text, or a list of parts if images are passed through."""
    reasoning_content: msgspec.Raw = msgspec.Raw(b"null")
    tool_calls: list[ReadCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


class PlainMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A written message with only role and text."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Any]
    tool_calls: ClassVar[None] = None


def message_problems(
    messages: Sequence[Any], shaping: Shaping, *, where: str, ends_in: tuple[str, ...] | None = None
) -> Iterator[str]:
    """Contract violations in a list of messages of column `where`."""
    if not messages:
        yield f"{where} is empty"
        return
    if ends_in is not None and messages[-1].role not in ends_in:
        yield f"{where} ends with role {messages[-1].role}"
    for message in messages:
        if message.tool_calls:
            yield from _call_problems(message, message.tool_calls, shaping, where)


def _call_problems(message: Any, calls: Sequence[ReadCall], shaping: Shaping, where: str) -> Iterator[str]:
    if message.role != "assistant":
        yield f"{where} has a call in a message of role {message.role}"
    first = b"{" if shaping.arguments == "object" else b'"'
    for call in calls:
        raw = bytes(call.function.arguments).lstrip()
        if not raw.startswith(first):
            yield f"{where} has call arguments that are not {'an object' if first == b'{' else 'a string'}"


def struct(name: str, **fields: Any) -> Any:
    """A row type with exactly these columns, all required."""
    return msgspec.defstruct(name, list(fields.items()), forbid_unknown_fields=True, gc=False)
