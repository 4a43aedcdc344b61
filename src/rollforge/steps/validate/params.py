"""Checks keys and values of `responses_create_params`; items and tools are checked in separate modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rollforge.registry import did_you_mean
from rollforge.steps.validate.item_checks import check_input
from rollforge.steps.validate.tool_checks import check_tool_choice, check_tools
from rollforge.steps.validate.validation_records import RowFault, kind_of, shown

PARAMS = (
    "background", "include", "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model",
    "parallel_tool_calls", "previous_response_id", "prompt", "reasoning", "service_tier", "store", "stream", "temperature", "text",
    "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
    "context_management", "conversation", "moderation", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "stream_options",
)  # fmt: skip


def check_params(params: object, path: str) -> Iterator[RowFault]:
    """Check the parameters of a request."""
    if not isinstance(params, dict):
        yield RowFault(path, f"expected an object, got {kind_of(params)}", 'like {"input": "…"}')
        return
    for key, value in params.items():
        if key not in PARAMS and value is not None:
            hint = (
                "put the prompt under `input`"
                if key == "messages"
                else "other fields belong at the top level of the row"
            )
            text = f"no parameter of the Responses API{did_you_mean(key, list(PARAMS))}; it is sent as it is"
            yield RowFault(f"{path}.{key}", text, hint, "warning")
    if params.get("input") is None:
        yield RowFault(
            f"{path}.input", "missing: expected a text or a list of items", "write the prompt there"
        )
    else:
        yield from check_input(params["input"], f"{path}.input")
    yield from check_tools(params.get("tools"), f"{path}.tools")
    yield from check_tool_choice(params.get("tool_choice"), params.get("tools"), f"{path}.tool_choice")
    yield from _check_numbers(params, path)
    yield from _check_kinds(params, path)
    metadata = params.get("metadata")
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        yield RowFault(f"{path}.metadata", "expected an object of texts", "write numbers and objects as text")
    if params.get("stream"):
        yield RowFault(f"{path}.stream", "streaming is not supported here", "leave it out")


_RANGES: dict[str, tuple[Any, float, float, str]] = {
    "temperature": ((int, float), 0, 2, "a number from 0 to 2"),
    "top_p": ((int, float), 0, 1, "a number from 0 to 1"),
    "max_output_tokens": (int, 1, float("inf"), "a whole number above 0"),
    "max_tool_calls": (int, 0, float("inf"), "a whole number"),
    "top_logprobs": (int, 0, 20, "a whole number from 0 to 20"),
}


def _check_numbers(params: Mapping[str, object], path: str) -> Iterator[RowFault]:
    for name, (kind, low, high, expected) in _RANGES.items():
        value: Any = params.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kind) or not low <= value <= high:
            yield RowFault(f"{path}.{name}", f"expected {expected}, got {shown(value)}", "or leave it out")


_KINDS: dict[str, tuple[type, str]] = {
    **dict.fromkeys(
        ("instructions", "model", "previous_response_id", "service_tier", "user"), (str, "a text")
    ),
    **dict.fromkeys(("background", "parallel_tool_calls", "store"), (bool, "true or false")),
    **dict.fromkeys(("prompt", "reasoning", "text"), (dict, "an object")),
}
_EXAMPLES = {
    "reasoning": 'like {"effort": "low"}',
    "text": 'like {"format": {"type": "text"}}; the prompt goes under `input`',
    "prompt": "it names a stored prompt; a prompt of your own goes under `input`",
}


def _check_kinds(params: Mapping[str, object], path: str) -> Iterator[RowFault]:
    for name, (kind, expected) in _KINDS.items():
        value = params.get(name)
        if value is not None and not isinstance(value, kind):
            yield RowFault(
                f"{path}.{name}",
                f"expected {expected}, got {shown(value)}",
                _EXAMPLES.get(name, "or leave it out"),
            )
    truncation = params.get("truncation")
    if truncation is not None and truncation not in ("auto", "disabled"):
        yield RowFault(
            f"{path}.truncation", f"expected auto or disabled, got {shown(truncation)}", "or leave it out"
        )
    include = params.get("include")
    if include is not None and not (
        isinstance(include, list) and all(isinstance(name, str) for name in include)
    ):
        hint = 'like ["reasoning.encrypted_content"]'
        yield RowFault(f"{path}.include", f"expected a list of texts, got {shown(include)}", hint)
