"""NeMo Gym servers under the common name: `gym:http://HOST:PORT[?via=head|resources|agent&agent=NAME]`.

Equivalent to `--gym-head`, `--gym-resources` and `--gym-agent`. The task rows come from `-i`.
"""

from __future__ import annotations

import msgspec

from rollforge.agents.base import Agent, AgentOptions, make_agent
from rollforge.environments.base import EnvironmentSpec, NamedVerifier
from rollforge.errors import UsageError

VIAS = ("head", "resources", "agent")


class Gym:
    """NeMo Gym's servers judge; the agent loop runs locally or in the agent server."""

    verifier: NamedVerifier | None = None

    def __init__(self, spec: EnvironmentSpec) -> None:
        options = spec.take(via="head", agent=None)
        self._url, self._via, self._name = spec.name, options["via"], options["agent"]
        if self._via not in VIAS:
            raise UsageError(f"--env gym:…?via={self._via} is no way", hint=f"there are {', '.join(VIAS)}")
        if not self._url.startswith(("http://", "https://")):
            raise UsageError(f"--env gym:{self._url} is no URL", hint="write gym:http://localhost:11000")

    def rows(self, limit: int | None) -> None:
        return None

    def agent(self, options: AgentOptions) -> Agent:
        chosen = msgspec.structs.replace(
            options,
            agent_name=str(self._name) if self._name is not None else options.agent_name,
            gym_head=self._url if self._via == "head" else None,
            gym_resources=self._url if self._via == "resources" else None,
            gym_agent=self._url if self._via == "agent" else None,
        )
        return make_agent(None, chosen)
