"""Checks rows of prepared datasets: chat, prompt and completion, preferences, in the trainers' formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from rollforge.records import PARAMS_KEY
from rollforge.steps.validate.chats import check_chat
from rollforge.steps.validate.outcomes import check_rollout
from rollforge.steps.validate.tool_checks import check_chat_tools
from rollforge.steps.validate.validation_records import RowFault, is_json, kind_of, shown

DATASET_KEYS = (
    "messages", "conversations", "prompt", "completion", "chosen", "rejected", "chosen_response", "completions", "input", "rollout",
    "instruction", "text", "steps",
)  # fmt: skip

ANSWERS = (
    "messages", "conversations", "completion", "chosen", "rejected", "completions", "output", "rollout", "text", "steps",
)  # fmt: skip
"""Keys of answers; a row with none of these is a prompt only, and valid as a task or as a row of a prompt set."""

SIDES = (
    "instruction", "context", "input", "prompt", "completion", "chosen", "rejected", "rollout", "text",
)  # fmt: skip
"""Keys whose value is a text or a list of messages."""


def check_dataset(row: Mapping[str, object]) -> Iterator[RowFault]:
    """Check a trainer's row."""
    is_context = isinstance(row.get("chosen"), dict)  # each side is one message, and answers the messages
    for key in ("messages", "conversations"):
        if key in row:
            yield from check_chat(row[key], key, must_answer=not is_context)
    for key in SIDES:
        may_be_empty = key == "input" and "instruction" in row
        if key in row and not may_be_empty:
            yield from _check_side(row[key], key)
    if "steps" in row:
        yield from _check_steps(row["steps"])
    if "completions" in row:
        yield from _check_ranked(row["completions"])
    if "chosen" in row and row["chosen"] == row.get("rejected"):
        yield RowFault("rejected", "is the same as `chosen`: the pair teaches nothing", _PAIR)
    if ("chosen" in row) != ("rejected" in row):
        yield RowFault("rejected" if "chosen" in row else "chosen", "missing: a pair has both", _PAIR)
    is_labelled = "label" in row and any(key in row for key in ("completion", "conversations", "rollout"))
    if is_labelled and row["label"] not in (0, 1):  # which true and false are too
        yield RowFault(
            "label", f"expected true or false, got {shown(row['label'])}", "true for a good answer"
        )
    yield from _check_tools(row.get("tools"))


def _check_steps(steps: object) -> Iterator[RowFault]:
    """Check the steps of an ATIF trajectory: numbered from 1, each with a source and a message."""
    hint = 'steps are [{"step_id": 1, "source": "user", "message": "…"}, …]'
    if not isinstance(steps, list) or not steps:
        yield RowFault("steps", f"expected a list of steps, got {kind_of(steps)}", hint)
        return
    for number, step in enumerate(steps, 1):
        where = f"steps[{number - 1}]"
        if not isinstance(step, dict):
            yield RowFault(where, f"expected an object, got {kind_of(step)}", hint)
        elif step.get("step_id") != number:
            yield RowFault(f"{where}.step_id", f"expected {number}, got {shown(step.get('step_id'))}", hint)
        elif step.get("source") not in ("system", "user", "agent") or "message" not in step:
            yield RowFault(where, "expected a source (system, user or agent) and a message", hint)


def _check_tools(tools: object) -> Iterator[RowFault]:
    """Parse tools from a list, or from a text that contains one; an empty text means none."""
    if isinstance(tools, str) and tools:
        if not is_json(tools):
            yield RowFault("tools", f"is not JSON: {shown(tools)}", "write the list of tools as JSON text")
            return
        tools = msgspec.json.decode(tools)
        if not isinstance(tools, list | None):
            yield RowFault("tools", "expected a list of tools as JSON text", 'for none: ""')
            return
    if isinstance(tools, list):
        yield from check_chat_tools(tools, "tools")


def _check_side(value: object, key: str) -> Iterator[RowFault]:
    """Check a prompt or an answer: text, messages, one message, or a whole rollout."""
    if isinstance(value, list):
        yield from check_chat(value, key, must_answer=key not in ("prompt", "context", "input"))
    elif isinstance(value, dict) and PARAMS_KEY in value:
        for fault in check_rollout(value):
            yield RowFault(f"{key}.{fault.path}", fault.text, fault.hint, fault.level)
    elif isinstance(value, dict) and key in ("chosen", "rejected") and ("role" in value or "from" in value):
        yield from check_chat([value], key, must_answer=True)
    elif not isinstance(value, str):
        yield RowFault(key, f"expected a text or a list of messages, got {kind_of(value)}", _SIDE)
    elif not value and key != "rejected":
        yield RowFault(key, "is empty", "leave the row out: there is nothing to learn from it")


_SIDE = 'a text, or messages like {"role": "user", "content": "…"}'
_PAIR = "give two different answers to one prompt, or leave the row out"


def _check_ranked(completions: object) -> Iterator[RowFault]:
    """Check two answers to one context, ordered by rank."""
    sides = [side for side in completions if isinstance(side, dict)] if isinstance(completions, list) else []
    if len(sides) != 2:
        yield RowFault("completions", "expected two, each with a rank and a completion", _PAIR)
        return
    for number, side in enumerate(sides):
        yield from check_chat(side.get("completion"), f"completions[{number}].completion", must_answer=True)
    if sides[0].get("rank") == sides[1].get("rank"):
        yield RowFault(
            "completions", "both have the same rank: neither is the better one", "the better one has 0"
        )
    if sides[0].get("completion") == sides[1].get("completion"):
        yield RowFault("completions", "both are the same: the pair teaches nothing", _PAIR)
