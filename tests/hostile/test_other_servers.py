"""Servers beside the model's that send too much or nonsense: batch providers, MCP and OpenEnv servers, metrics, the Hub."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from rollforge.agents.base import AgentOptions
from rollforge.agents.gym_resources import _with_mcp
from rollforge.agents.tools import mcp
from rollforge.endpoint import Client, ClientOptions
from rollforge.endpoint.batch_api import BatchApi, ProviderBatch
from rollforge.endpoint.rate_limits import RateLimits
from rollforge.endpoint.server_metrics import read_load
from rollforge.environments.base import EnvironmentSpec
from rollforge.environments.openenv import OpenEnv
from rollforge.errors import Exit, Failure, UsageError
from rollforge.records import Artifact
from rollforge.rollouts import RolloutReader
from rollforge.runtime.typed_decoding import decode_json
from rollforge.steps.collect import Collection, CollectOptions
from rollforge.steps.collect.batch import rounds
from rollforge.steps.collect.batch.results import BatchResults, line_limit
from rollforge.steps.serve.gym_requests import read_verify
from rollforge.store.batches import read_batches
from rollforge.tasks.hub import HubFile, HubInfo, choose_split, matching
from tests.agents.web import serving
from tests.environments.fake_openenv import FakeOpenEnv

LIMIT = 1 << 20


async def _endless(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={"Content-Type": "application/json"})
    await stream.prepare(request)
    while True:
        await stream.write(b'{"id": "' + b"a" * (1 << 18))


@asynccontextmanager
async def _provider(limit: int = LIMIT) -> AsyncIterator[BatchApi]:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{tail:.*}", _endless)
    async with (
        serving(app) as url,
        Client(ClientOptions(base_urls=(url,), max_response_bytes=limit)) as client,
    ):
        yield BatchApi(client)


async def test_no_answer_of_a_batch_provider_is_read_without_end(tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text("{}\n")
    async with _provider() as api:
        with pytest.raises(Failure, match="longer than 1,048,576 bytes") as upload:
            await api.upload(requests)
        with pytest.raises(Failure, match="longer than 1,048,576 bytes"):
            await api.create("file-1", "/v1/chat/completions", {})
        with pytest.raises(Failure, match="longer than 1,048,576 bytes"):
            await api.look("b1")
        written: list[int] = []
        with pytest.raises(Failure, match="longer than 3,000,000 bytes"):
            await api.download("o", lambda piece: written.append(len(piece)), limit=3_000_000)
    assert upload.value.kind == "oversized"
    assert sum(written) <= 3_000_000


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"[]", "batch b1: the provider's answer is no ProviderBatch"),
        (b"<html>try later", "batch b1: the provider's answer is no ProviderBatch"),
        (b'{"id":5}', "batch b1: the provider's answer is no ProviderBatch"),
        (b'{"id":"b1","status":"in_progress"}', "no batch has ended within"),
        (b'{"id":"b1","status":"SUCCESS"}', "no batch has ended within"),
    ],
)
async def test_a_batch_that_never_ends_is_not_polled_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str
) -> None:
    monkeypatch.setattr(rounds, "LONGEST_WAIT_S", 0.5)
    looks = []

    async def look(request: web.Request) -> web.Response:
        looks.append(request.path)
        return web.Response(body=answer, content_type="application/json")

    async def created(_: web.Request) -> web.Response:
        return web.json_response({"id": "b1", "data": []})

    app = web.Application()
    app.router.add_get("/v1/batches/b1", look)
    app.router.add_route("*", "/v1/{tail:.*}", created)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "p", "expected_answer": "1"}\n')
    async with serving(app) as url:
        options = CollectOptions(
            input=str(tmp_path / "tasks.jsonl"), out=str(tmp_path / "run"), model="m", base_urls=(f"{url}/v1",),
            no_verify=True, batch=True, batch_poll_s=0.001,
        )  # fmt: skip
        result = await asyncio.wait_for(Collection(options).run(), 120)
    assert result.exit_code == Exit.INCOMPLETE and reason in str(result)
    assert looks and ("ended" in reason or len(looks) == rounds.TRIES)


@pytest.mark.parametrize("number", ["9" * 400, "1e999", "-7", '"many"', "null", "[]"])
def test_absurd_counts_of_a_batch_leave_its_state_readable(number: str) -> None:
    state_json = f'{{"id":"b","status":"completed","output_file_id":"o","request_counts":{{"completed":{number},"failed":1}}'
    state_json += f',"errors":{{"data":[{{"code":"c","line":{number}}}]}}}}'
    state = decode_json(state_json.encode(), ProviderBatch)
    assert (state.status, state.output_file_id) == ("completed", "o")
    assert state.done is None or 0 <= state.done < 1 << 33
    assert all(fault.code == "c" for fault in state.faults)


def test_a_line_of_results_that_is_too_long_is_named_and_not_held(tmp_path: Path) -> None:
    longest = line_limit(2000)
    lines = [b'{"custom_id": "other"}', b"z" * (3 * longest), b'{"custom_id": "other-2"}', b"y" * longest]
    (tmp_path / "results.jsonl").write_bytes(b"\n".join(lines))
    results = BatchResults(_Plan(), "run", max_response_bytes=2000)  # type: ignore[arg-type]
    results.add(tmp_path / "results.jsonl")
    assert (results.report.lines, results.report.unknown, results.report.unreadable) == (4, 2, 2)
    assert results.report.unreadable_lines == ["results.jsonl:2", "results.jsonl:4"]


LOOKING = """
def verify(task, response):
    return {"reward": 1.0, "seen": repr((response.workdir, [one.file for one in response.artifacts]))}
"""


async def test_no_server_and_no_run_names_files_of_this_machine(tmp_path: Path) -> None:
    """The fields by which a program's directory and kept files reach a verifier, in an answer and in a row."""
    secret = tmp_path / "secret"
    secret.write_text("mine")
    named = {
        "workdir": str(tmp_path),
        "artifacts_root": str(tmp_path),
        "artifacts": [
            {"path": "a", "bytes": 4, "sha256": "0", "file": name}
            for name in (str(secret), "secret", "../secret", "x/../secret")
        ],
    }
    part = {"type": "output_text", "text": "4", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
    answer = {
        "id": "r",
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": [message],
        **named,
    }

    async def respond(_: web.Request) -> web.Response:
        return web.json_response(answer)

    app = web.Application()
    app.router.add_post("/v1/responses", respond)
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "p"}\n')
    (tmp_path / "looking.py").write_text(LOOKING)
    verifier = f"{tmp_path / 'looking.py'}:verify"
    async with serving(app) as url:
        options = CollectOptions(
            input=str(tmp_path / "tasks.jsonl"), out=str(tmp_path / "run"), model="m", base_urls=(f"{url}/v1",),
            api="responses", verifier=verifier,
        )  # fmt: skip
        await Collection(options).run()
    rollouts = tmp_path / "run" / "rollouts.jsonl"
    row = json.loads(rollouts.read_text())
    assert row["seen"] == "(None, [None, None, None, None])"
    row["response"] |= named
    rollouts.write_text(json.dumps(row) + "\n")
    (rollout,) = RolloutReader(rollouts)
    assert rollout.response.workdir is None
    assert [one.file for one in rollout.response.artifacts] == [None] * 4
    body = {"responses_create_params": {"input": "p"}, "response": {"output": [], **named}}
    _, asked = read_verify(body, [])  # type: ignore[arg-type]
    assert asked.workdir is None and [one.file for one in asked.artifacts] == [None] * 4


def test_a_kept_file_is_what_its_name_says(tmp_path: Path) -> None:
    data = b"left by a program"
    digest = hashlib.sha256(data).hexdigest()
    path = tmp_path / "rollouts_artifacts" / digest[:2] / digest
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    kept = Artifact("out.txt", len(data), digest, str(path))
    assert kept.read() == data
    path.write_bytes(b"changed")
    with pytest.raises(FileNotFoundError, match="is not what was kept"):
        kept.read()
    path.unlink()
    (tmp_path / "same").write_bytes(data)
    path.symlink_to(tmp_path / "same")
    with pytest.raises(OSError, match="symbolic links"):
        kept.read()


@pytest.mark.parametrize("name", ["../../elsewhere", "/etc/rf", "..", "a/b", "", "n" * 101])
def test_a_batch_of_a_strangers_log_names_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    event = {"batch": name, "step": "created", "at": 1.0, "batch_id": "b"}
    (tmp_path / "batches.jsonl").write_text(json.dumps(event) + "\n")
    assert not read_batches(tmp_path / "batches.jsonl")


class _Plan:
    """A plan without tasks: no id is known."""


@pytest.mark.parametrize(
    ("limit", "remaining", "reset", "most_s"),
    [
        ("0", "0", "", 0.0),
        ("0", "0", "60s", 0.0),
        ("100", "0", "1800000005", 1.0),
        ("100", "0", "1800000005000", 1.0),
        ("100", "0", "60s", 1.0),
    ],
)
def test_rate_limits_of_zero_and_resets_that_are_times_stop_nothing(
    limit: str, remaining: str, reset: str, most_s: float
) -> None:
    rates = RateLimits()
    names = ("limit", "remaining", "reset")
    headers = {
        f"x-ratelimit-{name}-requests": value
        for name, value in zip(names, (limit, remaining, reset), strict=True)
    }
    rates.observe(headers, 100.0, 1.8e9)
    assert rates.wait_s(10.0, 100.0)[0] <= most_s


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-3", "1e999"])
def test_nonsense_in_a_servers_metrics_is_no_load(number: str) -> None:
    page = f"vllm:num_requests_running {number}\nvllm:num_requests_waiting 5\nvllm:kv_cache_usage_perc {number}\n"
    assert read_load(page) is None
    load = read_load(page + "vllm:num_requests_running 3\n")
    assert load is not None and (load.running, load.waiting, load.kv) == (3, 5, None)


async def test_a_list_of_tools_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "MOST_PAGES", 20)
    async with serving(_mcp_app(lambda: {"tools": [_TOOL], "nextCursor": "again"})) as url:
        tools = mcp.McpTools("mcp", "mcp", f"{url}/mcp")
        with pytest.raises(UsageError, match="does not end after 20"):
            await tools.start()


async def test_a_server_that_never_lists_its_tools_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "OPEN_S", 1.5)
    async with serving(_mcp_app(lambda: None)) as url:
        tools = mcp.McpTools("mcp", "mcp", f"{url}/mcp")
        with pytest.raises(UsageError, match="no list of tools within"):
            await tools.start()


_TOOL = {"name": "look", "inputSchema": {"type": "object"}}


def _mcp_app(listed: Callable[[], dict[str, Any] | None]) -> web.Application:
    async def handle(request: web.Request) -> web.StreamResponse:
        message = json.loads(await request.read()) if request.can_read_body else {}
        if "id" not in message:
            return web.Response(status=202 if request.method == "POST" else 405)
        if message["method"] == "initialize":
            about = {"name": "endless", "version": "1"}
            result: dict[str, Any] | None = {
                "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about,
            }  # fmt: skip
        else:
            result = listed()
        if result is None:
            stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await stream.prepare(request)
            await asyncio.sleep(30)
            return stream
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": result})

    app = web.Application()
    app.router.add_route("*", "/mcp", handle)
    return app


@pytest.mark.parametrize("path", ["/schema", "/ws"])
async def test_a_redirect_of_an_openenv_server_is_not_followed(path: str) -> None:
    reached: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        reached.append(request.path)
        return web.json_response({"action": {"type": "object"}})

    other = web.Application()
    other.router.add_route("*", "/{tail:.*}", elsewhere)
    async with serving(other) as target:

        async def redirect(_: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(target + path)

        app = FakeOpenEnv().app if path == "/ws" else web.Application()
        hostile = web.Application()
        hostile.router.add_get(path, redirect)
        if path == "/ws":
            hostile.router.add_get(
                "/schema", next(r.handler for r in app.router.routes() if "schema" in str(r.resource))
            )
        async with serving(hostile) as url:
            agent = OpenEnv(EnvironmentSpec.parse(f"openenv:{url}")).agent(AgentOptions())
            try:
                if path == "/schema":
                    with pytest.raises(UsageError, match="redirects"):
                        await agent.prepare()
                else:
                    await agent.prepare()
                    with pytest.raises(Failure, match="redirects"):
                        async with agent._connected():
                            pass
            finally:
                await agent.close()
    assert not reached


async def test_servers_on_this_machine_are_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An OpenEnv server here is asked directly, as a model is."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with serving(FakeOpenEnv().app) as url:
        agent = OpenEnv(EnvironmentSpec.parse(f"openenv:{url}")).agent(AgentOptions())
        try:
            assert (await agent.prepare()).judges
            async with agent._connected():
                pass
        finally:
            await agent.close()
    async with serving(_mcp_app(lambda: {"tools": [_TOOL]})) as url:
        tools = mcp.McpTools("mcp", "mcp", f"{url}/mcp")
        await tools.start()
        assert len(tools.schemas) == 1


@pytest.mark.parametrize("path", ["@elsewhere/mcp", ".elsewhere/mcp", "9/mcp"])
async def test_a_gym_server_announces_tools_on_itself_only(path: str) -> None:
    announced: Any = {"mcp": {"url_path": path, "headers": {}}}
    server: Any = SimpleNamespace(url="http://127.0.0.1:1")
    tools: Any = None
    with pytest.raises(Failure, match="path"):
        async with _with_mcp(server, announced, tools, LIMIT):
            pass


def test_patterns_of_a_datasets_card_neither_break_nor_hang() -> None:
    names = ["data/train-a.jsonl", "data/train-b.jsonl", "x/" + "a" * 200 + ".jsonl"]
    for pattern in ("[z-a].jsonl", "[\\]x", "[a-\\d]", "[", "x/" + "*a" * 40 + "b", "**/" * 40 + "nothing"):
        assert matching(names, [pattern]) == []
    assert matching(names, ["data/train-[!a].jsonl"]) == ["data/train-b.jsonl"]
    assert matching(names, ["**/train-*.jsonl"]) == matching(names, ["data/**"]) == names[:2]
    info = HubInfo("o/d", "c" * 40, [HubFile(name) for name in names], [{"data_files": "[z-a]*"}])
    with pytest.raises(UsageError, match="match no file"):
        choose_split(info, split=None, config=None)
