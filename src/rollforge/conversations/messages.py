"""Chat messages, independent of their source format and of trainers' key names.

Call arguments and tool schemas keep their bytes, because numbers are never parsed. Reading rows is in `reader`, repairing untidy
rollouts in `tidy`, choosing key names in `shape`.
"""

from __future__ import annotations

import re

import msgspec

from rollforge.conversations.texts import is_spelled_once
from rollforge.store.reading import UNREADABLE

NOT_AN_OBJECT = "call arguments are not a JSON object"


class Inexpressible(Exception):
    """The rollout cannot be written as chat messages; `str(error)` is the reason under which it is counted."""


class FunctionCall(msgspec.Struct, gc=False, eq=False):
    """A function call the model made."""

    id: str
    name: str
    arguments: str
    """The arguments as the model wrote them."""
    is_checked: bool = False
    """Whether the arguments are known to be a JSON object."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FunctionCall):
            return NotImplemented
        return (self.id, self.name, self.arguments) == (other.id, other.name, other.arguments)


class ChatMessage(msgspec.Struct, eq=False, gc=False):
    """One chat message, before any trainer's key names.

    A text stays encoded JSON (`raw`) until it is read: most texts are copied unchanged, and decoding and encoding them would
    dominate the run time.
    """

    role: str
    text: str | None = ""
    """None while the text is only in `raw`."""
    thought: str | None = None
    calls: list[FunctionCall] = []
    call_id: str | None = None
    """In a tool result: the id of the call that it answers."""
    name: str | None = None
    """In a tool result: the name of the called function, if the call is known."""
    images: list[str] = []
    """URLs of the images in the content, in order."""
    raw: msgspec.Raw | None = None
    raw_thought: msgspec.Raw | None = None

    @property
    def content(self) -> str:
        """The text, decoded."""
        if self.text is not None:
            return self.text
        text: str = msgspec.json.decode(self.raw or b'""', type=str)
        if self.raw is None or not is_spelled_once(self.raw):
            self.text = text  # encode it anew; otherwise `raw` already is the encoding of the text
        return text

    @property
    def reasoning(self) -> str | None:
        """The model's reasoning that precedes the message, decoded."""
        if self.thought is not None or self.raw_thought is None:
            return self.thought
        thought: str = msgspec.json.decode(self.raw_thought, type=str)
        if not is_spelled_once(self.raw_thought):
            self.thought = thought
        return thought

    @property
    def has_reasoning(self) -> bool:
        """Whether there is any reasoning text."""
        return bool(self.thought) or (self.raw_thought is not None and len(self.raw_thought) > 2)

    @property
    def is_blank(self) -> bool:
        """Whether the text is empty or white space."""
        if (
            self.text is None
            and self.raw is not None
            and len(self.raw) > 40
            and _HAS_TEXT.search(self.raw, 1, 40)
        ):
            return False
        return not self.content.strip()

    def add_text(self, text: str) -> None:
        """Append to the text."""
        self.text, self.raw = self.content + text, None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, ChatMessage) and self._parts() == other._parts()

    def _parts(self) -> tuple[object, ...]:
        return (self.role, self.content, self.reasoning, self.calls, self.call_id, self.name, self.images)


class TokenRecord(msgspec.Struct, gc=False):
    """The tokens that the server returned for one model call, as JSON arrays."""

    prompt_token_ids: msgspec.Raw
    generation_token_ids: msgspec.Raw
    generation_log_probs: msgspec.Raw

    @property
    def is_whole(self) -> bool:
        """Whether all three arrays are non-empty."""
        return all(
            len(array) > 2
            for array in (self.prompt_token_ids, self.generation_token_ids, self.generation_log_probs)
        )


class Conversation(msgspec.Struct, gc=False):
    """A rollout as chat messages."""

    prompt: list[ChatMessage]
    answer: list[ChatMessage]
    tools: bytes | None = None
    """Tool schemas as a JSON array in chat form, or None."""
    marks: frozenset[str] = frozenset()
    """Repairs and irregularities; the manifest counts each mark."""
    tokens: list[TokenRecord] = []

    @property
    def messages(self) -> list[ChatMessage]:
        return self.prompt + self.answer

    @property
    def asks_nothing(self) -> bool:
        """Whether the prompt has no text and no image."""
        return all(message.is_blank and not message.images for message in self.prompt)


_HAS_TEXT = re.compile(rb"[A-Za-z0-9]{3}|[^\x00-\x7f]{6}")
"""Bytes of a JSON string that prove text other than white space, even among escapes."""

_QUOTE = ord('"')


def is_text(raw: msgspec.Raw) -> bool:
    """Whether the JSON is a string."""
    return memoryview(raw)[0] == _QUOTE


def is_object(arguments: str) -> bool:
    """Whether the arguments are a JSON object."""
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (*UNREADABLE, UnicodeEncodeError):
        return False
