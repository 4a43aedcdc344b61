"""This module says what an agent is: it turns a task into a response, or fails in words that can be recorded."""

from __future__ import annotations

from typing import Protocol

import msgspec

from rollforge.records import JsonObject, Task


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent made of a task."""

    response: JsonObject
    """Responses-shaped: `output` holds the items of every turn, `usage` the sum over them."""
    endpoint: str = ""
    requests: int = 1
    fields: JsonObject = {}
    """Row keys the agent adds by itself (a remote agent's own verdict, say)."""


class Agent(Protocol):
    """What `collect` runs for every rollout."""

    @property
    def name(self) -> str:
        """Stands in `agent_ref.name` of rows whose task names no agent."""

    async def start(self) -> None:
        """Make ready; raises `UsageError` when the agent cannot run here."""

    async def run(self, task: Task, sample: int) -> Trajectory:
        """One rollout; raises `Failure`, and anything else it raises is recorded as a failure of class `agent`."""

    async def close(self) -> None:
        """Release everything `start` took."""
