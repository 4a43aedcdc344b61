"""Judges each task with the verifier of its task set, for evaluations of several task sets.

Needs `taskset` in the task row and a table of task set → verifier in its options; `rollforge eval` creates it; it is not meant to
be named by users.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollforge.records import JsonObject, Response, Task
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.running.calling import LiveVerifier

needs = ("taskset",)


class ByTasksetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verifier and options for each task set."""

    verifiers: dict[str, str]
    options: JsonObject = {}
    """Options for all members."""
    own_options: dict[str, JsonObject] = {}
    """Task set → additional options of its member."""
    fingerprints: dict[str, str] = {}
    """Fingerprints of the members, so that a changed member changes this verifier's fingerprint."""


class ByTaskset:
    """Passes each task to the verifier of its task set."""

    options_type = ByTasksetOptions

    @staticmethod
    def is_deterministic_with(options: JsonObject) -> bool:
        """Whether every member is deterministic."""
        common, own = options.get("options") or {}, options.get("own_options") or {}
        return all(
            load_verifier(name, common | own.get(taskset, {})).is_deterministic
            for taskset, name in options["verifiers"].items()
        )

    def __init__(self, options: ByTasksetOptions) -> None:
        self._live = {
            taskset: LiveVerifier(load_verifier(name, options.options | options.own_options.get(taskset, {})))
            for taskset, name in options.verifiers.items()
        }

    async def start(self) -> None:
        for live in self._live.values():
            await live.start()

    async def close(self) -> None:
        for live in self._live.values():
            await live.close()

    def verify(self, task: Task, response: Response) -> Any:
        """The member's verdict, possibly as an awaitable."""
        return self._live[task["taskset"]].call(task, response)
