"""This module holds chat messages before any trainer has marked them: what a rollout said, whatever shape it was read from.

Call arguments and tool schemas stay the bytes they were: nothing here parses a number. It does not read rows (`reading`), does not
repair untidy rollouts (`tidy`) and does not choose key names (`shape`).
"""

from __future__ import annotations

import re

import msgspec

from rollforge.exporters.texts import is_spelled_once
from rollforge.store.reading import UNREADABLE


class Inexpressible(Exception):
    """The rollout cannot be said in chat messages; `str(error)` is the reason under which it is counted."""


class Call(msgspec.Struct, gc=False, eq=False):
    """A function call the model made."""

    id: str
    name: str
    arguments: str
    """The text as the model wrote it."""
    is_checked: bool = False
    """The arguments are known to be a JSON object."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Call):
            return NotImplemented
        return (self.id, self.name, self.arguments) == (other.id, other.name, other.arguments)


class Message(msgspec.Struct, eq=False, gc=False):
    """One chat message, before any trainer's key names.

    A text that no one has looked at stays the JSON it was read as (`raw`): most texts go from file to file unchanged, and decoding
    them to encode them again would be most of the work.
    """

    role: str
    text: str | None = ""
    """None while the text is only in `raw`."""
    thought: str | None = None
    calls: list[Call] = []
    call_id: str | None = None
    """On a tool result: the call it answers."""
    name: str | None = None
    """On a tool result: the function that was called, when the call is known."""
    images: list[str] = []
    """URLs of images that stood in the content, in order."""
    raw: msgspec.Raw | None = None
    raw_thought: msgspec.Raw | None = None

    @property
    def content(self) -> str:
        """What the message says."""
        if self.text is not None:
            return self.text
        text: str = msgspec.json.decode(self.raw or b'""', type=str)
        if self.raw is None or not is_spelled_once(self.raw):
            self.text = text  # else the raw text stays: it is what the decoded one would be written as
        return text

    @property
    def reasoning(self) -> str | None:
        """What the model thought before it."""
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
        """Whether the text says nothing."""
        if (
            self.text is None
            and self.raw is not None
            and len(self.raw) > 40
            and _SAYS.search(self.raw, 1, 40)
        ):
            return False
        return not self.content.strip()

    def add_text(self, text: str) -> None:
        """Say this too."""
        self.text, self.raw = self.content + text, None

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Message) and self._parts() == other._parts()

    def _parts(self) -> tuple[object, ...]:
        return (self.role, self.content, self.reasoning, self.calls, self.call_id, self.name, self.images)


class TokenRecord(msgspec.Struct, gc=False):
    """What the server returned for one model call: the exact tokens, as JSON arrays."""

    prompt_token_ids: msgspec.Raw
    generation_token_ids: msgspec.Raw
    generation_log_probs: msgspec.Raw

    @property
    def is_whole(self) -> bool:
        """Whether none of the three is empty."""
        return all(
            len(array) > 2
            for array in (self.prompt_token_ids, self.generation_token_ids, self.generation_log_probs)
        )


class Conversation(msgspec.Struct, gc=False):
    """A rollout as chat messages."""

    prompt: list[Message]
    answer: list[Message]
    tools: bytes | None = None
    """Tool schemas as a JSON array in chat form, or None."""
    marks: frozenset[str] = frozenset()
    """What was said differently or is untidy; counted, never hidden."""
    tokens: list[TokenRecord] = []

    @property
    def messages(self) -> list[Message]:
        return self.prompt + self.answer

    @property
    def asks_nothing(self) -> bool:
        """Whether the prompt has no message, or none that says or shows anything."""
        return all(message.is_blank and not message.images for message in self.prompt)


_SAYS = re.compile(rb"[A-Za-z0-9]{3}|[^\x00-\x7f]{6}")
"""Bytes of a JSON text that stand for more than white space, whatever is escaped around them."""

_QUOTE = ord('"')


def is_text(raw: msgspec.Raw) -> bool:
    """Whether the JSON is a string."""
    return memoryview(raw)[0] == _QUOTE


def is_object(arguments: str) -> bool:
    """Whether the model wrote a JSON object."""
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (*UNREADABLE, UnicodeEncodeError):
        return False
