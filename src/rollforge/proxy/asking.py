"""The three APIs that the proxy offers to programs: requests become model params, answers are converted back to the same API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

from rollforge.conversations.apis.chat_api import chat_from_response, params_from_chat
from rollforge.conversations.apis.events import chat_events, message_events, response_events
from rollforge.conversations.apis.messages_api import (
    error_body,
    message_from_response,
    messages_usage,
    params_from_messages,
)
from rollforge.conversations.apis.messages_json import ErrorBodyJson, MessageJson
from rollforge.errors import Failure
from rollforge.json_shapes import (
    ChatBodyJson,
    ChatCompletionJson,
    ItemJson,
    ParamsJson,
    PartJson,
    ResponseJson,
    items_in,
    tools_in,
    without,
)
from rollforge.records import OWN_KEY

ASKED = frozenset(
    {
        *("input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"),
        *("temperature", "top_p", "top_k", "max_output_tokens", "stop", "seed", "frequency_penalty"),
        *("presence_penalty", "repetition_penalty", "min_p", "logit_bias"),
    }
)
"""Request fields passed on to the model. Other fields concern delivery, or services of a provider."""

NOT_IMPOSED = frozenset(
    {
        *("input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "model", "stream"),
        *("store", "previous_response_id", "include", "background", "prompt", "user", "truncation"),
    }
)
"""Task params that the program controls itself; all others override every call."""

TOKEN_KEYS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts")

STATUS_BY_KIND = {
    "rate-limited": 429,
    "timeout": 504,
    "context-overflow": 400,
    "refused": 400,
    "oversized": 502,
    "auth": 401,
    "not-found": 404,
    "unavailable": 503,
    "permanent": 400,
}


class RequestJson(TypedDict, total=False):
    """Fields that requests of all three APIs share."""

    model: str
    stream: bool


Request = TypeVar("Request", bound=Mapping[str, object])
Answer = TypeVar("Answer", bound=Mapping[str, object])


class ProxyApi(NamedTuple, Generic[Request, Answer]):
    """Converters for one API's requests and answers."""

    name: str
    to_params: Callable[[Request], ParamsJson]
    """Request → params; raises `ValueError` for a request that cannot be recorded."""
    to_answer: Callable[[ResponseJson, str], Answer]
    """Responses object and the model name used by the program → answer."""
    to_events: Callable[[Answer, Request], list[bytes]]
    """Answer and request → server-sent events."""

    def error(self, status: int, message: str, code: str | None = None) -> ErrorBodyJson:
        """An error in this API's format."""
        if self.name == "messages":
            return error_body(status, message)
        kind = "invalid_request_error" if status < 500 else "server_error"
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def failure(self, failure: Failure) -> tuple[int, ErrorBodyJson]:
        """A model failure as an HTTP status and a body."""
        status = STATUS_BY_KIND.get(failure.kind) or failure.status or 502
        code = "context_length_exceeded" if failure.kind == "context-overflow" else None
        return status, self.error(status, failure.message, code)


def _params_from_responses(body: ParamsJson) -> ParamsJson:
    items = body.get("input")
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ValueError("input must be a text or a list of items")
    return {**body, "input": items}


def _response_answer(response: ResponseJson, model: str) -> ResponseJson:
    return {**response, "model": model, "output": response["output"]}


def _stream_chat(answer: ChatCompletionJson, request: ChatBodyJson) -> list[bytes]:
    options = request.get("stream_options")
    return chat_events(answer, with_usage=isinstance(options, dict) and bool(options.get("include_usage")))


def _message_answer(response: ResponseJson, model: str) -> MessageJson:
    return {**message_from_response(response, model), "usage": messages_usage(response.get("usage"))}


AnyApi = ProxyApi[Any, Any]
"""An API of any type; only its own functions know the types of its requests and answers."""

PROXY_APIS: dict[str, AnyApi] = {
    "chat/completions": ProxyApi("chat", params_from_chat, chat_from_response, _stream_chat),
    "responses": ProxyApi(
        "responses", _params_from_responses, _response_answer, lambda answer, _: response_events(answer)
    ),
    "messages": ProxyApi(
        "messages", params_from_messages, _message_answer, lambda answer, _: message_events(answer)
    ),
}
"""Path → API."""


def allowed_params(params: ParamsJson, imposed: ParamsJson) -> tuple[ParamsJson, list[str]]:
    """Params for the model: the program's params, overridden by the run's sampling; and the dropped tools.

    Tools that run at a provider (web search, a code interpreter) are dropped, because model servers cannot run them.
    """
    refused = [key for key, value in params.items() if key not in ASKED or value is None]
    sent_params: ParamsJson = {**without(params, refused), **without(imposed, NOT_IMPOSED)}
    reasoning = sent_params.get("reasoning")
    if isinstance(reasoning, dict) and not reasoning.get("effort"):
        del sent_params["reasoning"]
    left_out: list[str] = []
    if isinstance(sent_params.get("tools"), list):
        tools = tools_in(sent_params["tools"])
        functions = [tool for tool in tools if tool.get("type", "function") == "function"]
        left_out = [str(tool.get("name") or tool.get("type")) for tool in tools if tool not in functions]
        sent_params["tools"] = functions
        if not functions:
            sent_params = without(
                sent_params, [key for key in sent_params if key.startswith(("tool", "parallel"))]
            )
    text = sent_params.get("text")
    if isinstance(text, dict):
        sent_params["text"] = {"format": text["format"]} if text.get("format") else None
    return without(sent_params, [key for key, value in sent_params.items() if value is None]), left_out


def hidden(response: ResponseJson) -> ResponseJson:
    """The response for the program: without token ids, logprobs and fields added by rollforge."""
    output = [_hidden_item(item) for item in items_in(response.get("output"))]
    return {**without(response, (*TOKEN_KEYS, OWN_KEY)), "output": output}


def _hidden_item(item: ItemJson) -> ItemJson:
    hidden_item = without(item, (*TOKEN_KEYS, OWN_KEY))
    content = item.get("content")
    if isinstance(content, list):
        hidden_item["content"] = [_hidden_part(part) for part in content]
    return hidden_item


def _hidden_part(part: PartJson) -> PartJson:
    return {**part, "logprobs": []} if isinstance(part, dict) and part.get("logprobs") else part
