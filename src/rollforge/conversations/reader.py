"""Reads rollout lines, in Responses or chat form, as conversations.

The prompt is `instructions` and `responses_create_params.input`, the answer is `response.output`; a row in chat form has
`messages`, or `prompt` and `completion`. The reader converts each prompt once: the rollouts of a task share one list object.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rollforge.conversations.chat_rows import ChatRow, read_chat_row
from rollforge.conversations.items import ImagePolicy, ResponseItem, chat_tools, fold, tokens_of
from rollforge.conversations.messages import ChatMessage, Conversation, Inexpressible
from rollforge.conversations.texts import is_utf8
from rollforge.records import OWN_KEY
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.reading import UNREADABLE


class _Params(msgspec.Struct, gc=False):
    input: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"null")
    instructions: str | None = None


class _Response(msgspec.Struct, gc=False):
    output: list[ResponseItem] | None = None


class _Row(msgspec.Struct, gc=False):
    """The fields of a rollout line that conversion reads."""

    responses_create_params: _Params
    response: _Response | None = None
    own: msgspec.Raw = msgspec.field(name=OWN_KEY, default=msgspec.Raw(b"null"))


class _Sequence(msgspec.Struct, gc=False):
    """A non-main sequence of the rollout."""

    prompt: _Params | None = None
    output: list[ResponseItem] | None = None
    fidelity: str | None = None


class _Own(msgspec.Struct, gc=False):
    """rollforge's own fields of a row (`_rf`)."""

    played: _Params | list[msgspec.Raw] | None = None
    """The prompt actually used; older rows of environments hold only its items."""
    sequences: list[_Sequence] | None = None


_decode_row = msgspec.json.Decoder(_Row).decode
_decode_own = msgspec.json.Decoder(_Own | None).decode
_decode_chat_row = msgspec.json.Decoder(ChatRow).decode
_decode_items = msgspec.json.Decoder(str | list[ResponseItem] | None).decode

Lead = Callable[[list[ChatMessage]], list[ChatMessage]]
"""Rewrites the leading messages of a prompt."""


class ConversationReader:
    """Converts rollout lines to conversations and caches the last prompts."""

    def __init__(
        self,
        *,
        images: ImagePolicy = "refuse",
        lead: Lead | None = None,
        has_tokens: bool = True,
        is_checked: bool = False,
        remembered: int = 512,
    ) -> None:
        """`has_tokens` keeps the token records of each model call; `is_checked` asserts that all lines are valid UTF-8."""
        self._is_checked = is_checked
        self._has_tokens = has_tokens
        self._images = images
        self._lead = lead
        self._remembered = remembered
        self._prompts: dict[tuple[bytes, bytes, str | None], _Asked] = {}
        self._last: tuple[_Params, _Asked] | None = None

    def read(self, line: bytes, sequence: int = 0) -> Conversation:
        """The conversation in one rollout line: its main sequence, or another one of a recorded program.

        If the agent or environment made the prompt (`_rf.played`), it replaces the task's.

        Raises:
            Inexpressible: with the reason to count.
        """
        if not self._is_checked and not is_utf8(
            line
        ):  # texts are copied as bytes, so the decoder would not notice
            raise Inexpressible("the row is not valid UTF-8")
        try:
            row = _decode_row(line)
        except UNREADABLE as error:
            if (chat := _chat_row(line)) is None:
                raise Inexpressible(_decode_reason(error)) from error
            conversation = read_chat_row(chat, self._images)
            conversation.prompt = self._lead(conversation.prompt) if self._lead else conversation.prompt
            return conversation
        params, items, drifts = _played(row, sequence)
        prompt, tools, marks, call_names = self._prompt(params)
        seen: set[str] = set()
        answer = fold(items, call_names.copy(), seen, self._images)
        if not answer:
            seen.add("empty output")
        if drifts:
            seen.add(TOKEN_DRIFT)
        tokens = tokens_of(items) if self._has_tokens else []
        return Conversation(prompt, answer, tools, marks | seen if seen else marks, tokens)

    def read_prompt(self, params: bytes) -> Conversation:
        """The conversation of a bare task, from the bytes of its `responses_create_params`."""
        try:
            decoded = decode_json(params, _Params)
        except UNREADABLE as error:
            raise Inexpressible(_decode_reason(error)) from error
        prompt, tools, marks, _ = self._prompt(decoded)
        return Conversation(prompt, [], tools, marks)

    def _prompt(self, params: _Params) -> _Asked:
        if self._last is not None and params == self._last[0]:
            return self._last[1]
        key = (bytes(params.input), bytes(params.tools), params.instructions)
        prompt = self._prompts.get(key)
        if prompt is None:
            if len(self._prompts) >= self._remembered:
                self._prompts.clear()
            messages, tools, marks = _read_prompt(params, self._images)
            messages = self._lead(messages) if self._lead else messages
            call_names = {call.id: call.name for message in messages for call in message.calls}
            prompt = self._prompts[key] = (messages, tools, marks, call_names)
        own_params = _Params(msgspec.Raw(key[0]), msgspec.Raw(key[1]), params.instructions)
        self._last = (own_params, prompt)
        return prompt


TOKEN_DRIFT = "token drift: later prompts of the rollout became other tokens"
"""The mark of a sequence whose token ids do not continue each other."""


def _prompt(played: _Params | list[msgspec.Raw] | None) -> _Params | None:
    return _Params(msgspec.Raw(msgspec.json.encode(played))) if isinstance(played, list) else played


def _played(row: _Row, sequence: int) -> tuple[_Params, list[ResponseItem], bool]:
    """Prompt and items of one of the row's sequences, and whether its tokens drift."""
    output = (row.response.output if row.response else None) or []
    own_bytes = bytes(row.own)
    if not sequence and b'"played"' not in own_bytes and b'"sequences"' not in own_bytes:
        return row.responses_create_params, output, False
    try:
        own = _decode_own(row.own) or _Own()
    except UNREADABLE as error:
        raise Inexpressible("_rf does not have the shape of a recorded rollout") from error
    others = own.sequences or []
    drifts = sequence < len(others) and others[sequence].fidelity == "drift"
    if not sequence:
        return _prompt(own.played) or row.responses_create_params, output, drifts
    if sequence >= len(others) or others[sequence].prompt is None:
        raise Inexpressible("the row has no such sequence")
    return others[sequence].prompt or row.responses_create_params, others[sequence].output or [], drifts


class _SequenceRoles(msgspec.Struct, gc=False):
    role: str = "main"


class _OwnRoles(msgspec.Struct, gc=False):
    sequences: list[_SequenceRoles] | None = None


class _RolesRow(msgspec.Struct, gc=False):
    own: _OwnRoles | None = msgspec.field(name=OWN_KEY, default=None)


_decode_roles = msgspec.json.Decoder(_RolesRow).decode


def sequence_roles(line: bytes) -> list[str]:
    """Roles of a row's sequences, main first; a row without sequences has only the main one."""
    try:
        own = _decode_roles(line).own
    except UNREADABLE:
        own = None
    return [sequence.role for sequence in (own.sequences if own else None) or []] or ["main"]


_Asked = tuple[list[ChatMessage], bytes | None, frozenset[str], dict[str, str]]
"""A prompt, its tools, its marks, and the function names by call id."""


def _chat_row(line: bytes) -> ChatRow | None:
    """The line as a row in chat form, if it is one."""
    try:
        row = _decode_chat_row(line)
    except UNREADABLE:
        return None
    return row if row.is_one else None


def _read_prompt(
    params: _Params, images: ImagePolicy
) -> tuple[list[ChatMessage], bytes | None, frozenset[str]]:
    marks: set[str] = set()
    try:
        items = _decode_items(params.input)
        tools = chat_tools(params.tools)
    except UNREADABLE as error:
        raise Inexpressible(_decode_reason(error)) from error
    messages = (
        [ChatMessage("user", items)] if isinstance(items, str) else fold(items or [], {}, marks, images)
    )
    if params.instructions:
        messages = [ChatMessage("system", params.instructions), *messages]
    return messages, tools, frozenset(marks)


def _decode_reason(error: Exception) -> str:
    """An error message without byte positions, so that equal defects count as one reason."""
    text = str(error)
    if "output" in text and "Expected" in text:
        return "response.output is not a list of Responses items"
    if isinstance(error, msgspec.ValidationError):
        return "the row does not have the Responses shape"
    return "the row is not valid JSON"
