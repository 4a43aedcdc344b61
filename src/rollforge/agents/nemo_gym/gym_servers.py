"""Which NeMo Gym server a row belongs to: the one given by URL, or the one its head server names."""

from __future__ import annotations

from typing import Literal

import aiohttp

from rollforge.agents.base import AgentOptions, Preparation
from rollforge.agents.nemo_gym.gym_head import Directory, read_directory
from rollforge.agents.nemo_gym.gym_server import GymServer, open_http
from rollforge.agents.nemo_gym.routing import Routes
from rollforge.errors import UsageError
from rollforge.records import JsonFields, Task
from rollforge.registry import did_you_mean

Role = Literal["agent", "resources"]


class GymServers:
    """The servers of one role that a run talks to."""

    def __init__(self, role: Role, options: AgentOptions) -> None:
        self._role = role
        self._options = options
        self._url = options.gym_agent if role == "agent" else options.gym_resources
        if not (self._url or options.gym_head):
            raise UsageError(
                f"the agent gym_{role} has no server", hint=f"give --gym-{role} URL, or --gym-head URL"
            )
        self._directory: Directory | None = None
        self._http: aiohttp.ClientSession | None = None
        self._servers: dict[str, GymServer] = {}

    async def prepare(
        self, *, fingerprint: JsonFields, asks_model: bool = True, judges: bool = False
    ) -> Preparation:
        """Find the servers; refuses agents that the head does not know."""
        self._http = open_http()
        agents: frozenset[str] | None = None
        needs: tuple[str, ...] = ()
        routes = Routes.parse(self._options.agent_name, self._options.agent_map, self._options.fan_out)
        if not self._url:
            urls = await self._read_head(self._http)
            agents = frozenset(urls)
            for name in routes.agents:
                if name not in urls:
                    flag = "--agent-name" if name == self._options.agent_name else "--agent-map or --fan-out"
                    raise UsageError(
                        f"{flag} {name}: the head server knows no such agent{did_you_mean(name, sorted(agents))}",
                        hint=f"it knows: {', '.join(sorted(agents))}",
                    )
            needs = ("agent_ref",) if len(urls) > 1 else ()
        return Preparation(
            needs=needs,
            agents=agents,
            routes=routes,
            may_lack_prompt=True,
            asks_model=asks_model,
            judges=judges,
            fingerprint=fingerprint | routes.fingerprint,
        )

    async def _read_head(self, http: aiohttp.ClientSession) -> dict[str, str]:
        head = self._options.gym_head
        assert head is not None, "checked when made"
        self._directory = await read_directory(head, http)
        urls = self._urls(self._directory)
        if not urls:
            wanted = "agent" if self._role == "agent" else "agent with a resources server"
            raise UsageError(
                f"--gym-head {head} knows no {wanted}",
                hint="see which servers run: gym env status",
            )
        return urls

    def find(self, task: Task) -> GymServer:
        """The server for a row; raises `Failure` when the head does not know the row's agent."""
        url = self._url
        if url is None and self._directory is not None:
            url = self._directory.find(self._urls(self._directory), task.agent)
        assert url is not None and self._http is not None, "the servers have not been opened"
        if url not in self._servers:
            self._servers[url] = GymServer(
                url,
                self._http,
                patience_s=self._options.outage_patience_s,
                max_bytes=self._options.max_response_bytes,
            )
        return self._servers[url]

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()
        if self._http is not None:
            await self._http.close()

    def _urls(self, directory: Directory) -> dict[str, str]:
        return directory.agent_urls if self._role == "agent" else directory.resources_urls
