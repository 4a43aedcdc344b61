"""JSON of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from rollforge.json_shapes import ErrorJson, SchemaJson


class ImageSourceJson(TypedDict, total=False):
    """Source of an image: base64 bytes, or a URL."""

    type: str
    media_type: str
    data: str
    url: str


class BlockJson(TypedDict, total=False):
    """A block of content: text, thinking, a tool's use, its result, an image."""

    type: str
    text: str
    thinking: str
    signature: str
    id: str | None
    name: str | None
    input: Mapping[str, object]
    tool_use_id: str
    content: str | list[BlockJson]
    source: ImageSourceJson


class DeltaJson(TypedDict, total=False):
    """Addition to a block, in an event of a stream."""

    type: str
    text: str
    thinking: str
    signature: str
    partial_json: str


class TurnJson(TypedDict, total=False):
    """One message of a request."""

    role: str
    content: str | list[BlockJson]


class MessagesToolJson(TypedDict, total=False):
    """A tool; a tool that runs on Anthropic's servers has no schema."""

    type: str
    name: str
    description: str
    input_schema: SchemaJson


class MessagesChoiceJson(TypedDict, total=False):
    """Which tool the model must use."""

    type: str
    name: str
    disable_parallel_tool_use: bool


class MessagesBodyJson(TypedDict, total=False):
    """A request."""

    model: str
    messages: list[TurnJson]
    system: str | list[BlockJson]
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    stop_sequences: list[str]
    tools: list[MessagesToolJson]
    tool_choice: MessagesChoiceJson | None
    stream: bool


class MessagesUsageJson(TypedDict, total=False):
    """Token counts."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int


class MessageJson(TypedDict, total=False):
    """An answer."""

    id: str
    type: str
    role: str
    model: str
    content: list[BlockJson]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsageJson


class ErrorBodyJson(TypedDict, total=False):
    """An error; OpenAI's format lacks the outer type."""

    type: str
    error: ErrorJson
    detail: str
    """The error in FastAPI's format."""
