"""What a hostile or careless server sends: endless and compressed bodies, absurd numbers, redirects, streams, odd shapes.

Every answer becomes a rollout or a failure with its class; memory stays bounded; the run ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import resource
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions
from rollforge.endpoint.proxies import proxy_for
from rollforge.errors import Failure, RollforgeError
from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from rollforge.tasks import hub_client

CHAT: dict[str, Any] = {
    "id": "c1", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
}  # fmt: skip
RESPONSE: dict[str, Any] = {
    "id": "r1", "object": "response", "status": "completed", "model": "m", "error": None, "incomplete_details": None,
    "output": [{"type": "message", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "cut in the mid", "annotations": []}]}],
    "usage": {"input_tokens": 3, "output_tokens": 16, "total_tokens": 19},
}  # fmt: skip

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def model_behind(
    handler: Handler, *, limit: int = 1 << 20, logprobs: bool = False, api: Any = "auto", retries: int = 0
) -> AsyncIterator[Model]:
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    options = ClientOptions(
        base_urls=(f"http://127.0.0.1:{port}/v1",), retries=retries, max_response_bytes=limit
    )
    try:
        async with Client(options) as client:
            yield Model(client, ModelOptions(name="m", api=api, logprobs=logprobs))
    finally:
        await runner.cleanup()


def collect(folder: Path, fault: str, *more: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Collect from a server with a fault; also the collecting process's peak memory in MB."""
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(6, 0, "math")))
    words = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "exact", "-c", "6"]
    program = (
        "import re, sys, atexit\n"
        # ru_maxrss would start from the memory of the process that forked this one.
        "peak = lambda: re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]\n"
        "atexit.register(lambda: open('peak', 'w').write(str(int(peak()) / 1024)))\n"
        "from rollforge.cli import main\nmain(sys.argv[1:])"
    )
    with SimulatedProcess(SimulateOptions(faults=(fault,))) as server:
        done = subprocess.run(
            [sys.executable, "-c", program, *words, "--base-url", server.base_url, "--progress", "none",
             "--attempts", "1", "--retries", "0", "--json", *more],
            cwd=folder, capture_output=True, text=True, check=False, timeout=180,
        )  # fmt: skip
    return done, float((folder / "peak").read_text())


@pytest.mark.parametrize("fault", ["endless=1.0", "large-body=1.0,mb=512", "gzip-bomb=1.0,mb=1024"])
def test_no_answer_takes_more_memory_than_its_limit(tmp_path: Path, fault: str) -> None:
    done, peak_mb = collect(tmp_path, fault, "--max-response-bytes", str(8 << 20))
    assert done.returncode == 3, done.stderr
    assert set(json.loads(done.stdout)["failed"]) == {"oversized"}, done.stdout
    assert peak_mb < 400, "six answers at once, each of at least 512 MB"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("fault", ["headers=1.0", "nested=1.0", "bad-utf8=1.0", "endless=1.0,status=500"])
def test_hostile_answers_are_failures_with_a_class(tmp_path: Path, fault: str) -> None:
    done, peak_mb = collect(tmp_path, fault)
    assert done.returncode in (3, 0), done.stderr
    assert peak_mb < 400 and "Traceback" not in done.stderr


@pytest.mark.parametrize("number", ["digits", "negative", "huge", "fraction", "text", "nan"])
def test_absurd_numbers_are_null_with_a_note_and_budgets_hold(tmp_path: Path, number: str) -> None:
    done, _ = collect(tmp_path, f"absurd-numbers=1.0,number={number}", "--max-total-tokens", "1000000000")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    for row in rows:
        for count in (row["response"].get("usage") or {}).values():
            assert count is None or isinstance(count, dict) or 0 <= count <= 10**12
    assert number == "nan" or any("null" in note for note in json.loads(done.stdout)["notes"])


def test_a_redirect_to_another_host_is_refused(tmp_path: Path) -> None:
    done, _ = collect(tmp_path, "redirect=1.0")
    assert done.returncode == 3, done.stderr
    failure = json.loads((tmp_path / "run" / "rollouts_failures.jsonl").read_text().splitlines()[0])
    assert "redirects to another host" in failure["message"]


async def test_a_redirect_within_the_host_is_followed() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/chat/completions":
            raise web.HTTPTemporaryRedirect("/v2/chat")
        assert (await request.json())["model"] == "m"
        return web.json_response(CHAT)

    async with model_behind(answer) as model:
        assert (await model.respond({"input": "hi"})).response["status"] == "completed"


@pytest.mark.parametrize("piece", [1 << 10, 1 << 20])
async def test_a_gzip_bomb_of_small_or_large_pieces_is_cut(piece: int) -> None:
    bomb = gzip.compress(b'{"x": "' + b"a" * (64 << 20) + b'"}')

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse(headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})
        await stream.prepare(request)
        for start in range(0, len(bomb), piece):
            await stream.write(bomb[start : start + piece])
        return stream

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with model_behind(answer) as model:
        results = await asyncio.gather(
            *(model.respond({"input": "hi"}) for _ in range(20)), return_exceptions=True
        )
    assert all(isinstance(one, Failure) and one.kind == "oversized" for one in results)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150 << 10


@pytest.mark.parametrize("status", [200, 500])
async def test_compressed_pieces_that_hold_nothing_have_an_end(status: int) -> None:
    """Empty gzip members are 20 bytes each and never reach a limit on what is inside."""
    nothing = gzip.compress(b"") * 5000

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        stream = web.StreamResponse(status=status, headers=headers)
        await stream.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await stream.write(nothing)
        return stream

    async with model_behind(answer) as model:
        with pytest.raises(Failure) as caught:
            await asyncio.wait_for(model.respond({"input": "hi"}), 120)
    assert caught.value.kind == ("oversized" if status == 200 else "transient")


async def test_interim_answers_without_end_are_cut() -> None:
    """`100 Continue` for ever took 600 MB in 15 s; a few of them before an answer are fine."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(CHAT).encode()
        with contextlib.suppress(ConnectionError):
            if b"/few/" in head:
                writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 3 + b"HTTP/1.1 200 OK\r\n")
                writer.write(
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
            while b"/endless/" in head and not writer.is_closing():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        place = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for path, is_fine in (("few", True), ("endless", False)):
            options = ClientOptions(base_urls=(f"{place}/{path}/v1",), retries=0, request_timeout_s=60)
            async with Client(options) as client:
                model = Model(client, ModelOptions(name="m", api="chat"))
                if is_fine:
                    assert (await model.respond({"input": "hi"})).response["status"] == "completed"
                    continue
                with pytest.raises(Failure, match="interim answers") as caught:
                    await model.respond({"input": "hi"})
                assert caught.value.kind == "transient"


async def test_compressed_answers_within_the_limit_are_read() -> None:
    async def answer(request: web.Request) -> web.Response:
        assert "gzip" in request.headers["Accept-Encoding"]
        return web.Response(
            body=gzip.compress(json.dumps(CHAT).encode()),
            headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
        )

    async with model_behind(answer) as model:
        assert (await model.respond({"input": "hi"})).response["output"][0]["content"][0]["text"] == "ok"


async def test_large_answers_are_held_a_few_at_a_time() -> None:
    """Many answers of several megabytes at once all arrive; only `LARGE_AT_ONCE` are in memory together."""
    large = {**CHAT, "padding": "x" * (3 << 20)}

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(large)

    async with model_behind(answer, limit=8 << 20) as model:
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(model.respond({"input": "hi"}) for _ in range(12)))
    assert len(answers) == 12


@pytest.mark.parametrize(
    "shape",
    [
        {"choices": [{"message": "text"}]},
        {"choices": [{"message": {"content": "ok", "tool_calls": "none"}, "logprobs": []}]},
        {"choices": [{"message": {"content": 5}}], "usage": [1]},
        {"choices": ["ok"]},
        {"choices": [{"message": {"tool_calls": [{"function": "f"}]}}]},
    ],
)
async def test_odd_shapes_are_answers_or_failures_of_the_model(shape: dict[str, Any]) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response(shape)

    async with model_behind(answer, api="chat") as model:
        try:
            response = (await model.respond({"input": "hi"})).response
        except Failure as failure:
            assert failure.boundary == "model"
        else:
            assert isinstance(response["output"], list)


async def test_an_answer_that_used_up_its_limit_is_truncated_whatever_its_status() -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("completions"):
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response(RESPONSE)

    async with model_behind(answer) as model:
        cut = (await model.respond({"input": "hi", "max_output_tokens": 16})).response
        whole = (await model.respond({"input": "hi", "max_output_tokens": 17})).response
    assert cut["status"] == "incomplete" and cut["incomplete_details"]["reason"] == "max_output_tokens"
    assert cut["incomplete_details"]["inferred"] is True
    assert whole["status"] == "completed" and whole["incomplete_details"] is None


async def test_auto_asks_for_no_stream_and_leaves_an_api_that_streams() -> None:
    seen: list[tuple[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((request.path, (await request.json())["stream"]))
        if request.path.endswith("/responses"):
            return web.Response(text="event: x\ndata: {}\n\n", content_type="text/event-stream")
        return web.json_response(CHAT)

    async with model_behind(answer, retries=4) as model:
        params = {
            "input": [{"type": "message", "role": "user", "content": "hi"}],
            "tools": [{"type": "web_search"}],
        }
        assert (await model.respond(params)).api == "chat"
    assert seen == [("/v1/responses", False), ("/v1/chat/completions", False)]


async def test_every_request_that_carried_a_refused_field_is_sent_again() -> None:
    gate = asyncio.Event()
    waiting = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal waiting
        body = await request.json()
        if "return_token_ids" not in body:
            return web.json_response(CHAT)
        waiting += 1
        if waiting == 8:
            gate.set()
        await gate.wait()
        return web.json_response({"error": "unknown field return_token_ids"}, status=422)

    async with model_behind(answer, api="chat", logprobs=True) as model:
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(model.respond({"input": "hi"}) for _ in range(8)))
    assert len(answers) == 8


async def test_logprobs_keep_what_was_asked_for_and_their_absence_is_counted() -> None:
    entry = {"id": 7, "token": "ok", "logprob": -0.1, "top_logprobs": [{"token": "x", "logprob": -1}] * 20}
    choice = {**CHAT["choices"][0], "logprobs": {"content": [entry]}}
    answers = [{**CHAT, "choices": [choice], "prompt_token_ids": [1, 2]}, CHAT]

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(answers.pop(0))

    async with model_behind(answer, api="chat", logprobs=True) as model:
        kept = (await model.respond({"input": "hi"})).response["output"][0]
        assert kept["content"][0]["logprobs"][0]["top_logprobs"] == []
        assert kept["generation_token_ids"] == [7] and kept["generation_log_probs"] == [-0.1]
        await model.respond({"input": "hi"})
        assert model.oddities == {"logprobs were asked for and are absent": 1}


def test_proxies_come_from_the_environment_but_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "no_proxy",
        "NO_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("http_proxy", "proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert proxy_for("https://api.example/v1") == "http://proxy:3128"
    assert proxy_for("http://api.example/v1") == "http://proxy:3128"
    assert proxy_for("https://inside.example/v1") is None
    assert proxy_for("http://127.0.0.1:8000/v1") is None and proxy_for("http://localhost:8000/v1") is None


def test_while_nothing_was_answered_the_last_failure_is_shown(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(2, 0, "math")))
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", "collect", "-i", tasks, "-o", tmp_path / "run", "-m", "x",
         "--base-url", "http://127.0.0.1:9/v1", "--progress", "plain"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "nothing answered yet; last failure: cannot connect" in done.stderr


def test_the_name_auto_takes_the_servers_only_model(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(2, 0, "math")))
    with SimulatedProcess(SimulateOptions(faults=("wrong-model=1.0,name=file.gguf",))) as server:
        done = subprocess.run(
            [sys.executable, "-m", "rollforge", "collect", "-i", tasks, "-o", tmp_path / "run", "-m", "auto",
             "--base-url", server.base_url, "--json"],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
    manifest = json.loads((tmp_path / "run" / "rollouts_run.json").read_text())
    assert done.returncode == 0, done.stderr
    assert manifest["config"]["model"] not in ("", "auto")
    result = json.loads(done.stdout)
    assert "the server calls its model file.gguf" in result["notes"]
    assert result["server_notes"] == ["the server calls its model file.gguf"]
    row = json.loads((tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()[0])
    assert row["_rf"]["api"] == "chat"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"sha":"' + b"x" * 300_000, "an answer of more than 200,000 bytes"),
        (b"[" * 100_000, "not an answer of the Hub"),
        (b'{"sha":"\xff\xfe"}', "not UTF-8"),
        (b'{"sha":1}', "not an answer of the Hub"),
    ],
    ids=["huge", "nested", "bad bytes", "wrong type"],
)
def test_a_hub_that_lies_is_named(
    body: bytes, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Lies(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Lies) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(hub_client, "LARGEST_INFO", 200_000)
        try:
            with pytest.raises(RollforgeError, match=message):
                hub_client.HubClient().info("org/data", "main")
        finally:
            hub.shutdown()
