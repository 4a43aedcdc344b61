"""This module turns Responses items into chat messages: the one place that knows both shapes.

A conversation is the prompt (`instructions` and `responses_create_params.input`) and the answer (`response.output`), both as
`Message` records that no trainer has marked yet. Call arguments and tool schemas stay the bytes they were: nothing here parses
a number. What cannot be said in chat messages raises `Inexpressible` with a reason to count; what is said differently leaves a
mark. It does not repair untidy rollouts (`tidy`) and does not choose key names (`shape`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from rollforge.records import to_json

ImagePolicy = str
"""`refuse` or `pass`."""


class Inexpressible(Exception):
    """The rollout cannot be said in chat messages; `str(error)` is the reason under which it is counted."""


class Call(msgspec.Struct):
    """A function call the model made."""

    id: str
    name: str
    arguments: str
    """The text as the model wrote it."""


class Message(msgspec.Struct):
    """One chat message, before any trainer's key names."""

    role: str
    content: str = ""
    reasoning: str | None = None
    calls: list[Call] = []
    call_id: str | None = None
    """On a tool result: the call it answers."""
    name: str | None = None
    """On a tool result: the function that was called, when the call is known."""
    images: list[str] = []
    """URLs of images that stood in the content, in order."""


class TokenRecord(msgspec.Struct):
    """What the server returned for one model call: the exact tokens, as JSON arrays."""

    prompt_token_ids: msgspec.Raw
    generation_token_ids: msgspec.Raw
    generation_log_probs: msgspec.Raw


class Conversation(msgspec.Struct):
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


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None


class _Item(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    content: str | list[_Part | str] | None = None
    summary: list[_Part | str] | None = None
    encrypted_content: str | None = None
    name: str | None = None
    id: str | None = None
    call_id: str | None = None
    arguments: Any = None
    output: Any = None
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    generation_token_ids: msgspec.Raw = msgspec.Raw()
    generation_log_probs: msgspec.Raw = msgspec.Raw()


class _Params(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"null")
    instructions: str | None = None


class _Response(msgspec.Struct):
    output: list[_Item] | None = None


class _Row(msgspec.Struct):
    responses_create_params: _Params
    response: _Response | None = None


class _Tool(msgspec.Struct):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"null")
    function: msgspec.Raw = msgspec.Raw()


_decode_row = msgspec.json.Decoder(_Row).decode
_decode_items = msgspec.json.Decoder(str | list[_Item] | None).decode
_decode_tools = msgspec.json.Decoder(list[_Tool] | None).decode

_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


Lead = Callable[[list[Message]], list[Message]]
"""Puts the beginning of a prompt in order."""


class Reader:
    """Turns raw rollout lines into conversations, remembering the last prompts: a task's rollouts share one list object."""

    def __init__(
        self, *, images: ImagePolicy = "refuse", lead: Lead | None = None, remembered: int = 512
    ) -> None:
        self._images = images
        self._lead = lead
        self._remembered = remembered
        self._prompts: dict[
            tuple[bytes, bytes, str | None], tuple[list[Message], bytes | None, frozenset[str]]
        ] = {}

    def read(self, line: bytes) -> Conversation:
        """The conversation in one rollout line.

        Raises:
            Inexpressible: with the reason to count.
        """
        try:
            row = _decode_row(line)
        except msgspec.DecodeError as error:
            raise Inexpressible(_decode_reason(error)) from error
        prompt, tools, marks = self._prompt(row.responses_create_params)
        items = (row.response.output if row.response else None) or []
        found: set[str] = set()
        call_names = {call.id: call.name for message in prompt for call in message.calls}
        answer = fold(items, call_names, found, self._images)
        if not answer:
            found.add("empty output")
        return Conversation(prompt, answer, tools, marks | found, _tokens(items))

    def read_prompt(self, params: bytes) -> Conversation:
        """The conversation of a task alone, from the bytes of its `responses_create_params`."""
        try:
            decoded = msgspec.json.decode(params, type=_Params)
        except msgspec.DecodeError as error:
            raise Inexpressible(_decode_reason(error)) from error
        prompt, tools, marks = self._prompt(decoded)
        return Conversation(prompt, [], tools, marks)

    def _prompt(self, params: _Params) -> tuple[list[Message], bytes | None, frozenset[str]]:
        key = (bytes(params.input), bytes(params.tools), params.instructions)
        known = self._prompts.get(key)
        if known is None:
            if len(self._prompts) >= self._remembered:
                self._prompts.clear()
            messages, tools, marks = _read_prompt(params, self._images)
            known = self._prompts[key] = (self._lead(messages) if self._lead else messages, tools, marks)
        return known


def _read_prompt(params: _Params, images: ImagePolicy) -> tuple[list[Message], bytes | None, frozenset[str]]:
    marks: set[str] = set()
    try:
        items = _decode_items(params.input)
        tools = chat_tools(params.tools)
    except msgspec.DecodeError as error:
        raise Inexpressible(_decode_reason(error)) from error
    messages = [Message("user", items)] if isinstance(items, str) else fold(items or [], {}, marks, images)
    if params.instructions:
        messages = [Message("system", params.instructions), *messages]
    return messages, tools, frozenset(marks)


def _decode_reason(error: msgspec.DecodeError) -> str:
    """A reason without positions: equal defects must count as one."""
    text = str(error)
    if "output" in text and "Expected" in text:
        return "response.output is not a list of Responses items"
    if isinstance(error, msgspec.ValidationError):
        return "the row does not have the Responses shape"
    return "the row is not valid JSON"


def fold(
    items: Iterable[_Item], call_names: dict[str, str], marks: set[str], images: ImagePolicy = "refuse"
) -> list[Message]:
    """Items in order as messages: neighbouring reasoning, text and calls of the model become one assistant message."""
    messages: list[Message] = []
    turn: Message | None = None
    for item in items:
        kind = item.type or ("message" if item.role else "")
        if kind == "message" and item.role != "assistant":
            turn = None
            messages.append(_other_message(item, marks, images))
        elif kind == "function_call_output":
            turn = None
            messages.append(_tool_result(item, call_names, marks))
        else:
            if turn is None:
                turn = Message("assistant")
                messages.append(turn)
            _extend_turn(turn, kind, item, call_names, marks)
    return messages


def _extend_turn(turn: Message, kind: str, item: _Item, call_names: dict[str, str], marks: set[str]) -> None:
    if kind == "message":
        text, _ = _text(item.content, marks, "refuse")
        if turn.calls and text:
            marks.add("text after a call moved before it")
        turn.content += text
    elif kind == "reasoning":
        text = _reasoning(item, marks)
        if turn.content or turn.calls:
            marks.add("interleaved reasoning joined")
        turn.reasoning = text if turn.reasoning is None else f"{turn.reasoning}\n{text}"
    elif kind == "function_call":
        call = _call(item, len(call_names), marks)
        call_names[call.id] = call.name
        turn.calls = [*turn.calls, call]
    else:
        raise Inexpressible(f"item type {kind}" if kind else "an item without type and role")


def _other_message(item: _Item, marks: set[str], images: ImagePolicy) -> Message:
    if item.role not in ("user", "system", "developer"):
        raise Inexpressible(f"message role {item.role}")
    if item.role == "developer":
        marks.add("developer role")
    text, urls = _text(item.content, marks, images)
    return Message(item.role, text, images=urls)


def _text(
    content: str | list[_Part | str] | None, marks: set[str], images: ImagePolicy
) -> tuple[str, list[str]]:
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    urls: list[str] = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif part.type in _TEXT_PARTS or (part.type is None and part.text is not None):
            texts.append(part.text or "")
            if part.type == "input_text":
                marks.add("list content joined")
        elif part.type == "refusal":
            marks.add("refusal kept as text")
            texts.append(part.refusal or "")
        elif part.type in ("input_image", "image_url") and images == "pass":
            marks.add("image passed by its address")
            urls.append(_image_url(part.image_url))
        else:
            raise Inexpressible(f"content part {part.type or 'without type'}")
    return "".join(texts), urls


def _image_url(value: object) -> str:
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise Inexpressible("image without an address")
    return url


def _reasoning(item: _Item, marks: set[str]) -> str:
    """The summary, else the raw reasoning text; encrypted reasoning says nothing to a trainer."""
    for parts in (item.summary, item.content):
        if isinstance(parts, str):
            return parts
        texts = [part if isinstance(part, str) else part.text or "" for part in parts or []]
        if texts:
            return "\n".join(texts)
    if item.encrypted_content:
        marks.add("encrypted reasoning left out")
    return ""


def _call(item: _Item, number: int, marks: set[str]) -> Call:
    arguments = item.arguments
    if arguments is None or arguments == "":
        marks.add("empty arguments written as {}")
        arguments = "{}"
    elif not isinstance(arguments, str):
        arguments = to_json(arguments).decode()
    if not item.name:
        raise Inexpressible("function call without a name")
    return Call(item.call_id or item.id or f"call_{number}", item.name, arguments)


def _tool_result(item: _Item, call_names: dict[str, str], marks: set[str]) -> Message:
    output = item.output
    if isinstance(output, list):
        texts = []
        for part in output:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise Inexpressible(
                    f"tool result part {part.get('type') if isinstance(part, dict) else type(part).__name__}"
                )
            texts.append(part["text"])
        marks.add("list content joined")
        text = "".join(texts)
    else:
        text = output if isinstance(output, str) else "" if output is None else to_json(output).decode()
    call_id = item.call_id or ""
    if call_id not in call_names:
        marks.add("tool result without its call")
    return Message("tool", text, call_id=call_id, name=call_names.get(call_id))


def chat_tools(raw: msgspec.Raw | bytes) -> bytes | None:
    """Tool schemas in chat form as JSON text, their parameters byte for byte; None without any."""
    tools = _decode_tools(raw)
    if not tools:
        return None
    return to_json([_chat_tool(tool) for tool in tools])


def _chat_tool(tool: _Tool) -> dict[str, object]:
    if bytes(tool.function):
        return {"type": "function", "function": tool.function}
    if tool.type not in (None, "function") or not tool.name:
        raise Inexpressible(f"tool type {tool.type}")
    function: dict[str, object] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if bytes(tool.parameters) != b"null":
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _tokens(items: Sequence[_Item]) -> list[TokenRecord]:
    return [
        TokenRecord(item.prompt_token_ids, item.generation_token_ids, item.generation_log_probs)
        for item in items
        if bytes(item.generation_token_ids) not in (b"", b"null")
    ]


def is_object(arguments: str) -> bool:
    """Whether the model wrote a JSON object."""
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
