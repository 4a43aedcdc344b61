"""The turns of one rollout, and the single response they make.

Items are kept unchanged, with token ids and logprobs. They are sent back to the model without the fields that servers refuse or
ignore.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from rollforge.agents.base import leave_behind
from rollforge.endpoint.model import ModelAnswer
from rollforge.errors import Failure
from rollforge.json_shapes import (
    FunctionJson,
    ItemJson,
    ParamsJson,
    PartJson,
    ResponseJson,
    ToolJson,
    UsageJson,
    items_in,
    tools_in,
    without,
)
from rollforge.records import OWN_KEY

TOKEN_KEYS = frozenset({"prompt_token_ids", "generation_token_ids", "generation_log_probs", "routed_experts"})
"""Keys that a training server adds to the last item of each model call."""

_NOT_SENT = TOKEN_KEYS | {OWN_KEY}


class Transcript:
    """The turns of one rollout so far."""

    def __init__(self, params: ParamsJson) -> None:
        self.output: list[ItemJson] = []
        self.turns = 0
        self.requests = 0
        self.wasted: tuple[object, ...] = ()
        self.tool_seconds = 0.0
        """Seconds per turn until the last of its tool calls was answered, summed."""
        self.endpoint = ""
        self.api = ""
        self._params = params
        self._history = input_items(params.get("input"))
        self._last: ResponseJson = {}
        self._usages: list[UsageJson | None] = []

    def next_params(self) -> ParamsJson:
        """Parameters of the next model request: the task, and all turns so far."""
        return {**self._params, "input": list(self._history)}

    def add_answer(self, answer: ModelAnswer) -> list[ItemJson]:
        """Append a model turn; returns its function calls."""
        items = items_in(answer.response.get("output"))
        self.turns += 1
        self.requests += answer.requests
        self.wasted += answer.wasted
        self.endpoint = answer.endpoint
        self.api = answer.api
        self._last = answer.response
        usage = answer.response.get("usage")
        self._usages.append(usage if isinstance(usage, dict) else None)
        self._extend(items)
        return [item for item in items if item.get("type") == "function_call"]

    def add_outputs(self, outputs: list[ItemJson]) -> None:
        """Append the tools' outputs."""
        self._extend(outputs)

    @property
    def is_cut(self) -> bool:
        """Whether the last turn ended early (token limit, filter), so that its calls may be incomplete."""
        return self._last.get("status") == "incomplete" or bool(self._last.get("incomplete_details"))

    def response(self, *, incomplete: str | None = None, failure: Failure | None = None) -> ResponseJson:
        """All turns as one Responses object: identity and status of the last one, items and usage of all.

        Args:
            incomplete: Why the rollout ended before the model was done.
            failure: The failure that ended the rollout, if it failed.
        """
        merged: ResponseJson = {**self._last, "output": self.output, "usage": sum_usage(self._usages)}
        if self._params.get("tools"):
            merged["tools"] = self._params["tools"]
        if incomplete or failure:
            merged["status"] = "failed" if failure else "incomplete"
            merged["incomplete_details"] = {"reason": incomplete} if incomplete else None
            if isinstance(merged.get("finish_reason"), str):
                merged["finish_reason"] = incomplete
        if failure:
            merged["error"] = {"code": failure.kind, "message": failure.message}
        return merged

    def leave_on(self, error: BaseException) -> None:
        """Attach the turns so far, and their cost, to the error that ended the rollout."""
        if isinstance(error, Failure):
            error.requests += self.requests
            error.wasted += self.wasted
            if self.turns:
                error.partial = self.response(failure=error)
        elif isinstance(error, asyncio.CancelledError) and self.turns:
            leave_behind(error, self.response(incomplete="cancelled"), self.requests)

    def _extend(self, items: list[ItemJson]) -> None:
        self.output += items
        self._history += [sendable(item) for item in items]


def input_items(value: str | list[ItemJson] | None) -> list[ItemJson]:
    """A task's input as items: a plain text is one user message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value, "type": "message"}]
    return list(value or [])


def tool_names(params: ParamsJson) -> set[str]:
    """The functions a task offers, whether written the Responses way or nested the chat way."""
    inner = [_function(tool) for tool in tools_in(params.get("tools"))]
    return {str(tool["name"]) for tool in inner if tool.get("name")}


def _function(tool: ToolJson) -> FunctionJson:
    nested = tool.get("function")
    return nested if isinstance(nested, dict) else tool


def sendable(item: ItemJson) -> ItemJson:
    """The item in the form that a model server accepts as input."""
    sent_item = without(item, _NOT_SENT)
    content = item.get("content")
    if item.get("type") == "message" and isinstance(content, list):
        sent_item["content"] = [_sendable_part(part) for part in content]
    return sent_item


def _sendable_part(part: PartJson) -> PartJson:
    return without(part, ("logprobs",)) if isinstance(part, dict) else part


def sum_usage(usages: list[UsageJson | None]) -> UsageJson | None:
    """Token counts over all turns, nested details too; None when a turn was not counted, since the sum would be too low."""
    if not usages or any(usage is None for usage in usages):
        return None
    return cast("UsageJson", _sum_counts(usages))


def _sum_counts(counts: Sequence[Any]) -> dict[str, int | float | None]:
    total: dict[str, Any] = {}
    for key in dict.fromkeys(key for count in counts for key in count):
        values = [count[key] for count in counts if count.get(key) is not None]
        if not values:
            total[key] = None
        elif all(isinstance(value, dict) for value in values):
            total[key] = _sum_counts(values)
        elif all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            total[key] = sum(values)
        else:
            total[key] = values[-1]
    return total
