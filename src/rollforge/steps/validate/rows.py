"""This module checks whole rows: tasks, rollouts, and rows of prepared datasets (chat, prompt and completion, preferences)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rollforge.records import ATTEMPT_KEY, PARAMS_KEY, ROLLOUT_KEY, TASK_KEY, JsonObject
from rollforge.steps.validate.params import check_item, check_params, check_tools, kind_of
from rollforge.steps.validate.records import FileKind, Finding

TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
DATASET_KEYS = (
    "messages", "conversations", "prompt", "completion", "chosen", "rejected", "chosen_response", "completions", "input", "rollout",
)  # fmt: skip


def kind_of_row(row: JsonObject) -> FileKind | None:
    """What the row claims to be; None when it claims nothing."""
    if PARAMS_KEY in row:
        return "rollouts" if "response" in row else "tasks"
    if any(key in row for key in DATASET_KEYS):
        return "dataset"
    return "rollouts" if "response" in row else None


def check_row(row: JsonObject, kind: FileKind, needs: Sequence[str]) -> Iterator[Finding]:
    """Everything wrong with one row of a file of this kind."""
    claimed = kind_of_row(row)
    if claimed is None:
        keys = ", ".join(list(row)[:6]) or "no keys"
        yield Finding(
            "", f"neither a task, a rollout nor a row of a dataset (keys: {keys})", f"a task has {PARAMS_KEY}"
        )
        return
    if claimed != kind:
        yield Finding(
            "", f"this row is one of {claimed}, the file holds {kind}", "keep one kind of row per file"
        )
    if claimed == "dataset":
        yield from _check_dataset(row)
        return
    yield from _check_indices(row)
    if PARAMS_KEY in row:
        yield from check_params(row[PARAMS_KEY], PARAMS_KEY)
    if claimed == "rollouts":
        yield from _check_rollout(row)
    else:
        for name in needs:
            if row.get(name) is None:
                yield Finding(
                    name, "missing: the verifier needs it", "add the field, or choose another --verifier"
                )


def _check_indices(row: JsonObject) -> Iterator[Finding]:
    for key in (TASK_KEY, ROLLOUT_KEY, ATTEMPT_KEY):
        value = row.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            yield Finding(key, f"expected a whole number from 0, got {value!r}")
    agent = row.get("agent_ref")
    if agent is not None and not (isinstance(agent, dict) and isinstance(agent.get("name"), str)):
        yield Finding("agent_ref", "expected an object with a name", 'write {"name": "…"}')


def _check_rollout(row: JsonObject) -> Iterator[Finding]:
    reward = row.get("reward")
    if "reward" not in row:
        yield Finding("reward", "missing: expected a number, or null for unjudged")
    elif reward is not None and (isinstance(reward, str | list | dict)):
        yield Finding("reward", f"expected a number or null, got {kind_of(reward)}")
    response = row.get("response")
    if not isinstance(response, dict):
        yield Finding("response", f"expected an object, got {kind_of(response)}")
        return
    output = response.get("output")
    if not isinstance(output, list):
        yield Finding("response.output", f"expected a list of items, got {kind_of(output)}")
        return
    for number, item in enumerate(output):
        path = f"response.output[{number}]"
        yield from check_item(item, path)
        if isinstance(item, dict):
            yield from _check_tokens(item, path)
    usage = response.get("usage")
    if usage is not None and not isinstance(usage, dict):
        yield Finding("response.usage", f"expected an object, got {kind_of(usage)}")


def _check_tokens(item: JsonObject, path: str) -> Iterator[Finding]:
    """Token ids come all three together, and as many log probabilities as tokens."""
    there = [name for name in TOKEN_FIELDS if item.get(name) is not None]
    if there and len(there) < len(TOKEN_FIELDS):
        missing = ", ".join(name for name in TOKEN_FIELDS if name not in there)
        yield Finding(path, f"token fields come all three or not at all; missing: {missing}")
    elif there:
        tokens, logs = item["generation_token_ids"], item["generation_log_probs"]
        if isinstance(tokens, list) and isinstance(logs, list) and len(tokens) != len(logs):
            yield Finding(path, f"{len(tokens)} generated tokens, but {len(logs)} log probabilities")


def _check_dataset(row: JsonObject) -> Iterator[Finding]:
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
        for finding in _check_rollout(value):
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
