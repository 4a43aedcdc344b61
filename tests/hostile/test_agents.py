"""Hostile tools and servers: what they send is bounded, and never becomes a reward."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollforge.errors import Failure, UsageError
from rollforge.verifiers.building_blocks.judge_model import JudgeEndpoint, JudgeOptions
from tests.agents.fake_gym import FakeResources
from tests.agents.running import collect, failures, make_task, rollouts
from tests.agents.scripted_model import ScriptedModel, call, message
from tests.agents.web import serving


def flood() -> str:
    """Return far too much."""
    return "a" * (2 << 20)


async def test_a_tool_that_returns_too_much_is_an_error_for_the_model(tmp_path: Path) -> None:
    async with serving(ScriptedModel([call("flood", {})], [message("done")]).app) as model:
        await collect(tmp_path, [make_task()], model, tools=(flood,), max_response_bytes=1 << 20)
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
        await collect(tmp_path, [make_task()], model, gym_resources=f"{url}/gym", max_response_bytes=1 << 20)
    assert sent[0] < 100, "the client left after 1 MB and what the sockets hold"
    assert all(row["reward"] is None for row in rollouts(tmp_path))
    assert "larger than 1,048,576 bytes (--max-response-bytes)" in failures(tmp_path)[0]["message"]
    assert failures(tmp_path)[0]["class"] == "oversized"


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


async def test_a_compressed_answer_of_a_gym_server_counts_as_what_it_unpacks_to(tmp_path: Path) -> None:
    """Small ones are read, bombs are cut."""
    gym, size = FakeResources(), [10]

    @web.middleware
    async def compress(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path != "/gym/verify":
            answer: web.StreamResponse = await handler(request)
            return answer
        body = gzip.compress(b'{"reward": 0.5, "text": "' + b"a" * size[0] + b'"}')
        return web.Response(
            body=body, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"}
        )

    app = web.Application(middlewares=[compress], client_max_size=2**26)
    app.add_subapp("/gym/", gym.app)
    async with serving(ScriptedModel([message("hi")]).app) as model, serving(app) as url:
        await collect(tmp_path, [make_task()], model, gym_resources=f"{url}/gym", max_response_bytes=1 << 20)
        size[0] = 64 << 20
        hostile = tmp_path / "hostile"
        hostile.mkdir()
        await collect(hostile, [make_task()], model, gym_resources=f"{url}/gym", max_response_bytes=1 << 20)
    assert [row["reward"] for row in rollouts(tmp_path)] == [0.5]
    assert all(row["reward"] is None for row in rollouts(hostile))
    assert "larger than 1,048,576 bytes" in failures(hostile)[0]["message"]


async def test_a_head_server_that_never_stops_sending_is_refused(tmp_path: Path) -> None:
    sent = [0]

    async def endless(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Type": "application/json"})
        await stream.prepare(request)
        while True:
            await stream.write(b"a" * (1 << 20))
            sent[0] += 1

    app = web.Application()
    app.router.add_get("/global_config_dict_yaml", endless)
    async with serving(app) as url:
        with pytest.raises(UsageError, match="larger than 67,108,864 bytes"):
            await collect(tmp_path, [make_task()], "http://127.0.0.1:9", gym_head=url)
    assert sent[0] < 200


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_a_judge_that_sends_too_much_fails_to_judge(is_compressed: bool) -> None:
    reply = json.dumps({"choices": [{"message": {"role": "assistant", "content": "a" * (4 << 20)}}]}).encode()

    async def judge(request: web.Request) -> web.Response:
        if not is_compressed:
            return web.Response(body=reply, content_type="application/json")
        return web.Response(
            body=gzip.compress(reply),
            headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
        )

    app = web.Application()
    app.router.add_post("/v1/chat/completions", judge)
    async with serving(app) as url:
        options = JudgeOptions(
            model="j", base_url=f"{url}/v1", api="chat", max_response_bytes=1 << 20, retries=0
        )
        endpoint = JudgeEndpoint(options)
        with pytest.raises(Failure, match="larger than 1,048,576 bytes"):
            await endpoint.complete([{"role": "user", "content": "judge"}])
        await endpoint.close()
