"""Rows of NeMo Gym's typed environments in the classic format that every reader accepts.

A typed rollout has no `response`. It lists `invocations`: calls of the policy, of a simulated user, of judges, each with its request
and response. The policy's calls are the trajectory. A typed task wraps its fields in `resolved_row` or `task_input`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollforge.records import PARAMS_KEY, JsonObject

INVOCATIONS_KEY = "invocations"
TYPED_ID_KEY = "_ng_task_id"
TASK_WRAPPERS = ("resolved_row", "task_input")

_POLICY = ("assistant", "agent", "policy")
"""Roles of the invocations that form the trajectory; the others are simulated users, judges and summaries."""


def from_invocations(invocations: object) -> tuple[JsonObject, JsonObject] | None:
    """(`responses_create_params`, `response`) of a typed rollout; None when no invocation is the policy's."""
    calls = [
        call
        for call in (invocations if isinstance(invocations, list) else ())
        if isinstance(call, dict)
        and call.get("role") in _POLICY
        and isinstance(call.get("request"), dict)
        and isinstance(call.get("response"), dict)
    ]
    if not calls:
        return None
    output: list[Any] = []
    for number, call in enumerate(calls):
        if number:
            output += _new_input(call["request"].get("input"))
        items = call["response"].get("output")
        output += items if isinstance(items, list) else []
    response = {**calls[-1]["response"], "output": output}
    usages = [call["response"].get("usage") for call in calls]
    if any(usages):
        response["usage"] = _added(usages)
    return calls[0]["request"], response


def _new_input(items: object) -> list[Any]:
    """The policy's new input since its last answer: the items after its own last item."""
    if not isinstance(items, list):
        return [{"type": "message", "role": "user", "content": items}] if isinstance(items, str) else []
    own = [
        position
        for position, item in enumerate(items)
        if isinstance(item, dict) and item.get("role") == "assistant"
    ]
    return items[own[-1] + 1 :] if own else []


def _added(usages: list[Any]) -> JsonObject:
    """Sum of several usage objects."""
    total: JsonObject = {}
    for usage in usages:
        for name, value in usage.items() if isinstance(usage, dict) else ():
            if isinstance(value, dict):
                total[name] = _added([total.get(name), value])
            elif isinstance(value, int | float):
                total[name] = total.get(name, 0) + value
    return total


def classic_line(line: bytes) -> bytes:
    """A rollout line in the classic format; returned unchanged if it already is."""
    if b'"invocations"' not in line:
        return line
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line
    if not isinstance(row, dict) or row.get("response") is not None:
        return line
    unwrapped = from_invocations(row.pop(INVOCATIONS_KEY, None))
    if unwrapped is None:
        return line
    return msgspec.json.encode({**row, PARAMS_KEY: unwrapped[0], "response": unwrapped[1]})


def task_id(value: object) -> str | None:
    """The name of a typed task: a string, or an object with task set and id."""
    if isinstance(value, dict):
        value = value.get("task_id")
    return value if isinstance(value, str) else None
