"""ATIF: trajectories in Harbor's Agent Trajectory Interchange Format (v1.5), one JSON object per line, for `sft`.

Messages become steps: system, user, agent. Tool results are the observation of the agent step whose call they answer. Arguments
must be objects in this format; a call with other arguments is inexpressible. The reward is in `extra`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, TypedDict

import msgspec

from rollforge.conversations.messages import ChatMessage
from rollforge.conversations.shape import Shaping, object_bytes
from rollforge.conversations.tidy import Policies
from rollforge.exporters.base import Exporter
from rollforge.exporters.columns import RowColumn, RowTables
from rollforge.exporters.examples import Demonstration, Kind
from rollforge.exporters.form import Layout
from rollforge.exporters.snippets import fenced, files_of
from rollforge.exporters.writer import RowWriter

VERSION = "ATIF-v1.5"
_SOURCES = {"system": "system", "developer": "system", "user": "user", "assistant": "agent"}


class _ToolCall(msgspec.Struct, forbid_unknown_fields=True):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    content: str
    source_call_id: str | None = None


class _Observation(msgspec.Struct, forbid_unknown_fields=True):
    results: list[_Result]


class _Step(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    step_id: int
    source: Literal["system", "user", "agent"]
    message: str
    reasoning_content: str | None = None
    tool_calls: list[_ToolCall] = []
    observation: _Observation | None = None


class _Agent(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: str
    tool_definitions: list[Any] = []


class _Extra(msgspec.Struct, forbid_unknown_fields=True):
    reward: float | None
    task: str
    rollout: int


class _CallLine(TypedDict):
    tool_call_id: str
    function_name: str
    arguments: msgspec.Raw


class _ResultLine(TypedDict, total=False):
    content: str
    source_call_id: str | None


class _ObservationLine(TypedDict):
    results: list[_ResultLine]


class _StepLine(TypedDict, total=False):
    """A step, ready to encode; keys are written in the order in which they are set."""

    step_id: int
    source: str
    message: str
    reasoning_content: str | None
    tool_calls: list[_CallLine]
    observation: _ObservationLine


class _AgentLine(TypedDict, total=False):
    name: str
    version: str
    tool_definitions: msgspec.Raw


def _steps(example: Demonstration, write: RowWriter, column: str) -> list[_StepLine]:
    steps: list[_StepLine] = []
    for message in (*example.prompt, *example.answer):
        if message.role == "tool":
            _observe(steps, message)
        else:
            steps.append({"step_id": len(steps) + 1, **_step(message, write.form.shaping)})
    return steps


def _step(message: ChatMessage, shaping: Shaping) -> _StepLine:
    step: _StepLine = {"source": _SOURCES[message.role], "message": message.content}
    if message.has_reasoning and shaping.reasoning != "drop":
        step["reasoning_content"] = message.reasoning
    if message.calls:
        step["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": object_bytes(call)}
            for call in message.calls
        ]
    return step


def _observe(steps: list[_StepLine], message: ChatMessage) -> None:
    """Add a tool result to the last agent step; it names its call only if that step contains the call."""
    if not steps or steps[-1]["source"] != "agent":
        steps.append({"step_id": len(steps) + 1, "source": "agent", "message": ""})
    step = steps[-1]
    result: _ResultLine = {"content": message.content}
    if message.call_id in [call["tool_call_id"] for call in step.get("tool_calls", ())]:
        result["source_call_id"] = message.call_id
    step.setdefault("observation", {"results": []})["results"].append(result)


def _agent(example: Demonstration, write: RowWriter, column: str) -> _AgentLine:
    agent: _AgentLine = {"name": example.agent or "agent", "version": "unknown"}
    if example.tools is not None:
        agent["tool_definitions"] = msgspec.Raw(example.tools)
    return agent


class AtifExporter(Exporter):
    """Trajectories for Harbor and other readers of ATIF."""

    name = "atif"
    recipes = ("sft",)
    columns: ClassVar[RowTables] = {
        "demonstration": {
            "schema_version": RowColumn(str, lambda example, write, column: VERSION),
            "session_id": RowColumn(
                str, lambda example, write, column: f"task-{example.task}-rollout-{example.rollout}"
            ),
            "agent": RowColumn(_Agent, _agent),
            "steps": RowColumn(list[_Step], _steps),
            "extra": RowColumn(
                _Extra,
                lambda example, write, column: {
                    "reward": example.reward,
                    "task": example.task,
                    "rollout": example.rollout,
                },
            ),
        }
    }
    shaping = Shaping(arguments="object", tools="list", reasoning="field", keys="present")
    policies = Policies(join_system=False)

    @classmethod
    def forms(cls, kind: Kind) -> Mapping[str, tuple[str, ...]]:
        return {
            "arguments": ("object",),
            "tools": ("list",),
            "reasoning": ("field", "drop"),
            "keys": ("present",),
        }

    @classmethod
    def is_inferred(cls, kind: Kind) -> bool:
        return False

    def problems(self, kind: Kind, row: Any, shaping: Shaping) -> Iterator[str]:
        if [step.step_id for step in row.steps] != list(range(1, len(row.steps) + 1)):
            yield "steps are not numbered from 1"
        for step in row.steps:
            if step.source != "agent" and (step.tool_calls or step.reasoning_content or step.observation):
                yield f"step {step.step_id} of {step.source} has what only an agent's may have"
            made = {call.tool_call_id for call in step.tool_calls}
            results = step.observation.results if step.observation else []
            if any(result.source_call_id not in (None, *made) for result in results):
                yield f"step {step.step_id} observes a call that it did not make"

    def snippet(
        self,
        recipe: str,
        kind: Kind,
        files: Mapping[str, list[str]],
        layout: Layout = "messages",
        *,
        has_verifier: bool = False,
    ) -> str:
        lines = [
            "import json",
            f"trajectories = [json.loads(line) for name in {files_of(files)!r} for line in open(name, encoding='utf-8')]",
            "for trajectory in trajectories:  # Harbor reads one file per trajectory",
            '    with open(trajectory["session_id"] + ".json", "w", encoding="utf-8") as file:',
            "        json.dump(trajectory, file, ensure_ascii=False)",
        ]
        return fenced("python", lines)
