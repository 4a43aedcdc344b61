"""Dialects of real servers: how llama.cpp, `transformers serve` and vLLM differ from OpenAI's API.

The differences were measured on the real servers. A dialect changes how requests are parsed and answers formatted, never their
content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from rollforge.errors import UsageError
from rollforge.json_shapes import ChatCompletionJson, ChatLogprobsJson, ItemJson, ResponseJson, Shape
from rollforge.registry import did_you_mean
from rollforge.simulate.asks import Rejection
from rollforge.simulate.conversation import Ask
from rollforge.simulate.tokens import token_ids

RESPONSES = "/v1/responses"


class Dialect(NamedTuple):
    """Deviations of one server from OpenAI's API."""

    name: str = "openai"
    hides_truncation: bool = False
    """Whether `/responses` reports `completed` for an answer cut off by the token limit."""
    streams_responses: bool = False
    """Whether `/responses` streams unless the request says `stream: false`."""
    known_fields: frozenset[str] | None = None
    """Accepted request fields; others get a 422. None accepts all."""
    alternatives: int | None = None
    """Number of alternatives per token with logprobs, whatever the request says; None follows the request."""
    has_logprobs: bool = True
    is_greedy: bool = False
    """Whether `temperature` is ignored, so that all samples of a prompt are equal."""
    sees_tools: bool = True
    """Whether the chat template renders tools."""
    default_model: str | None = None
    """Model name in answers, whatever name was requested."""
    connection_threads: int | None = None
    """Concurrent connections, each of which occupies a thread from its first byte until it closes."""
    overflow: str = ""
    """Wording of the context overflow error; empty means OpenAI's or vLLM's."""
    properties: Mapping[str, object] = {}
    """Answer to `GET /props`; empty if the path does not exist."""


_TRANSFORMERS_FIELDS = frozenset(
    {
        *(
            "model",
            "messages",
            "input",
            "instructions",
            "stream",
            "temperature",
            "top_p",
            "seed",
            "tools",
            "tool_choice",
        ),
        *(
            "max_tokens",
            "max_completion_tokens",
            "max_output_tokens",
            "frequency_penalty",
            "presence_penalty",
            "stop",
        ),
        *(
            "n",
            "response_format",
            "user",
            "metadata",
            "store",
            "include",
            "text",
            "reasoning",
            "parallel_tool_calls",
        ),
        *("truncation", "previous_response_id", "stream_options", "generation_config", "logit_bias"),
    }
)
_LLAMA_SAMPLING = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1.0}

DIALECTS = {
    "openai": Dialect(),
    "llama.cpp": Dialect(
        name="llama.cpp",
        hides_truncation=True,
        alternatives=20,
        sees_tools=False,
        default_model="SimulatedLM2-135M-Instruct.Q4_1.gguf",
        connection_threads=8,
        overflow="llama.cpp",
        properties={
            "default_generation_settings": {"params": _LLAMA_SAMPLING, "n_ctx": 131_072},
            "total_slots": 4,
            "model_path": "SimulatedLM2-135M-Instruct.Q4_1.gguf",
        },
    ),
    "transformers-serve": Dialect(
        name="transformers-serve",
        hides_truncation=True,
        streams_responses=True,
        known_fields=_TRANSFORMERS_FIELDS,
        has_logprobs=False,
        is_greedy=True,
    ),
    "vllm": Dialect(name="vllm", overflow="vllm"),
}


def dialect_of(name: str) -> Dialect:
    """The dialect with this name."""
    if name not in DIALECTS:
        raise UsageError(
            f"there is no dialect {name!r}{did_you_mean(name, DIALECTS)}",
            hint=f"known: {', '.join(DIALECTS)}",
        )
    return DIALECTS[name]


def adapt_request(dialect: Dialect, path: str, body: Shape) -> tuple[Shape, bool]:
    """The request in the form that the API parsers expect, and whether to stream; raises `Rejection`."""
    if dialect.known_fields is not None:
        unknown = sorted(key for key in body if key not in dialect.known_fields)
        if unknown:
            raise Rejection(
                422, f"Unexpected keys in the request: {{{', '.join(map(repr, unknown))}}}", is_detail=True
            )
    streams_anyway = dialect.streams_responses and path.endswith("/responses")
    streams = bool(body.get("stream", streams_anyway))
    adapted = dict(body)
    if not dialect.sees_tools:
        adapted.pop("tools", None)
        adapted.pop("tool_choice", None)
    if not dialect.has_logprobs:
        adapted = {
            key: value for key, value in adapted.items() if key not in ("logprobs", "top_logprobs", "include")
        }
    elif dialect.alternatives and adapted.get("logprobs"):
        wanted = adapted.get("top_logprobs")
        adapted["top_logprobs"] = max(dialect.alternatives, wanted if isinstance(wanted, int) else 0)
    return cast("Shape", adapted), streams


def adapt_answer(dialect: Dialect, ask: Ask, body: Shape) -> Shape:
    """The answer with this server's deviations."""
    if dialect.hides_truncation and body.get("object") == "response":
        return cast("Shape", _without_truncation(cast("ResponseJson", body)))
    if dialect.alternatives and ask.wants_logprobs and "choices" in body:
        _add_token_ids(cast("ChatCompletionJson", body))
    return body


def _without_truncation(response: ResponseJson) -> ResponseJson:
    whole: ItemJson = {"status": "completed"}
    items: list[ItemJson] = [{**item, **whole} if "status" in item else item for item in response["output"]]
    return {**response, "status": "completed", "incomplete_details": None, "output": items}


def _add_token_ids(completion: ChatCompletionJson) -> None:
    for choice in completion["choices"]:
        for entry in (choice.get("logprobs") or ChatLogprobsJson()).get("content") or []:
            for each in (entry, *entry["top_logprobs"]):
                each["id"] = token_ids(each["token"])[0] if each["token"] else 0


def overflow_rejection(wording: str, prompt: int, wanted: int, window: int) -> Rejection:
    """The 400 reply for a prompt that does not fit, with this server's wording."""
    match wording:
        case "openai":
            message = (
                f"This model's maximum context length is {window} tokens. However, your messages resulted in "
                f"{prompt} tokens. Please reduce the length of the messages."
            )
            return Rejection(400, message, code="context_length_exceeded", param="messages")
        case "llama.cpp":
            message = f"request ({prompt} tokens) exceeds the available context size ({window} tokens), try increasing it"
            rejection = Rejection(400, message, kind="exceed_context_size_error", code=400)
            rejection.body["error"] |= {"n_prompt_tokens": prompt, "n_ctx": window}
            return rejection
        case _:
            message = (
                f"This model's maximum context length is {window} tokens. However, you requested "
                f"{prompt + wanted} tokens ({prompt} in the messages, {wanted} in the completion). "
                "Please reduce the length of the messages or completion."
            )
            return Rejection(400, message, kind="BadRequestError", code=400)
