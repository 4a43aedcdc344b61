"""Every registered agent keeps the same promises: prepared, started, run, closed, and a whole response from each rollout."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from rollforge.agents import AGENTS
from rollforge.agents.base import Agent, AgentOptions, make_agent
from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions
from rollforge.errors import Failure
from rollforge.records import Response, Task
from tests.agents.fake_gym import FakeAgent, FakeResources
from tests.agents.running import make_task
from tests.agents.scripted_model import ScriptedModel, Turn, message
from tests.agents.web import serving


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


PROGRAMS = {
    "program": "agent",
    "claude-code": "claude",
    "codex": "codex",
    "opencode": "opencode",
    "qwen-code": "qwen",
    "mini-swe-agent": "mini",
}
"""Agents that are programs, and what each is called in PATH."""

ONE_CALL = """#!/usr/bin/env python3
import json, os, urllib.request
body = json.dumps({"model": "m", "input": "2 + 2?"}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/responses", body, headers))
"""


@contextmanager
def installed(name: str) -> Iterator[dict[str, Any]]:
    """A program of that name in PATH that makes one call."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path = Path(folder) / PROGRAMS[name]
        path.write_text(ONE_CALL)
        path.chmod(0o755)
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield {"sandbox": "off", "program": str(path) if name == "program" else None}


@asynccontextmanager
async def at_work(name: str, *turns: Turn) -> AsyncIterator[Agent]:
    """The agent with everything it needs around it, started."""
    async with AsyncExitStack() as stack:
        model_url = await stack.enter_async_context(serving(ScriptedModel(*turns).app))
        options: dict[str, Any] = {}
        if name == "tool_loop":
            options["tools"] = (add,)
        elif name == "gym_resources":
            options["gym_resources"] = await stack.enter_async_context(serving(FakeResources().app))
        elif name == "gym_agent":
            broken = FakeAgent(lambda row: (500, "broken")) if turns == (400,) else FakeAgent()
            options["gym_agent"] = await stack.enter_async_context(serving(broken.app))
        elif name in PROGRAMS:
            options |= stack.enter_context(installed(name))
        agent = make_agent(name, AgentOptions(**options))
        client = Client(ClientOptions(base_urls=(f"{model_url}/v1",), retries=0))
        await stack.enter_async_context(client)
        await agent.prepare()
        stack.push_async_callback(agent.close)
        await agent.start(Model(client, ModelOptions(name="scripted", api="responses")))
        yield agent


@pytest.mark.parametrize("name", AGENTS.names())
async def test_a_rollout_is_a_whole_response(name: str) -> None:
    async with at_work(name, [message("42")]) as agent:
        trajectory = await agent.run(Task(make_task(), 0), 0)
    response = Response(trajectory.response)
    assert response.text == "42" and response.finish_reason == "stop" and response.usage["total_tokens"] > 0
    assert trajectory.requests >= 1 and trajectory.endpoint.startswith("http://")
    assert agent.name == name


@pytest.mark.parametrize("name", AGENTS.names())
async def test_a_rollout_that_cannot_be_made_is_a_failure(name: str) -> None:
    async with at_work(name, 400) as agent:
        with pytest.raises(Failure):
            await agent.run(Task(make_task(), 0), 0)


@pytest.mark.parametrize("name", AGENTS.names())
async def test_closing_is_safe_before_anything_was_opened(name: str) -> None:
    options = AgentOptions(
        tools=(add,) if name == "tool_loop" else (),
        gym_resources="http://127.0.0.1:9" if name == "gym_resources" else None,
        gym_agent="http://127.0.0.1:9" if name == "gym_agent" else None,
    )
    await make_agent(name, options).close()


@pytest.mark.parametrize("name", AGENTS.names())
async def test_what_it_prepares_can_be_stored(name: str) -> None:
    import msgspec

    options = AgentOptions(
        tools=(add,) if name == "tool_loop" else (),
        gym_resources="http://127.0.0.1:9" if name == "gym_resources" else None,
        gym_agent="http://127.0.0.1:9" if name == "gym_agent" else None,
    )
    with installed(name) if name in PROGRAMS else nullcontext({}) as more:
        agent = make_agent(name, msgspec.structs.replace(options, **more))
        try:
            prepared = await agent.prepare()
        finally:
            await agent.close()
    assert msgspec.json.encode(prepared.fingerprint)
    assert all({"type", "name", "parameters", "strict"} <= set(tool) for tool in prepared.tools)
