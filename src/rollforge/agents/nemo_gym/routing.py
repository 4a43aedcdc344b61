"""Which NeMo Gym agents a task row goes to: `--agent-name`, `--agent-map` and `--fan-out`.

As in NeMo Gym 0.7, a row is looked up by its `agent_ref.name`, then by its `task_source`; a specific entry wins over `_default`,
which wins over the row's own `agent_ref`. A row that fans out becomes one task per agent, each with its own index, so that a
group belongs to one agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields

DEFAULT = "_default"
"""The key for rows without their own entry."""


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """Agents by the name that a row carries."""

    agent_by_name: dict[str, str] = {}
    agents_by_name: dict[str, list[str]] = {}

    @classmethod
    def parse(cls, agent_name: str | None, agent_map: Sequence[str], fan_out: Sequence[str]) -> Routes:
        """Parse `NAME=AGENT` and `NAME=AGENT,AGENT`; contradictions are refused."""
        by_name = {name: agents[0] for name, agents in _entries("--agent-map", agent_map, most=1).items()}
        if agent_name is not None and by_name.setdefault(DEFAULT, agent_name) != agent_name:
            raise UsageError(
                f"--agent-name {agent_name} contradicts --agent-map {DEFAULT}={by_name[DEFAULT]}",
                hint="give one of them",
            )
        return cls(agent_by_name=by_name, agents_by_name=_entries("--fan-out", fan_out))

    @property
    def width(self) -> int:
        """The largest number of tasks that one row becomes."""
        return max(map(len, self.agents_by_name.values()), default=1)

    @property
    def agents(self) -> list[str]:
        """Every agent that an entry names."""
        lists = [list(self.agent_by_name.values()), *self.agents_by_name.values()]
        return sorted({agent for agents in lists for agent in agents})

    @property
    def fingerprint(self) -> JsonFields:
        """Values that must not change when a run is resumed; empty without entries. `agent_name` alone is recorded as in earlier
        versions.
        """
        facts: JsonFields = {}
        own = {name: agent for name, agent in self.agent_by_name.items() if name != DEFAULT}
        if DEFAULT in self.agent_by_name:
            facts["agent_name"] = self.agent_by_name[DEFAULT]
        if own:
            facts["agent_map"] = own
        if self.agents_by_name:
            facts["fan_out"] = self.agents_by_name
        return facts

    @property
    def names(self) -> set[str]:
        """The names of rows that the entries are for."""
        return {*self.agent_by_name, *self.agents_by_name} - {DEFAULT}

    @staticmethod
    def keys_of(row: Mapping[str, object]) -> list[str]:
        """The names that a row carries: that of its agent, then its task source."""
        ref = row.get("agent_ref")
        named = ref.get("name") if isinstance(ref, dict) else None
        return [key for key in (named, row.get("task_source")) if isinstance(key, str)]

    def of(self, row: Mapping[str, object]) -> list[str | None]:
        """The agents of a row; None leaves the row's own `agent_ref`."""
        keys = self.keys_of(row)
        if keys and keys[0] in self.agents_by_name:
            return list(self.agents_by_name[keys[0]])
        entry = next((key for key in keys if key in self.agent_by_name), DEFAULT)
        return [self.agent_by_name.get(entry)]


def _entries(flag: str, words: Sequence[str], *, most: int | None = None) -> dict[str, list[str]]:
    agents_by_name: dict[str, list[str]] = {}
    for word in words:
        name, _, listed = word.partition("=")
        agents = [agent.strip() for agent in listed.split(",")]
        form = "NAME=AGENT" if most == 1 else "NAME=AGENT,AGENT"
        if not name or not all(agents) or (most is not None and len(agents) > most):
            raise UsageError(f"{flag} {word!r} is not understood", hint=f"write {flag} {form}")
        if len(set(agents)) < len(agents):
            raise UsageError(f"{flag} {word!r} names an agent twice", hint="-k/--samples repeats rollouts")
        if agents_by_name.get(name, agents) != agents:
            raise UsageError(f"{flag} has two entries for {name!r}", hint="give one of them")
        agents_by_name[name] = agents
    return agents_by_name
