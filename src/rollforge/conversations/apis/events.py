"""Whole answers as server-sent events in each API, in pieces, as a generating server sends them.

Each function returns the events as bytes, one per event, so that a sender can pace them or stop between them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypedDict, cast

from rollforge.conversations.apis.chat_api import reasoning_parts
from rollforge.conversations.apis.messages_json import (
    BlockJson,
    DeltaJson,
    ErrorBodyJson,
    MessageJson,
    MessagesUsageJson,
)
from rollforge.json_shapes import (
    ChatChoiceJson,
    ChatCompletionJson,
    ChatFunctionCallJson,
    ChatMessageJson,
    ErrorJson,
    ItemJson,
    PartJson,
    ResponseJson,
    parts_in,
)
from rollforge.records import to_json

_SHARED = ("id", "created", "model", "system_fingerprint")

PIECE = 24
"""Characters of text per event: a few tokens."""

CONTENT_TYPE = "text/event-stream"

KEEP_ALIVE = b": keep-alive\n\n"
"""A comment line, which clients skip."""


def chat_events(completion: ChatCompletionJson, *, with_usage: bool = False) -> list[bytes]:
    """A chat completion as chunks; usage is a separate chunk, if the caller asked for it."""
    shared = _shared(completion)
    if with_usage:
        shared["usage"] = None  # every chunk has the field then, and the last one the counts
    events: list[bytes] = []

    def add(index: int, delta: ChatMessageJson, last: ChatChoiceJson | None = None) -> None:
        choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **(last or {})}
        events.append(_data({**shared, "choices": [choice]}))

    for choice in completion.get("choices") or []:
        index, message = choice.get("index", 0), choice.get("message") or ChatMessageJson()
        add(index, {"role": "assistant", "content": ""})
        for piece in pieces(message.get("reasoning_content")):
            add(index, {"reasoning_content": piece})
        for piece in pieces(message.get("content")):
            add(index, {"content": piece})
        for piece in pieces(message.get("refusal")):
            add(index, {"refusal": piece})
        for number, call in enumerate(message.get("tool_calls") or []):
            function = call["function"]
            opening: ChatFunctionCallJson = {"name": function["name"], "arguments": ""}
            add(
                index,
                {
                    "tool_calls": [
                        {"index": number, "id": call["id"], "type": "function", "function": opening}
                    ]
                },
            )
            for piece in pieces(function["arguments"]):
                add(index, {"tool_calls": [{"index": number, "function": {"arguments": piece}}]})
        add(index, {}, _last(completion, choice))
    if with_usage:
        events.append(_data({**shared, "choices": [], "usage": completion.get("usage")}))
    return [*events, b"data: [DONE]\n\n"]


def _shared(completion: ChatCompletionJson) -> ChatCompletionJson:
    """Fields that every chunk repeats."""
    shared_fields = {key: value for key in _SHARED if (value := completion.get(key)) is not None}
    return cast("ChatCompletionJson", {**shared_fields, "object": "chat.completion.chunk"})


def _last(completion: ChatCompletionJson, choice: ChatChoiceJson) -> ChatChoiceJson:
    """Fields of the last chunk of a choice."""
    extra: ChatChoiceJson = {"finish_reason": choice.get("finish_reason")}
    if (ids := choice.get("token_ids")) is not None:
        extra["token_ids"] = ids
    if (prompt := completion.get("prompt_token_ids")) is not None:
        extra["prompt_token_ids"] = prompt
    if logprobs := choice.get("logprobs"):
        extra["logprobs"] = logprobs
    return extra


def response_events(response: ResponseJson) -> list[bytes]:
    """A Responses object as its events, from `response.created` to `response.completed`."""
    writer = _ResponseWriter()
    begun: ResponseJson = {
        **response,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "incomplete_details": None,
    }
    writer.add("response.created", response=begun)
    writer.add("response.in_progress", response=begun)
    for number, item in enumerate(response.get("output") or []):
        writer.item(number, item)
    status = response.get("status")
    last = status if status in ("incomplete", "failed") else "completed"
    writer.add(f"response.{last}", response=response)
    return writer.events


class _PlaceJson(TypedDict, total=False):
    """Position of an event within a response."""

    output_index: int
    item_id: str | None
    content_index: int
    summary_index: int


class _ResponseWriter:
    """Numbers the events of one response."""

    def __init__(self) -> None:
        self.events: list[bytes] = []

    def add(self, name: str, **fields: object) -> None:
        """Append one event."""
        record = {"type": name, "sequence_number": len(self.events), **fields}
        self.events.append(_named(name, record))

    def item(self, number: int, item: ItemJson) -> None:
        """The events of one output item."""
        at: _PlaceJson = {"output_index": number, "item_id": item.get("id")}
        match item.get("type"):
            case "message":
                self._open(number, {**item, "status": "in_progress", "content": []})
                for position, part in enumerate(parts_in(item.get("content"))):
                    self._part(part, {**at, "content_index": position})
            case "function_call":
                self._open(number, {**item, "status": "in_progress", "arguments": ""})
                for piece in pieces(item.get("arguments")):
                    self.add("response.function_call_arguments.delta", **at, delta=piece)
                self.add("response.function_call_arguments.done", **at, arguments=item.get("arguments") or "")
            case "reasoning":
                self._open(number, {**item, "summary": []})
                for position, part in enumerate(reasoning_parts(item)):
                    self._summary(part, {**at, "summary_index": position})
            case _:
                self._open(number, item)
        self.add("response.output_item.done", output_index=number, item=item)

    def _open(self, number: int, item: ItemJson) -> None:
        self.add("response.output_item.added", output_index=number, item=item)

    def _part(self, part: PartJson, at: _PlaceJson) -> None:
        kind = "refusal" if part.get("type") == "refusal" else "text"
        text = part.get(kind) or ""
        name, logprobs = "response.refusal", PartJson()
        if kind == "text":
            name, logprobs = "response.output_text", PartJson(logprobs=[])
        self.add("response.content_part.added", **at, part={**part, kind: "", **logprobs})
        for piece in pieces(text):
            self.add(f"{name}.delta", **at, delta=piece, **logprobs)
        self.add(f"{name}.done", **at, **{kind: text}, **logprobs)
        self.add("response.content_part.done", **at, part=part)

    def _summary(self, part: PartJson, at: _PlaceJson) -> None:
        text = part.get("text") or ""
        self.add("response.reasoning_summary_part.added", **at, part={"type": "summary_text", "text": ""})
        for piece in pieces(text):
            self.add("response.reasoning_summary_text.delta", **at, delta=piece)
        self.add("response.reasoning_summary_text.done", **at, text=text)
        self.add("response.reasoning_summary_part.done", **at, part={"type": "summary_text", "text": text})


def message_events(message: MessageJson) -> list[bytes]:
    """An Anthropic message as its events."""
    usage = message.get("usage") or MessagesUsageJson()
    begun: MessageJson = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": 0},
    }
    events = [_named("message_start", {"type": "message_start", "message": begun})]
    for number, block in enumerate(message.get("content") or []):
        opening, deltas = _block(block)
        start = {"type": "content_block_start", "index": number, "content_block": opening}
        events.append(_named("content_block_start", start))
        for delta in deltas:
            record = {"type": "content_block_delta", "index": number, "delta": delta}
            events.append(_named("content_block_delta", record))
        events.append(_named("content_block_stop", {"type": "content_block_stop", "index": number}))
    ended = {"stop_reason": message.get("stop_reason"), "stop_sequence": message.get("stop_sequence")}
    events.append(_named("message_delta", {"type": "message_delta", "delta": ended, "usage": usage}))
    events.append(_named("message_stop", {"type": "message_stop"}))
    return events


def _block(block: BlockJson) -> tuple[BlockJson, list[DeltaJson]]:
    """A content block as its first event has it, and the deltas that follow."""
    deltas: list[DeltaJson]
    match block["type"]:
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block.get("signature") or ""})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "tool_use":
            text = to_json(block["input"]).decode()
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(text)]
            return {**block, "input": {}}, deltas
        case _:
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block.get("text"))]
            return {"type": "text", "text": ""}, deltas


def error_event(api: str, status: int, body: ErrorBodyJson, *, number: int = 0, model: str = "") -> bytes:
    """The event that reports a failure in a stream of this API.

    Args:
        number: How many events precede it.
        model: The model's name, which a failed response repeats.
    """
    if api == "messages":
        return _named("error", body)
    error = body.get("error") or ErrorJson()
    if api == "responses":
        code = error.get("code") or error.get("type") or "server_error"
        failed = {
            "id": "resp_failed",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "failed",
            "error": {"code": code, "message": error.get("message") or ""},
            "output": [],
            "tools": [],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "usage": None,
        }
        return _named(
            "response.failed", {"type": "response.failed", "sequence_number": number, "response": failed}
        )
    return _data({"error": {**error, "status": status}})


def pieces(text: object) -> Iterator[str]:
    """The text in pieces of a few tokens; nothing for a value that is not text."""
    if isinstance(text, str):
        for start in range(0, len(text), PIECE):
            yield text[start : start + PIECE]


def _data(record: object) -> bytes:
    return b"data: " + to_json(record) + b"\n\n"


def _named(name: str, record: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + _data(record)
