"""JSON that NeMo Gym's typed environment servers and resources servers exchange with their agents."""

from __future__ import annotations

from typing import TypedDict

from rollforge.json_shapes import ResponseJson, RowJson


class EpisodeIdJson(TypedDict):
    """Names one attempt at a rollout, in NeMo Gym's typed environments."""

    rollout_id: str
    attempt: int


class TaskIdJson(TypedDict):
    """Names a typed task."""

    taskset: str
    task_id: str


class TypedTaskJson(TypedDict):
    """A typed task."""

    task_id: TaskIdJson
    task_input: RowJson


class EpisodeJson(TypedDict):
    """The request of a typed environment server."""

    episode_id: EpisodeIdJson
    task: TypedTaskJson


class EpisodeFailureJson(TypedDict, total=False):
    """Why an environment server has no result."""

    failure_kind: str
    failure_reason: str | None
    terminal: bool
    partial_response: ResponseJson | None


class EpisodeAnswerJson(TypedDict, total=False):
    """The answer of a typed environment server."""

    result: RowJson
    failure: EpisodeFailureJson


class SessionToolsJson(TypedDict, total=False):
    """The MCP server that `/seed_session` announces."""

    url_path: str
    headers: dict[str, str]


class SeededJson(TypedDict, total=False):
    """What `/seed_session` answers."""

    mcp: SessionToolsJson
    resources_tools: SessionToolsJson


class ClosingJson(TypedDict, total=False):
    """Names the session that ends."""

    resources_session_id: str
    episode_id: EpisodeIdJson
