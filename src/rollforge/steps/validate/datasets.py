"""This module checks rows of prepared datasets: chat, prompt and completion, preferences, in the forms of the trainers."""

from __future__ import annotations

from collections.abc import Iterator

from rollforge.records import PARAMS_KEY, JsonObject
from rollforge.steps.validate.records import Finding, kind_of
from rollforge.steps.validate.rollouts import check_rollout
from rollforge.steps.validate.tools import check_tools

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
DATASET_KEYS = (
    "messages", "conversations", "prompt", "completion", "chosen", "rejected", "chosen_response", "completions", "input", "rollout",
)  # fmt: skip


def check_dataset(row: JsonObject) -> Iterator[Finding]:
    """Everything wrong with a row that is for a trainer."""
    is_context = isinstance(
        row.get("chosen"), dict
    )  # the sides are one message each, the messages what they answer
    for key in ("messages", "conversations"):
        if key in row:
            yield from _check_chat(row[key], key, must_answer=not is_context)
    for key in ("context", "input", "prompt", "completion", "chosen", "rejected", "rollout"):
        if key in row:
            yield from _check_side(row[key], key)
    if "completions" in row:
        yield from _check_ranked(row["completions"])
    if "chosen" in row and row["chosen"] == row.get("rejected"):
        yield Finding("rejected", "is the same as `chosen`: the pair teaches nothing")
    if ("chosen" in row) != ("rejected" in row):
        yield Finding("rejected" if "chosen" in row else "chosen", "missing: a pair has both")
    if "label" in row and "input" not in row and not isinstance(row["label"], bool):
        yield Finding("label", f"expected true or false, got {kind_of(row['label'])}")
    if isinstance(row.get("tools"), list) and not all(
        isinstance(t, dict) and "function" in t for t in row["tools"]
    ):
        yield from check_tools(row["tools"], "tools")


def _check_side(value: object, key: str) -> Iterator[Finding]:
    """A prompt or an answer: a text, messages, one message, or a whole rollout."""
    if isinstance(value, list):
        yield from _check_chat(value, key, must_answer=key not in ("prompt", "context", "input"))
    elif isinstance(value, dict) and PARAMS_KEY in value:
        for finding in check_rollout(value):
            yield Finding(f"{key}.{finding.path}", finding.text, finding.hint, finding.level)
    elif isinstance(value, dict) and key in ("chosen", "rejected") and ("role" in value or "from" in value):
        yield from _check_chat([value], key, must_answer=True)
    elif not isinstance(value, str):
        yield Finding(key, f"expected a text or a list of messages, got {kind_of(value)}")
    elif not value and key != "rejected":
        yield Finding(key, "is empty")


def _check_ranked(completions: object) -> Iterator[Finding]:
    """Two answers to one context, told apart by their rank."""
    sides = [side for side in completions if isinstance(side, dict)] if isinstance(completions, list) else []
    if len(sides) != 2:
        yield Finding("completions", "expected two, each with a rank and a completion")
        return
    for number, side in enumerate(sides):
        yield from _check_chat(side.get("completion"), f"completions[{number}].completion", must_answer=True)
    if sides[0].get("rank") == sides[1].get("rank"):
        yield Finding("completions", "both have the same rank: neither is the better one")
    if sides[0].get("completion") == sides[1].get("completion"):
        yield Finding("completions", "both are the same: the pair teaches nothing")


def _check_chat(messages: object, path: str, *, must_answer: bool) -> Iterator[Finding]:
    if not isinstance(messages, list) or not messages:
        yield Finding(
            path, f"expected a list of messages, got {kind_of(messages) if messages else 'nothing'}"
        )
        return
    for number, message in enumerate(messages):
        place = f"{path}[{number}]"
        if not isinstance(message, dict):
            yield Finding(place, f"expected a message, got {kind_of(message)}")
            continue
        role = message.get("role", message.get("from"))
        if role not in CHAT_ROLES and "from" not in message:
            yield Finding(f"{place}.role", f"expected one of {', '.join(CHAT_ROLES[:5])}, got {role!r}")
        content = message.get("content", message.get("value"))
        if content is None and not message.get("tool_calls"):
            yield Finding(f"{place}.content", "missing: expected a text, or tool_calls")
        elif content is not None and not isinstance(content, str | list):
            yield Finding(f"{place}.content", f"expected a text or a list of parts, got {kind_of(content)}")
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            yield Finding(f"{place}.tool_call_id", "missing: which call does it answer?", level="warning")
    last = messages[-1]
    if must_answer and isinstance(last, dict) and last.get("role") not in ("assistant", None):
        is_result = last.get("role") == "tool"  # untidy, but most trainers train what stands before it
        yield Finding(
            f"{path}[{len(messages) - 1}].role",
            f"the last message is the {last.get('role')}'s, not the assistant's",
            level="warning" if is_result else "error",
        )
