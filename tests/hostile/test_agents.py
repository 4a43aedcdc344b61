"""Hostile tools and servers: what they send is bounded, and never becomes a reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.agents.fake_gym import FakeResources
from tests.agents.running import collect, failures, make_task, rollouts
from tests.agents.scripted_model import ScriptedModel, call, message
from tests.agents.web import serving


def flood() -> str:
    """Return far too much."""
    return "a" * (17 << 20)


async def test_a_tool_that_returns_too_much_is_an_error_for_the_model(tmp_path: Path) -> None:
    async with serving(ScriptedModel([call("flood", {})], [message("done")]).app) as model:
        await collect(tmp_path, [make_task()], model, tools=(flood,))
    (row,) = rollouts(tmp_path)
    (output,) = [item for item in row["response"]["output"] if item["type"] == "function_call_output"]
    assert output["_rf"]["error"] == "too-large" and len(output["output"]) < 200


@pytest.mark.parametrize("path", ["/verify", "/seed_session"])
async def test_a_gym_server_that_never_stops_sending_is_cut_off(tmp_path: Path, path: str) -> None:
    gym, sent = FakeResources(), [0]

    async def endless(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        while True:
            await stream.write(b"a" * (1 << 20))
            sent[0] += 1

    @web.middleware
    async def hostile(request: web.Request, handler: Any) -> web.StreamResponse:
        answer: web.StreamResponse = await (endless(request) if request.path == path else handler(request))
        return answer

    app = web.Application(middlewares=[hostile], client_max_size=2**26)
    app.add_subapp("/gym/", gym.app)
    path = f"/gym{path}"
    async with serving(ScriptedModel([message("hi")]).app) as model, serving(app) as url:
        await collect(tmp_path, [make_task()], model, gym_resources=f"{url}/gym")
    assert sent[0] < 200, "the client left after 64 MB and what the sockets hold"
    assert all(row["reward"] is None for row in rollouts(tmp_path))
    assert "more than 64 MB" in failures(tmp_path)[0]["message"]


async def test_a_redirect_of_a_gym_server_is_not_followed(tmp_path: Path) -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.json_response({})

    other = web.Application()
    other.router.add_route("*", "/{path:.*}", elsewhere)
    async with serving(other) as target:

        async def redirect(request: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(target + request.path)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", redirect)
        async with serving(ScriptedModel([message("hi")]).app) as model, serving(app) as url:
            await collect(tmp_path, [make_task()], model, gym_resources=url)
    assert asked == [] and "HTTP 307" in failures(tmp_path)[0]["message"]
