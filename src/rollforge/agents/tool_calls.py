"""Answers the function calls of one model turn.

Mistakes of the model (broken JSON, an unknown tool, arguments that do not fit) and exceptions of a tool go back to the model as
text, so that it can correct itself; the item keeps the class of the error. Only an unreachable tool server is a `Failure` of the
rollout.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from rollforge.agents.tools.base import ToolError, ToolSession
from rollforge.endpoint import MAX_RESPONSE_BYTES
from rollforge.errors import Failure
from rollforge.json_shapes import ItemJson
from rollforge.records import OWN_KEY, JsonObject, from_json, to_json
from rollforge.store.reading import UNREADABLE
from rollforge.text_safety.outgoing import cut


async def answer_calls(
    calls: list[ItemJson],
    session: ToolSession,
    timeout_s: float | None,
    max_bytes: int = MAX_RESPONSE_BYTES,
) -> list[ItemJson]:
    """Answer every call with one `function_call_output` item, in call order. Without `timeout_s`, the session applies its own
    limit.
    """
    if len(calls) == 1 or not session.is_parallel:
        return [await answer_call(call, session, timeout_s, max_bytes) for call in calls]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer_call(call, session, timeout_s, max_bytes)) for call in calls]
    except BaseExceptionGroup as errors:
        # One tool's server is gone: the others were cancelled, and the first error says why.
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def answer_call(
    call: ItemJson,
    session: ToolSession,
    timeout_s: float | None,
    max_bytes: int = MAX_RESPONSE_BYTES,
) -> ItemJson:
    """The output item for one call."""
    started = time.monotonic()
    name = str(call.get("name") or "")
    error: str | None = None
    try:
        arguments = parse_arguments(call.get("arguments"))
        text = await _call_in_time(session, name, arguments, timeout_s)
        if len(text) > max_bytes:
            raise tool_error(
                "too-large",
                f"the tool {name} returned {len(text):,} characters, which is too much (--max-response-bytes)",
            )
    except ToolError as problem:
        text, error = problem.text, problem.kind
    return {
        "type": "function_call_output",
        "call_id": call.get("call_id") or "",
        "output": text,
        OWN_KEY: {"seconds": round(time.monotonic() - started, 6), "error": error},
    }


async def _call_in_time(
    session: ToolSession, name: str, arguments: Mapping[str, object], timeout_s: float | None
) -> str:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await session.call(name, arguments)
    except TimeoutError as error:
        if limit.expired():
            raise tool_error("timeout", f"the tool {name} took longer than {timeout_s:g} s") from None
        raise tool_error("TimeoutError", f"TimeoutError: {error}") from error
    except (ToolError, Failure):
        raise
    except Exception as error:  # the boundary to the tool's code: the model reads it
        raise tool_error(type(error).__name__, f"{type(error).__name__}: {error}") from error


def parse_arguments(text: object) -> JsonObject:
    """The arguments of a call; an empty text means an empty object."""
    if isinstance(text, dict):
        return text
    try:
        value = from_json(str(text)) if text else {}
    except UNREADABLE as error:
        raise tool_error("bad-arguments", f"Invalid tool call arguments: {error}") from error
    if not isinstance(value, dict):
        raise tool_error(
            "bad-arguments", f"Invalid tool call arguments: expected an object, got {type(value).__name__}"
        )
    return value


def tool_error(kind: str, message: str) -> ToolError:
    """An error output item with the text for the model."""
    return ToolError(kind, to_json({"error": cut(message, 2000)}).decode())
