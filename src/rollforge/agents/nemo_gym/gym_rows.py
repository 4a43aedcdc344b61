"""NeMo Gym's row shapes: requests in the form that its servers accept, and verdicts and failures from their answers.

Their schemas require some fields and forbid others, so a response is completed before it is sent. Their failure keys take
precedence: a failed judge is never a reward, whatever number is beside it.
"""

from __future__ import annotations

from typing import Any, Final, cast

from rollforge.agents.base import NotKept
from rollforge.agents.nemo_gym.gym_json import EpisodeAnswerJson, EpisodeJson, TaskIdJson
from rollforge.agents.transcript import input_items
from rollforge.errors import Failure, FailureClass
from rollforge.json_shapes import (
    ItemJson,
    ParamsJson,
    PartJson,
    ResponseJson,
    RowJson,
    UsageJson,
    items_in,
    parts_in,
    without,
)
from rollforge.records import (
    FAILURE_KEY,
    OWN_KEY,
    PARAMS_KEY,
    RESERVED_KEYS,
    ROLLOUT_KEY,
    TASK_KEY,
    TERMINAL_KEY,
    Task,
    Verdict,
    is_mark,
)

NO_PERSIST_KEY: Final = "_ng_no_persist"
JUDGE_ERROR_KEY: Final = "_ng_failure_judge_error"
JUDGE_FAILED: Final = "judge_failed"

_KNOWN_REASONS = ("max_output_tokens", "content_filter")
_CLASS_OF: dict[str, FailureClass] = {
    "transient": "transient",
    "timeout": "timeout",
    "timeout_exceeded": "timeout",
    "agent_timeout": "timeout",
    "transport_timeout": "timeout",
    "transport_unreachable": "transient",
    "transport_peer_drop": "transient",
}
"""NeMo Gym failure class → ours; every other one becomes class `agent`."""


def task_row(task: Task) -> RowJson:
    """The row in the form that the servers accept."""
    row = cast("RowJson", {key: value for key, value in task.items() if key != OWN_KEY})
    row[PARAMS_KEY] = {**task.params, "input": input_items(task.params.get("input"))}
    return row


def verify_body(task: Task, response: ResponseJson) -> RowJson:
    """The body of `/verify`: the row and the response, completed for their schema."""
    return {**task_row(task), "response": complete_response(response, task.params)}


def complete_response(response: ResponseJson, params: ParamsJson) -> ResponseJson:
    """Complete the response: add the fields that their schema requires, and remove those that it refuses."""
    absent = [key for key, value in response.items() if value is None]
    whole: ResponseJson = {
        "id": "",
        "created_at": 0,
        "model": "",
        "object": "response",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **without(response, (*absent, OWN_KEY)),
    }
    if (is_parallel := params.get("parallel_tool_calls")) is not None:
        whole["parallel_tool_calls"] = is_parallel
    if (choice := params.get("tool_choice")) is not None:
        whole["tool_choice"] = choice
    if (tools := params.get("tools")) is not None:
        whole["tools"] = tools
    details = response.get("incomplete_details")
    if not isinstance(details, dict) or details.get("reason") not in _KNOWN_REASONS:
        whole["incomplete_details"] = None
    whole["output"] = [
        _complete_item(item, number) for number, item in enumerate(items_in(response.get("output")))
    ]
    whole["usage"] = _complete_usage(response.get("usage"))
    return whole


def _complete_item(item: ItemJson, position: int) -> ItemJson:
    whole: ItemJson = {"type": "message" if "role" in item else "reasoning", **item}
    whole.pop(OWN_KEY, None)
    if whole["type"] == "message":
        whole = {"id": f"msg_{position}", "role": "assistant", "status": "completed", **whole}
        content = whole.get("content")
        parts: list[PartJson] = (
            [{"type": "output_text", "text": content}] if isinstance(content, str) else parts_in(content)
        )
        whole["content"] = [_complete_part(part) for part in parts]
    elif whole["type"] == "reasoning":
        whole = {"id": f"rs_{position}", "summary": [], **whole}
    return whole


def _complete_part(part: PartJson) -> PartJson:
    return {"annotations": [], **part} if part.get("type") == "output_text" else part


def _complete_usage(usage: UsageJson | None) -> UsageJson | None:
    counted = usage.get("input_tokens") if isinstance(usage, dict) else None
    if usage is None or not isinstance(counted, int):
        return None
    total = counted + (usage.get("output_tokens") or 0)
    return {
        "output_tokens": 0,
        "total_tokens": total,
        **without(usage, [key for key, value in usage.items() if value is None]),
        "input_tokens_details": {"cached_tokens": 0, **(usage.get("input_tokens_details") or {})},
        "output_tokens_details": {"reasoning_tokens": 0, **(usage.get("output_tokens_details") or {})},
    }


def failure_class(result: RowJson) -> str | None:
    """The failure class that a row declares; None for a row without failure."""
    if result.get(FAILURE_KEY):
        return str(result[FAILURE_KEY])
    return JUDGE_FAILED if result.get(JUDGE_FAILED) is True else None


def refuse_unkept(result: RowJson) -> None:
    """Raise `NotKept` if the server asked not to write this row."""
    if result.get(NO_PERSIST_KEY):
        raise NotKept(failure_class(result) or "the server asked not to keep this rollout")


def verdict_of(result: RowJson, task: Task) -> Verdict:
    """The verdict in a `/verify` answer, without reward where it was skipped; raises `Failure` of class `verifier` when it failed."""
    declared = failure_class(result)
    if declared is not None:
        reason = result.get(JUDGE_ERROR_KEY) or result.get("failure_reason")
        raise _declared(result, Failure("verifier", "verifier", f"{declared}: {reason or 'no reason given'}"))
    if is_mark(result.get("mask_sample")) and result.get("failure_kind"):
        reason = result.get("failure_reason") or "no reason given"
        raise _declared(result, Failure("verifier", "verifier", f"{result['failure_kind']}: {reason}"))
    fields: dict[str, object] = {
        key: value
        for key, value in result.items()
        if key not in RESERVED_KEYS and not key.startswith("_ng_") and not _is_echo(key, value, task)
    }
    if is_mark(fields.get("verification_skipped")) or is_mark(fields.get("mask_sample")):
        fields["reward"] = None  # a number of their configuration, or one that is no measurement
    elif fields.get("reward") is None:
        raise Failure("verifier", "verifier", "the server's verdict has no reward")
    try:
        return Verdict.from_value(fields)
    except ValueError as error:
        raise Failure("verifier", "verifier", f"the server's verdict cannot be used: {error}") from error


def attempt_failure(result: RowJson) -> Failure | None:
    """The failure of the whole attempt that an agent server's row declares. A failed judge is not one: the response exists."""
    declared = failure_class(result)
    if declared is None or (declared == JUDGE_FAILED and isinstance(result.get("response"), dict)):
        return None
    reason = result.get("failure_reason") or result.get("_ng_failure_message") or "no reason given"
    failure = Failure(
        "agent", _CLASS_OF.get(declared, "agent"), f"the agent server says {declared}: {reason}"
    )
    failure.partial = result.get("response")
    return _declared(result, failure)


def episode_of(task: Task, rollout: str) -> EpisodeJson:
    """The episode request of a typed environment server; a plain row becomes the input of a task of its own."""
    row = task_row(task)
    identity, task_input = row.get("task_id"), row.get("task_input")
    plain: TaskIdJson = {"taskset": task.agent or "rollforge", "task_id": str(identity or task.index)}
    return {
        "episode_id": {"rollout_id": rollout, "attempt": 0},
        "task": {
            "task_id": cast("TaskIdJson", identity) if isinstance(identity, dict) else plain,
            "task_input": cast("RowJson", task_input)
            if isinstance(task_input, dict)
            else without(row, _NOT_TASK_INPUT),
        },
    }


_NOT_TASK_INPUT = frozenset({TASK_KEY, ROLLOUT_KEY, "agent_ref", "task_id"})


def result_of_episode(answer: EpisodeAnswerJson) -> RowJson:
    """An environment server's answer as a row of an agent server."""
    result, failure = answer.get("result"), answer.get("failure")
    if isinstance(result, dict):
        return result
    if not isinstance(failure, dict):
        raise Failure("agent", "agent", "/run answered with neither a result nor a failure")
    return {
        FAILURE_KEY: failure.get("failure_kind") or "environment_server_failed",
        "failure_reason": failure.get("failure_reason"),
        TERMINAL_KEY: failure.get("terminal") is True,
        "response": failure.get("partial_response"),
    }


def failure_kind(failure: Failure) -> str:
    """NeMo Gym's name for one of our failures, from its shared vocabulary."""
    if failure.peer_kind is not None:
        return failure.peer_kind
    if failure.boundary == "verifier":
        return "verifier_error"
    if failure.kind == "timeout":
        return "agent_timeout" if failure.boundary == "agent" else "transport_timeout"
    if failure.kind in ("transient", "unavailable"):
        return "transport_unreachable" if failure.status is None else "agent_request_failed"
    return "agent_request_failed" if failure.boundary == "model" else "agent_run_error"


def _declared(result: RowJson, failure: Failure) -> Failure:
    kind = result.get("failure_kind") or failure_class(result)
    failure.peer_kind = str(kind) if kind else None
    failure.is_terminal = bool(result.get(TERMINAL_KEY))
    return failure


def _is_echo(key: str, value: Any, task: Task) -> bool:
    """Whether the field is one of the task's own, sent back unchanged."""
    return key != "reward" and key in task and task[key] == value
