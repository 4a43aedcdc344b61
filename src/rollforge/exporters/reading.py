"""This module reads rollout lines as conversations, in the Responses shape or in chat form.

A conversation is the prompt (`instructions` and `responses_create_params.input`) and the answer (`response.output`); a row in chat
form has them as `messages`, or as `prompt` and `completion`. The prompt of a task is read once: its rollouts share one list object.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rollforge.exporters.chat_rows import ChatRow, read_chat_row
from rollforge.exporters.items import ImagePolicy, Item, chat_tools, fold, tokens_of
from rollforge.exporters.messages import Conversation, Inexpressible, Message
from rollforge.store.reading import UNREADABLE


class _Params(msgspec.Struct, gc=False):
    input: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"null")
    instructions: str | None = None


class _Response(msgspec.Struct, gc=False):
    output: list[Item] | None = None


class Decoded(msgspec.Struct, gc=False):
    """A rollout line, as far as it is read."""

    responses_create_params: _Params
    response: _Response | None = None


_decode_row = msgspec.json.Decoder(Decoded).decode
_decode_chat_row = msgspec.json.Decoder(ChatRow).decode
_decode_items = msgspec.json.Decoder(str | list[Item] | None).decode

Lead = Callable[[list[Message]], list[Message]]
"""Puts the beginning of a prompt in order."""


class Reader:
    """Turns raw rollout lines into conversations, remembering the last prompts: a task's rollouts share one list object."""

    def __init__(
        self,
        *,
        images: ImagePolicy = "refuse",
        lead: Lead | None = None,
        is_careful: bool = False,
        has_tokens: bool = True,
        remembered: int = 512,
    ) -> None:
        """With `is_careful` every line is checked to be UTF-8: texts are passed on as they stand; `has_tokens` keeps tokens."""
        self._is_careful = is_careful
        self._has_tokens = has_tokens
        self._images = images
        self._lead = lead
        self._remembered = remembered
        self._prompts: dict[tuple[bytes, bytes, str | None], _Asked] = {}
        self._last: tuple[_Params, _Asked] | None = None

    def read(self, line: bytes) -> Conversation:
        """The conversation in one rollout line.

        Raises:
            Inexpressible: with the reason to count.
        """
        return self.converse(self.decode(line))

    def decode(self, line: bytes) -> Decoded | ChatRow:
        """The first half of `read`: the parts of the line that matter. Many lines are read faster one half at a time."""
        try:
            if self._is_careful:
                line.decode()
            return _decode_row(line)
        except UNREADABLE as error:
            if (chat := _chat_row(line)) is not None:
                return chat
            raise Inexpressible(_decode_reason(error)) from error

    def converse(self, row: Decoded | ChatRow) -> Conversation:
        """The second half of `read`: the parts as messages."""
        if isinstance(row, ChatRow):
            found = read_chat_row(row, self._images)
            found.prompt = self._lead(found.prompt) if self._lead else found.prompt
            return found
        prompt, tools, marks, call_names = self._prompt(row.responses_create_params)
        items = (row.response.output if row.response else None) or []
        seen: set[str] = set()
        answer = fold(items, call_names.copy(), seen, self._images)
        if not answer:
            seen.add("empty output")
        tokens = tokens_of(items) if self._has_tokens else []
        return Conversation(prompt, answer, tools, marks | seen if seen else marks, tokens)

    def read_prompt(self, params: bytes) -> Conversation:
        """The conversation of a task alone, from the bytes of its `responses_create_params`."""
        try:
            decoded = msgspec.json.decode(params, type=_Params)
        except UNREADABLE as error:
            raise Inexpressible(_decode_reason(error)) from error
        prompt, tools, marks, _ = self._prompt(decoded)
        return Conversation(prompt, [], tools, marks)

    def _prompt(self, params: _Params) -> _Asked:
        if self._last is not None and params == self._last[0]:
            return self._last[1]
        key = (bytes(params.input), bytes(params.tools), params.instructions)
        known = self._prompts.get(key)
        if known is None:
            if len(self._prompts) >= self._remembered:
                self._prompts.clear()
            messages, tools, marks = _read_prompt(params, self._images)
            messages = self._lead(messages) if self._lead else messages
            call_names = {call.id: call.name for message in messages for call in message.calls}
            known = self._prompts[key] = (messages, tools, marks, call_names)
        kept = _Params(msgspec.Raw(key[0]), msgspec.Raw(key[1]), params.instructions)
        self._last = (kept, known)
        return known


_Asked = tuple[list[Message], bytes | None, frozenset[str], dict[str, str]]
"""A prompt with its tools, its marks and the functions it calls by call id."""


def _chat_row(line: bytes) -> ChatRow | None:
    """The line as a row in chat form, if it is one."""
    try:
        row = _decode_chat_row(line)
    except UNREADABLE:
        return None
    return row if row.is_one else None


def _read_prompt(params: _Params, images: ImagePolicy) -> tuple[list[Message], bytes | None, frozenset[str]]:
    marks: set[str] = set()
    try:
        items = _decode_items(params.input)
        tools = chat_tools(params.tools)
    except UNREADABLE as error:
        raise Inexpressible(_decode_reason(error)) from error
    messages = [Message("user", items)] if isinstance(items, str) else fold(items or [], {}, marks, images)
    if params.instructions:
        messages = [Message("system", params.instructions), *messages]
    return messages, tools, frozenset(marks)


def _decode_reason(error: Exception) -> str:
    """A reason without positions: equal defects must count as one."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return "the row is not valid UTF-8"
    if "output" in text and "Expected" in text:
        return "response.output is not a list of Responses items"
    if isinstance(error, msgspec.ValidationError):
        return "the row does not have the Responses shape"
    return "the row is not valid JSON"
