"""Asking a model over a server whose habits are its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions
from rollforge.errors import Failure

ANSWER = '{"id": "c", "model": "m", "choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]%s}'

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def model_behind(handler: Handler, **options: object) -> AsyncIterator[Model]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with Client(ClientOptions(base_urls=(f"http://127.0.0.1:{port}/v1",), retries=1)) as client:
            yield Model(client, ModelOptions(name="m", **options))  # type: ignore[arg-type]
    finally:
        await runner.cleanup()


async def test_auto_finds_the_api_once() -> None:
    paths = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.path)
        if request.path.endswith("/responses"):
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.Response(text=ANSWER % "", content_type="application/json")

    async with model_behind(answer) as model:
        for _ in range(3):
            assert (await model.respond({"input": "hi"})).response["output"][0]["content"][0]["text"] == "ok"
    assert paths == ["/v1/chat/completions"] * 3, "chat is asked first: servers report truncation there"


async def test_a_server_that_wants_another_name_for_the_limit_is_learned_once() -> None:
    bodies = []

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        bodies.append(body)
        if "max_tokens" in body:
            message = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return web.json_response({"error": {"message": message}}, status=400)
        return web.Response(text=ANSWER % "", content_type="application/json")

    async with model_behind(answer, api="chat") as model:
        for _ in range(2):
            await model.respond({"input": "hi", "max_output_tokens": 5})
    assert [set(body) & {"max_tokens", "max_completion_tokens"} for body in bodies] == [
        {"max_tokens"},
        {"max_completion_tokens"},
        {"max_completion_tokens"},
    ]


async def test_a_server_that_does_not_know_token_ids_is_asked_without_them() -> None:
    async def answer(request: web.Request) -> web.Response:
        if "return_token_ids" in await request.json():
            return web.json_response(
                {"error": {"message": "Unrecognized argument: return_token_ids"}}, status=400
            )
        return web.Response(text=ANSWER % "", content_type="application/json")

    async with model_behind(answer, logprobs=True) as model:
        await model.respond({"input": "hi"})


async def test_numbers_and_characters_that_json_does_not_have_are_mended_not_lost() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(
            text=ANSWER.replace("ok", "o\\ud800k") % ', "score": NaN', content_type="application/json"
        )

    async with model_behind(answer, api="chat") as model:
        response = (await model.respond({"input": "hi"})).response
    assert response["output"][0]["content"][0]["text"] == "o?k"
    assert "score" not in response


async def test_torn_json_is_a_passing_fault() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text='{"choices": [', content_type="application/json")

    async with model_behind(answer, api="chat") as model:
        with pytest.raises(Failure) as caught:
            await model.respond({"input": "hi"})
    assert caught.value.kind == "transient" and caught.value.requests == 2


MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
OVERFLOW = {"code": "context_length_exceeded", "message": "Your input is too big"}
FILTERED = {"reason": "content_filter"}


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ({"status": "cancelled", "output": []}, "transient", "cancelled"),
        ({"status": "queued", "output": []}, "transient", "queued"),
        ({"status": "in_progress", "output": []}, "transient", "in_progress"),
        ({"status": "failed", "output": [MESSAGE]}, "transient", "failed"),
        ({"status": "failed", "error": OVERFLOW, "output": []}, "context-overflow", "Your input is too big"),
        ({"status": "incomplete", "incomplete_details": FILTERED, "output": []}, "refused", "filter"),
        ({"error": {"message": "maximum context length is 4096"}}, "context-overflow", "is 4096"),
        ({"error": {"message": "upstream overloaded"}}, "transient", "upstream overloaded"),
        ({"choices": [{"message": {"content": "h"}, "finish_reason": "error"}]}, "transient", "error"),
        ({"choices": [{"message": {"content": "h"}, "finish_reason": "abort"}]}, "transient", "abort"),
        (
            {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]},
            "refused",
            "filter",
        ),
    ],
)
async def test_what_is_no_answer_is_a_failure_though_the_status_is_200(
    answer: dict[str, object], kind: str, words: str
) -> None:
    async def respond(request: web.Request) -> web.Response:
        return web.json_response(answer)

    async with model_behind(respond, api="responses" if "output" in answer else "chat") as model:
        with pytest.raises(Failure, match=words) as caught:
            await model.respond({"input": "hi"})
    assert caught.value.kind == kind


async def test_an_answer_cut_by_a_content_filter_is_kept_with_what_there_is_of_it() -> None:
    async def respond(request: web.Request) -> web.Response:
        return web.json_response(
            {"status": "incomplete", "incomplete_details": FILTERED, "output": [MESSAGE]}
        )

    async with model_behind(respond, api="responses") as model:
        assert (await model.respond({"input": "hi"})).response["output"] == [MESSAGE]
