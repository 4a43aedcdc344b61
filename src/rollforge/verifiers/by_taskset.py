"""Judges each task by the verifier of its task set, for evaluations that mix several.

Needs `taskset` in the task row and a table of task set → verifier in its options; made by `rollforge eval`, not for use by name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollforge.records import JsonObject, Response, Task
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.running.calling import LiveVerifier

needs = ("taskset",)


class ByTasksetOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which verifier judges which task set."""

    verifiers: dict[str, str]
    options: JsonObject = {}
    """Options of all members."""
    own_options: dict[str, JsonObject] = {}
    """Task set → further options of its member."""
    fingerprints: dict[str, str] = {}
    """Digests of the members: with them a changed member changes this verifier's own fingerprint."""


class ByTaskset:
    """Hands each task to the verifier of its task set."""

    options_type = ByTasksetOptions

    @staticmethod
    def is_deterministic_with(options: JsonObject) -> bool:
        """Whether every member is."""
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
        """The member's own verdict, which may still have to be awaited."""
        return self._live[task["taskset"]].call(task, response)
