"""Trials of Harbor: a folder with `result.json`, the agent's ATIF trajectory and the verifier's rewards; or a job folder of them.

A trial whose verifier gave no reward, or failed itself, is unjudged. A trial that ended with an exception before its verifier began
is a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TypedDict

from rollforge.conversations.chat_items import items_of
from rollforge.errors import DataError
from rollforge.importers.base import ImportedRollout, chosen_score, finite, read_object
from rollforge.json_shapes import ChatCallJson, ItemJson, UsageJson
from rollforge.records import Verdict

RESULT = "result.json"
TRAJECTORY = Path("agent") / "trajectory.json"
ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def read_harbor(path: Path, reward: str | None) -> Iterator[ImportedRollout]:
    """Every trial below a folder, sorted by name."""
    if not path.is_dir():
        what = "a file, not a folder" if path.exists() else "no such folder"
        raise DataError(f"{path}: {what}", hint="give a job's or a trial's folder")
    trials = 0
    for result in sorted(path.rglob(RESULT)):
        trial = read_object(result, _TrialJson)
        if "trial_name" in trial:
            trials += 1
            yield _rollout(trial, result.parent, reward)
    if not trials:
        raise DataError(
            f"{path}: no trial below it", hint=f"a trial's folder holds {RESULT} with a trial_name"
        )


def _rollout(trial: _TrialJson, folder: Path, reward: str | None) -> ImportedRollout:
    steps = _steps(folder / TRAJECTORY)
    first = next(
        (position for position, step in enumerate(steps) if step.get("source") == "agent"), len(steps)
    )
    verdict = _verdict(trial, reward, str(folder))
    raised = trial.get("exception_info")
    info = trial.get("agent_info") or _AgentInfoJson()
    model = info.get("model_info") or _ModelInfoJson()
    return ImportedRollout(
        task=str(trial.get("task_name")),
        prompt=[item for step in steps[:first] for item in _items(step)],
        output=[item for step in steps[first:] for item in _items(step)],
        verdict=verdict,
        scores=tuple(_rewards(trial)),
        failure=_exception(raised) if isinstance(raised, dict) and not trial.get("verifier") else None,
        task_fields={"harbor": {"task": trial.get("task_name"), "trial": trial.get("trial_name")}},
        model=model.get("name"),
        agent=str(info.get("name") or "harbor"),
        verifier="harbor",
        usage=_usage(trial.get("agent_result")),
        started=_moment(trial.get("started_at")),
        seconds=_seconds(trial.get("started_at"), trial.get("finished_at")),
    )


class _ResultJson(TypedDict, total=False):
    source_call_id: str
    content: str | None


class _ObservationJson(TypedDict, total=False):
    results: list[_ResultJson]


class _StepJson(TypedDict, total=False):
    """A step of an ATIF trajectory."""

    source: str
    message: str
    reasoning_content: str
    tool_calls: list[ChatCallJson]
    observation: _ObservationJson


class _ModelInfoJson(TypedDict, total=False):
    name: str


class _AgentInfoJson(TypedDict, total=False):
    name: str
    model_info: _ModelInfoJson | None


class _AgentResultJson(TypedDict, total=False):
    n_input_tokens: int | None
    n_output_tokens: int | None


class _VerifierResultJson(TypedDict, total=False):
    rewards: dict[str, float] | None


class _ExceptionJson(TypedDict, total=False):
    exception_type: str
    exception_message: str


class _TrialJson(TypedDict, total=False):
    """A trial's `result.json`."""

    trial_name: str
    task_name: str
    verifier: object
    """Start and end of the verifier; None if it did not start."""
    agent_info: _AgentInfoJson | None
    agent_result: _AgentResultJson | None
    verifier_result: _VerifierResultJson | None
    exception_info: _ExceptionJson | None
    started_at: str
    finished_at: str


class _TrajectoryJson(TypedDict, total=False):
    steps: list[_StepJson]


def _steps(path: Path) -> list[_StepJson]:
    """The steps of a trajectory; empty if the agent wrote none."""
    steps = read_object(path, _TrajectoryJson).get("steps") if path.is_file() else []
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _items(step: _StepJson) -> list[ItemJson]:
    message = {
        "role": ROLES.get(str(step.get("source")), "user"),
        "content": step.get("message"),
        "reasoning_content": step.get("reasoning_content"),
        "tool_calls": step.get("tool_calls"),
    }
    seen = step.get("observation") or _ObservationJson()
    results = [one for one in seen.get("results") or [] if isinstance(one, dict)]
    outputs: list[object] = [
        {"role": "tool", "tool_call_id": one.get("source_call_id"), "content": one.get("content") or ""}
        for one in results
    ]
    return items_of([message, *outputs])


def _verdict(trial: _TrialJson, reward: str | None, where: str) -> Verdict | None:
    rewards = _rewards(trial)
    name = reward or ("reward" if "reward" in rewards else None)
    chosen = chosen_score(rewards, name, where)
    value = finite(chosen[1]) if chosen else None
    if chosen is None or value is None:
        return None
    others = {
        key: number
        for key, one in rewards.items()
        if key != chosen[0] and (number := finite(one)) is not None
    }
    return Verdict(reward=value, numbers=others)


def _rewards(trial: _TrialJson) -> dict[str, float]:
    return (trial.get("verifier_result") or _VerifierResultJson()).get("rewards") or {}


def _exception(raised: _ExceptionJson) -> str:
    return f"{raised.get('exception_type')}: {raised.get('exception_message')}"


def _usage(result: _AgentResultJson | None) -> UsageJson | None:
    if not isinstance(result, dict) or result.get("n_input_tokens") is None:
        return None
    return {"input_tokens": result.get("n_input_tokens"), "output_tokens": result.get("n_output_tokens")}


def _moment(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None


def _seconds(start: object, end: object) -> float | None:
    began, ended = _moment(start), _moment(end)
    return None if began is None or ended is None else ended - began
