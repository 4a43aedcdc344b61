"""This module turns Responses items into chat messages: the one place that knows both shapes.

A conversation is the prompt (`instructions` and `responses_create_params.input`) and the answer (`response.output`), both as
`Message` records that no trainer has marked yet. Call arguments and tool schemas stay the bytes they were: nothing here parses
a number. What cannot be said in chat messages raises `Inexpressible` with a reason to count; what is said differently leaves a
mark. It does not repair untidy rollouts (`tidy`) and does not choose key names (`shape`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from rollforge.records import to_json

ImagePolicy = str
"""`refuse` or `pass`."""


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


class _Part(msgspec.Struct, gc=False):
    type: str | None = None
    text: msgspec.Raw = msgspec.Raw(b"null")
    refusal: str | None = None
    image_url: Any = None


class _Item(msgspec.Struct, gc=False):
    type: str | None = None
    role: str | None = None
    content: str | list[_Part | str] | None = None
    summary: list[_Part | str] | None = None
    encrypted_content: str | None = None
    name: str | None = None
    id: str | None = None
    call_id: str | None = None
    arguments: Any = None
    output: msgspec.Raw = msgspec.Raw(b"null")
    prompt_token_ids: msgspec.Raw = msgspec.Raw()
    generation_token_ids: msgspec.Raw = msgspec.Raw()
    generation_log_probs: msgspec.Raw = msgspec.Raw()


class _Params(msgspec.Struct, gc=False):
    input: msgspec.Raw = msgspec.Raw(b"null")
    tools: msgspec.Raw = msgspec.Raw(b"null")
    instructions: str | None = None


class _Response(msgspec.Struct, gc=False):
    output: list[_Item] | None = None


class Decoded(msgspec.Struct, gc=False):
    """A rollout line, as far as it is read."""

    responses_create_params: _Params
    response: _Response | None = None


class _Tool(msgspec.Struct, gc=False):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: msgspec.Raw = msgspec.Raw(b"null")
    function: msgspec.Raw = msgspec.Raw()


_decode_row = msgspec.json.Decoder(Decoded).decode
_decode_items = msgspec.json.Decoder(str | list[_Item] | None).decode
_decode_tools = msgspec.json.Decoder(list[_Tool] | None).decode

_SAYS = re.compile(rb"[A-Za-z0-9]{3}|[^\x00-\x7f]{6}")
"""Bytes of a JSON text that stand for more than white space, whatever is escaped around them."""

_QUOTE = ord('"')
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text"})


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

    def decode(self, line: bytes) -> Decoded:
        """The first half of `read`: the parts of the line that matter. Many lines are read faster one half at a time."""
        try:
            if self._is_careful:
                line.decode()
            return _decode_row(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Inexpressible(_decode_reason(error)) from error

    def converse(self, row: Decoded) -> Conversation:
        """The second half of `read`: the parts as messages."""
        prompt, tools, marks, call_names = self._prompt(row.responses_create_params)
        items = (row.response.output if row.response else None) or []
        found: set[str] = set()
        answer = fold(items, call_names.copy(), found, self._images)
        if not answer:
            found.add("empty output")
        tokens = _tokens(items) if self._has_tokens else []
        return Conversation(prompt, answer, tools, marks | found if found else marks, tokens)

    def read_prompt(self, params: bytes) -> Conversation:
        """The conversation of a task alone, from the bytes of its `responses_create_params`."""
        try:
            decoded = msgspec.json.decode(params, type=_Params)
        except msgspec.DecodeError as error:
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


def _decode_reason(error: msgspec.DecodeError | UnicodeDecodeError) -> str:
    """A reason without positions: equal defects must count as one."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return "the row is not valid UTF-8"
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
            if kind == "function_call":
                call = _call(item, len(call_names), marks)
                call_names[call.id] = call.name
                turn.calls = [*turn.calls, call]
            elif kind == "message":
                _add_text(turn, item, marks)
            elif kind == "reasoning":
                _add_reasoning(turn, item, marks)
            else:
                raise Inexpressible(f"item type {kind}" if kind else "an item without type and role")
    return messages


def _add_text(turn: Message, item: _Item, marks: set[str]) -> None:
    content = item.content
    if turn.text == "" and isinstance(content, list) and len(content) == 1 and not turn.calls:
        part = content[0]
        if isinstance(part, _Part) and part.type == "output_text" and is_text(part.text):
            turn.text, turn.raw = None, part.text
            return
    text, _ = _text(content, marks, "refuse")
    if turn.calls and text:
        marks.add("text after a call moved before it")
    turn.add_text(text)


def _add_reasoning(turn: Message, item: _Item, marks: set[str]) -> None:
    if turn.text != "" or turn.calls:
        marks.add("interleaved reasoning joined")
    parts = item.summary
    is_first = turn.thought is None and turn.raw_thought is None
    if is_first and parts and len(parts) == 1 and isinstance(parts[0], _Part) and is_text(parts[0].text):
        turn.raw_thought = parts[0].text
        return
    text = _reasoning(item, marks)
    turn.thought = text if is_first else f"{turn.reasoning}\n{text}"
    turn.raw_thought = None


def is_text(raw: msgspec.Raw) -> bool:
    """Whether the JSON is a string."""
    return memoryview(raw)[0] == _QUOTE


def is_spelled_once(raw: msgspec.Raw) -> bool:
    """Whether the JSON string has no escape that could be written otherwise: then equal texts are equal bytes."""
    data = bytes(raw)
    return b"\\u" not in data and b"\\/" not in data


def _part_text(part: _Part) -> str:
    text = msgspec.json.decode(part.text)
    if text is not None and not isinstance(text, str):
        raise Inexpressible("content part whose text is no text")
    return text or ""


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
        elif part.type in _TEXT_PARTS or (part.type is None and is_text(part.text)):
            texts.append(_part_text(part))
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
        texts = [part if isinstance(part, str) else _part_text(part) for part in parts or []]
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
    call_id = item.call_id or ""
    if call_id not in call_names:
        marks.add("tool result without its call")
    name = call_names.get(call_id)
    if is_text(item.output):
        return Message("tool", None, call_id=call_id, name=name, raw=item.output)
    text = _other_output(msgspec.json.decode(item.output), bytes(item.output), marks)
    return Message("tool", text, call_id=call_id, name=name)


def _other_output(output: object, raw: bytes, marks: set[str]) -> str:
    """A tool's output that is no text: parts of text joined, nothing for null, the JSON itself for anything else."""
    if not isinstance(output, list):
        return "" if output is None else raw.decode()
    texts = []
    for part in output:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise Inexpressible(f"tool result part {kind}")
        texts.append(part["text"])
    marks.add("list content joined")
    return "".join(texts)


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
        if len(item.generation_token_ids) > 4
    ]


def is_object(arguments: str) -> bool:
    """Whether the model wrote a JSON object."""
    try:
        return isinstance(msgspec.json.decode(arguments), dict)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
