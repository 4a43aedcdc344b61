"""Translates between the Responses API and Chat Completions, both ways, and keeps all data that training may need.

A rollout has one shape on disk whichever API made it. Chat's extra fields (finish reason, fingerprint, token ids, logprobs) are
kept in the Responses-shaped object.
"""

from __future__ import annotations

from typing import Any, cast

from rollforge.endpoint.failures import failure_from_error
from rollforge.errors import Failure
from rollforge.json_shapes import (
    ChatBodyJson,
    ChatCallJson,
    ChatChoiceJson,
    ChatCompletionJson,
    ChatMessageJson,
    FormatJson,
    ItemJson,
    ParamsJson,
    PartJson,
    ResponseJson,
    TokenLogprobJson,
    ToolJson,
    UsageJson,
    without,
)
from rollforge.records import from_json

_RESPONSES_ONLY = frozenset(
    {
        *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "max_output_tokens"),
        *("top_logprobs", "include", "truncation", "previous_response_id", "background", "store"),
        *("max_tool_calls", "metadata", "prompt"),
    }
)
"""Params that Chat Completions does not have, or has under another name."""


_CHAT_ITEMS = frozenset({"message", "reasoning", "function_call", "function_call_output"})


def needs_responses(params: ParamsJson) -> bool:
    """Whether these params need the Responses API: stored state, tools other than functions, items without a chat equivalent."""
    if params.get("previous_response_id") or params.get("prompt") or params.get("background"):
        return True
    tools = params.get("tools") or []
    if any(isinstance(tool, dict) and tool.get("type", "function") != "function" for tool in tools):
        return True
    items = params.get("input")
    return isinstance(items, list) and any(
        isinstance(item, dict) and item.get("type", "message") not in _CHAT_ITEMS for item in items
    )


def to_chat_body(params: ParamsJson) -> ChatBodyJson:
    """Responses params as a Chat Completions request."""
    shared = {key: value for key, value in params.items() if value is not None and key not in _RESPONSES_ONLY}
    body = cast("ChatBodyJson", shared)
    body["messages"] = to_messages(params.get("input"), params.get("instructions"))
    if params.get("max_output_tokens") is not None:
        body["max_tokens"] = params["max_output_tokens"]
    if params.get("tools"):
        body["tools"] = [_nested_tool(tool) for tool in params["tools"]]
        if params.get("tool_choice") not in (None, "auto"):
            body["tool_choice"] = _nested_choice(params["tool_choice"])
    else:
        body.pop("parallel_tool_calls", None)
    if params.get("top_logprobs") is not None:
        body["logprobs"], body["top_logprobs"] = True, params["top_logprobs"]
    effort = (params.get("reasoning") or {}).get("effort")
    if effort:
        body["reasoning_effort"] = effort
    text = params.get("text")
    if isinstance(text, dict) and text.get("format"):
        body["response_format"] = _response_format(text["format"])
    body.update(_extra_body(params.get("metadata")))
    return body


def _extra_body(metadata: object) -> ChatBodyJson:
    """Parse `metadata.extra_body`, in which NeMo Gym carries fields outside the Responses schema as JSON text."""
    extra = metadata.get("extra_body") if isinstance(metadata, dict) else None
    parsed = from_json(extra) if isinstance(extra, str) else None
    return cast("ChatBodyJson", parsed) if isinstance(parsed, dict) else {}


def _nested_tool(tool: ToolJson) -> ToolJson:
    if tool.get("type") != "function" or "function" in tool:
        return tool
    absent = [key for key, value in tool.items() if value is None]
    return {"type": "function", "function": without(tool, {"type", *absent})}


def _nested_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function" and "function" not in choice:
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _response_format(wanted: FormatJson) -> FormatJson:
    if wanted.get("type") == "json_schema" and "json_schema" not in wanted:
        return {"type": "json_schema", "json_schema": without(wanted, {"type"})}
    return wanted


def to_messages(items: str | list[ItemJson] | None, instructions: str | None = None) -> list[ChatMessageJson]:
    """Responses input as chat messages; adjacent calls of one turn become one assistant message."""
    messages: list[ChatMessageJson] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(items, str):
        return [*messages, {"role": "user", "content": items}]
    reasoning = ""
    for item in items or []:
        kind = item.get("type", "message")
        if kind == "reasoning":
            reasoning += _reasoning_text(item)
        elif kind == "function_call":
            _add_call(messages, item, reasoning)
            reasoning = ""
        elif kind == "function_call_output":
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": _as_text(item.get("output"))}
            )
        elif kind == "message":
            message: ChatMessageJson = {
                "role": item["role"],
                "content": _chat_content(item.get("content")),
            }
            if reasoning and item["role"] == "assistant":
                message["reasoning_content"] = reasoning
            reasoning = ""
            messages.append(message)
        else:
            raise Failure(
                "agent", "permanent", f"an input item of type {kind!r} cannot be sent over Chat Completions"
            )
    return messages


def _add_call(messages: list[ChatMessageJson], item: ItemJson, reasoning: str) -> None:
    call: ChatCallJson = {
        "id": item.get("call_id"),
        "type": "function",
        "function": {"name": item.get("name"), "arguments": item.get("arguments") or "{}"},
    }
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
        return
    message: ChatMessageJson = {"role": "assistant", "content": None, "tool_calls": [call]}
    if reasoning:
        message["reasoning_content"] = reasoning
    messages.append(message)


def _reasoning_text(item: ItemJson) -> str:
    parts = [*(item.get("summary") or []), *(item.get("content") or [])]
    return "".join(part.get("text") or "" for part in parts if isinstance(part, dict))


def _as_text(output: Any) -> str:
    if isinstance(output, str):
        return output
    return "".join(part.get("text") or "" for part in output or [] if isinstance(part, dict))


def _chat_content(content: Any) -> Any:
    """Content for chat: plain text where possible, because many servers' templates require a string."""
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        kind = part.get("type")
        if kind in ("input_text", "output_text", "text"):
            parts.append({"type": "text", "text": part.get("text") or ""})
        elif kind == "refusal":
            parts.append({"type": "text", "text": part.get("refusal") or ""})
        elif kind == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        else:
            parts.append(part)
    if all(part.get("type") == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def from_chat(completion: ChatCompletionJson) -> ResponseJson:
    """A chat completion as a Responses-shaped object."""
    choices = completion.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        if completion.get("error"):
            raise failure_from_error(completion["error"])
        raise Failure("model", "transient", "the chat completion has no choices")
    choice = choices[0]
    message = choice.get("message") or {}
    if not isinstance(message, dict):
        raise Failure("model", "transient", "the chat completion's message is no object")
    finish = choice.get("finish_reason")
    if finish in ("error", "abort"):
        failure = failure_from_error(
            choice.get("error") or f"it ended the answer with finish_reason {finish}"
        )
        failure.usage = to_responses_usage(completion.get("usage"))
        raise failure
    is_cut = finish in ("length", "content_filter")
    response: ResponseJson = {
        "id": completion.get("id") or "",
        "object": "response",
        "created_at": completion.get("created") or 0,
        "model": completion.get("model"),
        "status": "incomplete" if is_cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens" if finish == "length" else finish}
        if is_cut
        else None,
        "output": _output_items(completion, choice, message, is_cut),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": to_responses_usage(completion.get("usage")),
        "finish_reason": finish,
    }
    translated_keys = {*response, "choices", "created"}
    beside = {
        key: value for key, value in completion.items() if key not in translated_keys and value is not None
    }
    return cast("ResponseJson", {**response, **beside})


def _output_items(
    completion: ChatCompletionJson, choice: ChatChoiceJson, message: ChatMessageJson, is_cut: bool
) -> list[ItemJson]:
    name = completion.get("id") or "0"
    items: list[ItemJson] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        items.append(
            {
                "type": "reasoning",
                "id": f"rs_{name}",
                "summary": [{"type": "summary_text", "text": reasoning}],
            }
        )
    calls = message.get("tool_calls")
    calls = calls if isinstance(calls, list) else []
    parts = _message_parts(choice, message)
    if parts or not calls:
        items.append(
            {
                "type": "message",
                "id": f"msg_{name}",
                "role": "assistant",
                "status": "incomplete" if is_cut else "completed",
                "content": parts,
            }
        )
    items += [_call_item(call) for call in calls if isinstance(call, dict)]
    _attach_tokens(items[-1], completion, choice)
    return items


def _message_parts(choice: ChatChoiceJson, message: ChatMessageJson) -> list[PartJson]:
    parts: list[PartJson] = []
    text = message.get("content")
    if isinstance(text, list):  # a few servers answer in parts
        text = "".join(part.get("text") or "" for part in text if isinstance(part, dict))
    if text:
        logprobs = _logprobs(choice)
        parts.append({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
    refusal = message.get("refusal")
    if refusal:
        parts.append({"type": "refusal", "refusal": refusal})
    return parts


def _call_item(call: ChatCallJson) -> ItemJson:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return {
        "type": "function_call",
        "id": f"fc_{call.get('id')}",
        "call_id": call.get("id") or "",
        "name": function.get("name") or "",
        "arguments": function.get("arguments") or "",
        "status": "completed",
    }


def _attach_tokens(item: ItemJson, completion: ChatCompletionJson, choice: ChatChoiceJson) -> None:
    """Attach token ids and logprobs under NeMo Gym's names to the call's last item: all three fields, or none."""
    prompt_ids = completion.get("prompt_token_ids") or choice.get("prompt_token_ids")
    ids = choice.get("token_ids")
    logprobs = _logprobs(choice)
    if not isinstance(ids, list) and isinstance(logprobs, list):
        named = [
            entry.get("id") for entry in logprobs if isinstance(entry, dict)
        ]  # llama.cpp writes them there
        whole = [one for one in named if isinstance(one, int)]
        ids = whole if len(whole) == len(named) else None
    if not isinstance(ids, list) or not isinstance(prompt_ids, list) or not isinstance(logprobs, list):
        return
    if len(ids) == len(logprobs):
        item["prompt_token_ids"] = prompt_ids
        item["generation_token_ids"] = ids
        item["generation_log_probs"] = [
            entry.get("logprob") if isinstance(entry, dict) else None for entry in logprobs
        ]


def _logprobs(choice: ChatChoiceJson) -> list[TokenLogprobJson] | None:
    """The list of token logprobs, or None."""
    logprobs = choice.get("logprobs")
    return logprobs.get("content") if isinstance(logprobs, dict) else None


def to_responses_usage(usage: object) -> UsageJson | None:
    """Chat's token counts under the Responses API's names; None if the server did not count."""
    if not isinstance(usage, dict):
        return None
    names = {
        "prompt_tokens": "input_tokens",
        "prompt_tokens_details": "input_tokens_details",
        "completion_tokens": "output_tokens",
        "completion_tokens_details": "output_tokens_details",
    }
    renamed = {names.get(str(key), str(key)): value for key, value in usage.items() if value is not None}
    return cast("UsageJson", renamed)
