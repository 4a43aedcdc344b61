"""Finds NeMo Gym servers through their head server.

The head's config is the user's whole config, secrets included. It is searched for hosts and ports and dropped: never kept,
logged or shown, not even in an error message.
"""

from __future__ import annotations

from typing import Literal, TypedDict
from urllib.parse import urlsplit

import aiohttp
import msgspec
import yaml

from rollforge.endpoint import proxy_for, read_body
from rollforge.errors import Failure, UsageError
from rollforge.records import from_json
from rollforge.registry import did_you_mean
from rollforge.store.reading import UNREADABLE

Kind = Literal["responses_api_agents", "resources_servers", "environment_servers"]
MOST_CONFIG = 4 << 20
"""Size limit of a config in bytes: each megabyte of YAML takes a second to parse and fifty times its size in memory."""
_ANYWHERE = frozenset({"0.0.0.0", "::", "[::]", ""})


class Directory(msgspec.Struct, frozen=True):
    """URL of every agent, and of the resources server behind it."""

    agent_urls: dict[str, str]
    resources_urls: dict[str, str]
    """Resources server URL by agent name."""

    def find(self, urls: dict[str, str], agent: str | None) -> str:
        """The URL for a row; raises `Failure` when the head does not know its agent."""
        if agent is None and len(urls) == 1:
            return next(iter(urls.values()))
        if agent is None or agent not in urls:
            agent_names = ", ".join(sorted(urls)) or "none"
            what = "the row names no agent" if agent is None else f"the head server knows no agent {agent!r}"
            near = did_you_mean(agent or "", urls)
            raise Failure("agent", "permanent", f"{what}{near} (it knows: {agent_names})")
        return urls[agent]


async def read_directory(head_url: str, http: aiohttp.ClientSession) -> Directory:
    """Ask the head server for its agents."""
    url = head_url.rstrip("/") + "/global_config_dict_yaml"
    hint = (
        "is NeMo Gym running there? `gym env status` tells its head server's address (port 11000 by default)"
    )
    try:
        limit = aiohttp.ClientTimeout(total=30)
        async with http.get(url, timeout=limit, proxy=proxy_for(url), allow_redirects=False) as answer:
            body = await read_body(answer, boundary="agent")
            if answer.status != 200:
                raise UsageError(
                    f"--gym-head {head_url}: HTTP {answer.status} from /global_config_dict_yaml", hint=hint
                )
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise UsageError(
            f"--gym-head {head_url} does not answer: {type(error).__name__}", hint=hint
        ) from error
    except Failure as failure:
        raise UsageError(f"--gym-head {head_url}: {failure}", hint=hint) from failure
    return directory_of(_parse(body, head_url), urlsplit(head_url).hostname or "127.0.0.1")


class _NamedJson(TypedDict, total=False):
    name: str


class _ServerJson(TypedDict, total=False):
    """The settings of one server."""

    host: str
    port: int
    resources_server: _NamedJson
    agent_server: _NamedJson


HeadConfig = dict[str, dict[Kind, dict[str, _ServerJson]]]
"""`{name: {kind: {implementation: settings}}}`, beside other settings of any shape."""


def _parse(body: bytes, head_url: str) -> HeadConfig:
    """Parse the config, which is YAML inside a JSON string. Errors quote none of it."""
    if len(body) > MOST_CONFIG:
        raise UsageError(
            f"--gym-head {head_url} answers with {len(body):,} bytes, which is no NeMo Gym config",
            hint="give the address of the head server, which `gym env start` prints",
        )
    try:
        text = from_json(body)
        config = yaml.safe_load(text) if isinstance(text, str) else text
    except (*UNREADABLE, yaml.YAMLError):
        config = None
    if not isinstance(config, dict):
        raise UsageError(
            f"--gym-head {head_url} answers, but not with a NeMo Gym config",
            hint="give the address of the head server, which `gym env start` prints",
        )
    return config


def directory_of(config: HeadConfig, head_host: str) -> Directory:
    """The agents of a config, and the resources server that each one names."""
    agents: dict[str, str] = {}
    resources: dict[str, str] = {}
    environments = _environment_urls(config, head_host)
    for name, entry in config.items():
        agent = _implementation(entry, "responses_api_agents")
        if agent is None:
            continue
        if url := environments.get(str(name)) or _url(agent, head_host):
            agents[str(name)] = url
        named = agent.get("resources_server")
        server = named.get("name") if isinstance(named, dict) else None
        implementation = (
            _implementation(config.get(server), "resources_servers") if server is not None else None
        )
        if implementation is not None and (url := _url(implementation, head_host)):
            resources[str(name)] = url
    return Directory(agents, resources)


def _environment_urls(config: HeadConfig, head_host: str) -> dict[str, str]:
    """Agent → the environment server in front of it; an agent behind several is reached directly."""
    urls: dict[str, set[str]] = {}
    for entry in config.values():
        server = _implementation(entry, "environment_servers")
        url = _url(server, head_host) if server is not None else None
        named = server.get("agent_server") if server is not None else None
        if url is not None and isinstance(named, dict) and isinstance(named.get("name"), str):
            urls.setdefault(named["name"], set()).add(url)
    return {agent: next(iter(agent_urls)) for agent, agent_urls in urls.items() if len(agent_urls) == 1}


def _implementation(entry: dict[Kind, dict[str, _ServerJson]] | None, kind: Kind) -> _ServerJson | None:
    """A server's own settings: `{name: {kind: {implementation: settings}}}`."""
    family = entry.get(kind) if isinstance(entry, dict) else None
    if not isinstance(family, dict):
        return None
    return next((settings for settings in family.values() if isinstance(settings, dict)), None)


def _url(settings: _ServerJson, head_host: str) -> str | None:
    host, port = str(settings.get("host") or ""), settings.get("port")
    if not isinstance(port, int):
        return None
    # A server that listens everywhere is reached where its head is.
    return f"http://{head_host if host in _ANYWHERE else host}:{port}"
