"""Logs of the verifiers library: `traces.jsonl` of version 1, `results.jsonl` of version 0.

A line of version 1 is an episode with a trace per agent; each trained trace is a rollout. It is judged only if the whole episode
ended without error and no reward is missing, because the library sums missing rewards as 0. An episode that failed during scoring
is unjudged. Version 0 scores an exception in a reward function as 0 and does not log it, so only rollouts with a logged error are
unjudged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict, cast

import msgspec

from rollforge.conversations.chat_items import items_of, message_of
from rollforge.errors import DataError
from rollforge.importers.base import ImportedRollout, finite, read_json
from rollforge.json_shapes import ChatMessageJson, UsageJson
from rollforge.records import JsonFields, Verdict, to_json
from rollforge.store.reading import UNREADABLE, lines_of

LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "agent_timeout")
"""Stop conditions that cut an episode short; the episode is judged nevertheless."""


def read_verifiers(path: Path, reward: str | None) -> Iterator[ImportedRollout]:
    """One rollout per line of version 0, one per trained agent of an episode of version 1."""
    if not path.is_file():
        what = "a folder, not a log" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}", hint="give traces.jsonl or results.jsonl")
    for number, line in enumerate(lines_of(path), 1):
        try:
            row = read_json(line)
        except UNREADABLE as error:
            raise DataError(f"{path}:{number}: {error}", hint="give traces.jsonl or results.jsonl") from error
        if not isinstance(row, dict) or not ({"traces", "nodes", "completion"} & set(row)):
            raise DataError(
                f"{path}:{number}: neither a trace nor a result of verifiers",
                hint="give traces.jsonl or results.jsonl; other logs: rollforge list importers",
            )
        if "traces" in row:
            yield from _episode(cast("_EpisodeJson", row), reward)
        elif "nodes" in row:
            yield _trace(cast("_TraceJson", row), reward)
        else:
            yield _result(cast("_ResultJson", row), reward)


class _CallUsageJson(TypedDict, total=False):
    prompt_tokens: int
    completion_tokens: int
    input_tokens: int
    output_tokens: int


class _CallJson(TypedDict, total=False):
    model: str
    usage: _CallUsageJson


class _NodeJson(TypedDict, total=False):
    """A message, with the index of its parent."""

    message: ChatMessageJson
    parent: int | None
    sampled: bool
    timestamp: float


class _TaskJson(TypedDict, total=False):
    key: str
    hash: str
    data: object


class _AgentJson(TypedDict, total=False):
    name: str
    trainable: bool


class _SpanJson(TypedDict, total=False):
    start: float


class _TimingJson(TypedDict, total=False):
    finalize: _SpanJson


class _TraceJson(TypedDict, total=False):
    """One agent's trace in an episode of version 1."""

    nodes: list[_NodeJson]
    task: _TaskJson | None
    calls: list[_CallJson] | None
    errors: list[object] | None
    rewards: dict[str, object] | None
    metrics: dict[str, object] | None
    agent: _AgentJson | None
    timing: _TimingJson | None
    stop_condition: str | None
    ok: bool


class _EpisodeJson(TypedDict, total=False):
    """A line of version 1."""

    task: _TaskJson | None
    traces: list[_TraceJson]
    errors: list[object] | None
    ok: bool


class _ResultJson(TypedDict, total=False):
    """A line of version 0."""

    example_id: object
    prompt: object
    completion: object
    answer: object
    info: object
    reward: float
    metrics: dict[str, object] | None
    error: object
    token_usage: UsageJson | None
    is_truncated: bool


def _episode(row: _EpisodeJson, reward: str | None) -> Iterator[ImportedRollout]:
    """A rollout per trained trace; the episode's failure, if it ended before any agent started."""
    traces = [trace for trace in row["traces"] if isinstance(trace, dict)]
    trained = [trace for trace in traces if (trace.get("agent") or _AgentJson()).get("trainable", True)]
    names = [_agent_name(trace) for trace in trained or traces]
    for trace, name in zip(trained or traces, names, strict=True):
        one = _trace(trace, reward)
        if not row.get("ok", True):
            one = msgspec.structs.replace(one, verdict=None)
        if name != names[0]:  # another role of the same task is another group
            one = msgspec.structs.replace(one, task=f"{one.task} {name}")
        yield one
    if not traces:
        errors = row.get("errors") or []
        task = row.get("task") or _TaskJson()
        why = _error_text(errors) if errors else "the episode has no trace"
        yield ImportedRollout(
            task=_task_name(task), prompt=[], output=[], failure=why, task_fields=_task_fields(task)
        )


def _agent_name(trace: _TraceJson) -> str:
    return str((trace.get("agent") or _AgentJson()).get("name") or "verifiers")


def _task_name(task: _TaskJson) -> str:
    return str(task.get("key") or task.get("hash") or to_json(task.get("data")).decode())


def _task_fields(task: _TaskJson) -> JsonFields:
    return {"verifiers_task": task["data"]} if task.get("data") is not None else {}


def _was_played(row: _TraceJson) -> bool:
    """Whether the agent had finished before the failure, so that only the verdict is missing."""
    span = (row.get("timing") or _TimingJson()).get("finalize") or _SpanJson()
    return bool(span.get("start"))


def _trace(row: _TraceJson, reward: str | None) -> ImportedRollout:
    nodes = [node for node in row["nodes"] if isinstance(node, dict)]
    path = _last_path(nodes)
    first = next((position for position, node in enumerate(path) if node.get("sampled")), len(path))
    messages = [node.get("message") for node in path]
    task = row.get("task") or _TaskJson()
    calls = [call for call in row.get("calls") or [] if isinstance(call, dict)]
    errors = row.get("errors") or []
    return ImportedRollout(
        task=_task_name(task),
        prompt=items_of(messages[:first]),
        output=items_of(messages[first:]),
        verdict=_trace_verdict(row, reward),
        scores=tuple(row.get("rewards") or ()),
        failure=_error_text(errors) if not row.get("ok") and errors and not _was_played(row) else None,
        task_fields=_task_fields(task),
        model=next((call["model"] for call in calls if call.get("model")), None),
        agent=_agent_name(row),
        verifier=f"verifiers:{reward}" if reward else "verifiers",
        usage=_summed([call.get("usage") for call in calls]),
        incomplete=row.get("stop_condition") if row.get("stop_condition") in LIMITS else None,
        started=finite(nodes[0].get("timestamp")) if nodes else None,
    )


def _last_path(nodes: list[_NodeJson]) -> list[_NodeJson]:
    """The messages from the root to the model's last message, and those after it."""
    sampled = [position for position, node in enumerate(nodes) if node.get("sampled")]
    position: int | None = sampled[-1] if sampled else len(nodes) - 1
    path: list[_NodeJson] = []
    while isinstance(position, int) and 0 <= position < len(nodes) and len(path) < len(nodes):
        path.append(nodes[position])
        position = nodes[position].get("parent")
    return path[::-1]


def _trace_verdict(row: _TraceJson, reward: str | None) -> Verdict | None:
    rewards = row.get("rewards") or {}
    chosen = rewards if reward is None else {name: one for name, one in rewards.items() if name == reward}
    values = [_weighted(one) for one in chosen.values()]
    if not row.get("ok") or not values or any(value is None for value in values):
        return None
    metrics = row.get("metrics") or {}
    numbers = {name: value for name, one in metrics.items() if (value := finite(one)) is not None}
    parts = {
        f"reward/{name}": value for name, one in rewards.items() if (value := _weighted(one)) is not None
    }
    return Verdict(reward=sum(value for value in values if value is not None), numbers={**numbers, **parts})


def _weighted(one: object) -> float | None:
    if not isinstance(one, dict):
        return None
    score, weight = finite(one.get("score")), finite(one.get("weight", 1.0))
    return None if score is None or weight is None else score * weight


def _result(row: _ResultJson, reward: str | None) -> ImportedRollout:
    error = row.get("error")
    metrics = row.get("metrics") or {}
    numbers = {name: value for name, one in metrics.items() if (value := finite(one)) is not None}
    value = finite(row.get("reward")) if reward in (None, "reward") else numbers.get(str(reward))
    prompt = row.get("prompt")
    return ImportedRollout(
        task=str(row["example_id"]) if row.get("example_id") is not None else to_json(prompt).decode(),
        prompt=items_of(prompt),
        output=items_of(_messages(row["completion"])),
        verdict=None if error or value is None else Verdict(reward=value, numbers=numbers),
        scores=("reward", *metrics),
        failure=_error_text([error]) if error else None,
        task_fields={"expected_answer": row.get("answer"), "info": row.get("info")},
        agent="verifiers",
        verifier="verifiers",
        usage=_tokens(row.get("token_usage")),
        incomplete="max_output_tokens" if row.get("is_truncated") else None,
    )


def _messages(completion: object) -> list[ChatMessageJson]:
    """A completion as messages; that of a text environment is a string."""
    if isinstance(completion, str):
        return [{"role": "assistant", "content": completion}]
    return [message_of(one) for one in completion] if isinstance(completion, list) else []


def _error_text(errors: Sequence[object]) -> str:
    last = errors[-1]
    if isinstance(last, dict):
        return str(
            last.get("message") or last.get("error_chain_str") or last.get("type") or to_json(last).decode()
        )
    return str(last)


def _tokens(usage: UsageJson | None) -> UsageJson | None:
    if not isinstance(usage, dict):
        return None
    return {"input_tokens": usage.get("input_tokens"), "output_tokens": usage.get("output_tokens")}


def _summed(usages: list[_CallUsageJson | None]) -> UsageJson | None:
    """Tokens over all calls; None when a call was not counted."""
    counted = [usage for usage in usages if isinstance(usage, dict)]
    if not usages or len(counted) < len(usages):
        return None
    read = _total([usage.get("prompt_tokens", usage.get("input_tokens")) for usage in counted])
    written = _total([usage.get("completion_tokens", usage.get("output_tokens")) for usage in counted])
    return None if read is None or written is None else {"input_tokens": read, "output_tokens": written}


def _total(values: Sequence[object]) -> int | None:
    numbers = [number for value in values if (number := finite(value)) is not None]
    return int(sum(numbers)) if len(numbers) == len(values) else None
