"""The recording proxy over real HTTP: three APIs, one turn per request, durable before answered, nothing for strangers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions
from rollforge.errors import Failure
from rollforge.proxy import ProgramSession, RecordingProxy
from rollforge.records import from_json
from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.store import DurableFile

QUESTION = "What is 12 + 30? Put the answer in \\boxed{}."
PARAMETERS = {"type": "object", "properties": {"word": {"type": "string"}}}


class Bench:
    """A proxy with one open session in front of a simulated model."""

    def __init__(self, proxy: RecordingProxy, session: ProgramSession, journal: DurableFile) -> None:
        self.proxy, self.session, self.journal = proxy, session, journal
        self.http = aiohttp.ClientSession()

    async def post(
        self, path: str, body: Any, *, root: str | None = None, **headers: str
    ) -> tuple[int, Any, Any]:
        url = f"{self.proxy.url}{root if root is not None else f'/r/{self.session.secret}'}{path}"
        async with self.http.post(url, json=body, headers=headers) as answer:
            data = await answer.read()
            value = from_json(data) if answer.content_type == "application/json" else data
            return answer.status, value, answer.headers

    def lines(self) -> list[Any]:
        return [from_json(line) for line in self.journal.path.read_bytes().splitlines()]


@asynccontextmanager
async def bench(
    tmp_path: Path,
    imposed: dict[str, Any] | None = None,
    *,
    retries: int = 0,
    max_calls: int = 10_000,
    max_bytes: int = 512 << 20,
    **options: Any,
) -> AsyncIterator[Bench]:
    async with SimulatedServer(SimulateOptions(**{"reasoning": 0, **options})) as server:
        client_options = ClientOptions(base_urls=(server.base_url,), retries=retries)
        async with Client(client_options) as client:
            model = Model(client, ModelOptions(name="simulated", logprobs=True, names_samples=True))
            proxy, journal = RecordingProxy(model), DurableFile(tmp_path / "calls.jsonl")
            await proxy.start(tmp_path / "p.sock")
            await journal.start()
            session = ProgramSession(
                model=model,
                journal=journal,
                imposed=imposed or {},
                task=3,
                sample=1,
                max_calls=max_calls,
                max_bytes=max_bytes,
            )
            proxy.add(session)
            work = Bench(proxy, session, journal)
            try:
                yield work
            finally:
                await work.http.close()
                await proxy.close()
                await journal.close()


def chat_body(text: str = QUESTION, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-any", "messages": [{"role": "user", "content": text}], **more}


async def test_a_rollout_makes_as_many_calls_as_it_may_and_no_more(tmp_path: Path) -> None:
    async with bench(tmp_path, max_calls=2) as work:
        statuses = [(await work.post("/v1/chat/completions", chat_body(f"{n} + 1?")))[0] for n in range(3)]
        recorded = len(work.lines())
    assert statuses[:2] == [200, 200] and statuses[2] >= 400 and recorded == 2


JSON = {"Content-Type": "application/json"}


async def test_calls_of_a_rollout_hold_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    """Read and unanswered requests count, in whatever encoding, and end counting when they are refused."""
    limit = 1 << 20

    async def chunks(size: int) -> AsyncIterator[bytes]:
        for _ in range(size >> 14):
            yield b"x" * (1 << 14)

    async with bench(tmp_path, max_bytes=limit) as work:
        url = f"{work.proxy.url}/r/{work.session.secret}/v1/chat/completions"
        for size in (limit + (1 << 17), limit // 2):
            async with work.http.post(url, data=chunks(size), headers=JSON) as answer:
                text = await answer.text()
            assert answer.status == 400
            assert ("hold more than 1,048,576 bytes" in text) is (size > limit), (
                "half of it is read, and is no JSON"
            )
        status, answer, _ = await work.post("/v1/chat/completions", chat_body("y" * (limit // 4)))
        assert status == 200
        refused, answer, _ = await work.post("/v1/chat/completions", chat_body("z" * (limit * 7 // 8)))
        assert refused == 400 and "--max-response-bytes" in answer["error"]["message"]
        assert len(work.lines()) == 1


async def test_items_that_every_turn_repeats_are_kept_once(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": f"turn {number}"} for number in range(5)]
    async with bench(tmp_path) as work:
        for count in (1, 3, 5):
            await work.post("/v1/chat/completions", {"model": "m", "messages": turns[:count]})
        first, second, third = (cast("list[Any]", call.params["input"]) for call in work.session.calls)
    assert [len(one) for one in (first, second, third)] == [1, 3, 5]
    assert third[0] is second[0] is first[0] and third[2] is second[2]


async def test_all_three_apis_are_answered_and_recorded_alike(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        _, chat, headers = await work.post("/v1/chat/completions", chat_body())
        _, response, _ = await work.post("/v1/responses", {"model": "x", "input": QUESTION})
        body = {"model": "y", "max_tokens": 400, "messages": [{"role": "user", "content": QUESTION}]}
        _, message, _ = await work.post("/v1/messages", body)
        lines = work.lines()
    texts = {
        chat["choices"][0]["message"]["content"],
        response["output"][0]["content"][0]["text"],
        message["content"][0]["text"],
    }
    assert len(texts) == 1
    assert (chat["model"], response["model"], message["model"]) == ("gpt-any", "x", "y")
    assert headers["x-should-retry"] == "false"
    assert [
        (line["api"], line["call"], line["_ng_task_index"], line["_ng_rollout_index"]) for line in lines
    ] == [
        ("chat", 0, 3, 1),
        ("responses", 1, 3, 1),
        ("messages", 2, 3, 1),
    ]


async def test_token_ids_and_logprobs_are_kept_and_hidden(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        shown = [
            await work.post("/v1/chat/completions", chat_body(logprobs=True)),
            await work.post("/v1/responses", {"model": "x", "input": QUESTION}),
            await work.post("/v1/chat/completions", chat_body(stream=True)),
        ]
        lines = work.lines()
    for _, answer, _ in shown:
        assert "token_ids" not in str(answer) and "logprob': -" not in str(answer)
    for line in lines:
        last = line["response"]["output"][-1]
        assert last["prompt_token_ids"] and len(last["generation_token_ids"]) == len(
            last["generation_log_probs"]
        )


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_stream_is_replayed_in_the_callers_api(tmp_path: Path, path: str) -> None:
    body: dict[str, Any] = {"model": "m", "stream": True, "max_tokens": 300}
    body |= {"input": QUESTION} if path.endswith("responses") else {"messages": chat_body()["messages"]}
    async with bench(tmp_path) as work:
        status, data, headers = await work.post(path, body)
    end = {"s": b"data: [DONE]\n\n", "e": b"event: message_stop"}
    assert status == 200 and headers["Content-Type"].startswith("text/event-stream")
    assert {"completions": end["s"], "responses": b"response.completed", "messages": end["e"]}[
        path.rsplit("/", 1)[1]
    ] in data


async def test_tools_work_in_every_api(tmp_path: Path) -> None:
    prompt = 'call look {"word": "amber"}'
    function = {"name": "look", "parameters": PARAMETERS}
    async with bench(tmp_path) as work:
        _, chat, _ = await work.post(
            "/v1/chat/completions", chat_body(prompt, tools=[{"type": "function", "function": function}])
        )
        _, response, _ = await work.post(
            "/v1/responses",
            {
                "model": "m",
                "input": prompt,
                "tools": [{"type": "function", **function}, {"type": "web_search"}],
            },
        )
        tool = {"name": "look", "input_schema": PARAMETERS}
        _, message, _ = await work.post(
            "/v1/messages",
            {
                "model": "m",
                "max_tokens": 99,
                "messages": [{"role": "user", "content": prompt}],
                "tools": [tool],
            },
        )
        left_out = work.session.left_out
    assert from_json(chat["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {
        "word": "amber"
    }
    assert from_json(response["output"][-1]["arguments"]) == {"word": "amber"}
    assert message["content"][-1]["input"] == {"word": "amber"} and message["stop_reason"] == "tool_use"
    assert left_out == {"web_search": 1}


async def test_a_repeated_request_is_one_turn(tmp_path: Path) -> None:
    async with bench(tmp_path, latency=0.05) as work:
        body = chat_body()
        first, second = await asyncio.gather(
            work.post("/v1/chat/completions", body), work.post("/v1/chat/completions", body)
        )
        third = await work.post("/v1/chat/completions", body, **{"x-stainless-retry-count": "1"})
        keyed = [
            await work.post("/v1/chat/completions", chat_body(user=str(n)), **{"Idempotency-Key": "k"})
            for n in range(2)
        ]
        lines = work.lines()
    assert first[1] == second[1] == third[1] and keyed[0][1] == keyed[1][1]
    assert len(lines) == 2


async def test_model_name_and_sampling_of_the_run_are_imposed(tmp_path: Path) -> None:
    async with bench(tmp_path, {"temperature": 0.3, "max_output_tokens": 7, "input": "not this"}) as work:
        await work.post("/v1/chat/completions", chat_body(temperature=1.9, max_tokens=900, top_p=0.5))
        (line,) = work.lines()
    params = line["params"]
    assert (params["temperature"], params["max_output_tokens"], params["top_p"]) == (0.3, 7, 0.5)
    assert params["input"][0]["content"] == QUESTION and "model" not in params
    assert line["response"]["usage"]["output_tokens"] == 7


async def test_an_unknown_secret_gets_401_and_is_named_at_the_end(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        status, _, _ = await work.post("/v1/chat/completions", chat_body(), root="/r/0000")
        other, _, _ = await work.post("/v1/responses", {"input": "x"}, root="", Authorization="Bearer rf-1")
        by_key, _, _ = await work.post(
            "/v1/chat/completions", chat_body(), root="", Authorization=f"Bearer {work.session.key}"
        )
        header = {"x-api-key": work.session.key}
        by_header, _, _ = await work.post("/v1/chat/completions", chat_body(), root="", **header)
        notes = work.proxy.notes()
    assert (status, other, by_key, by_header) == (401, 401, 200, 200)
    assert "2 requests" in notes[0] and "/r/…/v1/chat/completions" in notes[0] and "0000" not in notes[0]


async def test_calls_after_the_end_are_refused_and_counted(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        await work.proxy.close_session(work.session)
        status, _, _ = await work.post("/v1/chat/completions", chat_body())
        notes, lines = work.proxy.notes(), work.lines()
    assert status == 410 and "1 model calls came after" in notes[0] and not lines


async def test_a_web_page_and_a_websocket_are_refused(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        status, _, _ = await work.post("/v1/chat/completions", chat_body(), Origin="http://evil.example")
        url = f"{work.proxy.url}/r/{work.session.secret}/v1/responses"
        async with work.http.get(url, headers={"Upgrade": "websocket"}) as answer:
            upgrade = answer.status
        async with work.http.post(url, data=b"{}", headers={"Content-Type": "text/plain"}) as answer:
            plain = answer.status
        calls = work.session.calls
    assert (status, upgrade, plain) == (403, 426, 415) and not calls


async def test_a_failure_of_the_model_is_told_in_the_callers_api_and_kept(tmp_path: Path) -> None:
    async with bench(tmp_path, faults=("overflow=1",)) as work:
        status, body, headers = await work.post("/v1/chat/completions", chat_body())
        message = {"model": "m", "max_tokens": 9, "messages": chat_body()["messages"]}
        other, output, _ = await work.post("/v1/messages", message)
        failure, lines = work.session.failure, work.lines()
    assert status == other == 400 and body["error"]["code"] == "context_length_exceeded"
    assert output["type"] == "error" and headers["x-should-retry"] == "false"
    assert isinstance(failure, Failure) and failure.kind == "context-overflow"
    assert [line["failure"]["class"] for line in lines] == ["context-overflow"] * 2


async def test_the_endpoint_retries_so_that_the_program_need_not(tmp_path: Path) -> None:
    async with bench(tmp_path, retries=6, faults=("500=0.5",)) as work:
        statuses = [
            (await work.post("/v1/chat/completions", chat_body(f"{n} {QUESTION}")))[0] for n in range(8)
        ]
        lines = work.lines()
    assert statuses == [200] * 8 and sum(line["requests"] for line in lines) > 8


async def test_models_are_listed_with_their_context_and_tokens_are_counted_unrecorded(tmp_path: Path) -> None:
    async with bench(tmp_path, context_tokens=4096) as work:
        url = f"{work.proxy.url}/r/{work.session.secret}/v1/models"
        async with work.http.get(url) as answer:
            models = await answer.json()
        body = chat_body("x" * 400)
        _, counted, _ = await work.post("/v1/messages/count_tokens", body)
        lines = work.lines()
    assert models["data"][0]["id"] == "simulated" and models["data"][0]["max_model_len"] == 4096
    assert counted["input_tokens"] == len(json.dumps(body)) // 4 and not lines


async def test_a_conversation_may_continue_by_its_response_id(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        _, first, _ = await work.post("/v1/responses", {"model": "m", "input": QUESTION})
        more = {"model": "m", "input": "And plus 1?", "previous_response_id": first["id"]}
        status, _, _ = await work.post("/v1/responses", more)
        unknown, _, _ = await work.post("/v1/responses", {**more, "previous_response_id": "resp_other"})
        calls = work.session.calls
    assert status == 200 and unknown == 400
    assert [item.get("role") for item in calls[1].params["input"]] == ["user", "assistant", "user"]


async def test_the_answer_waits_for_the_disk(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        held = asyncio.Event()
        commit = work.journal._commit_waiting

        async def slowly() -> None:
            await held.wait()
            await commit()

        work.journal._commit_waiting = slowly  # type: ignore[method-assign]
        asking = asyncio.create_task(work.post("/v1/chat/completions", chat_body()))
        done, _ = await asyncio.wait([asking], timeout=0.3)
        held.set()
        status, _, _ = await asking
    assert not done and status == 200


async def test_the_unix_socket_answers_too(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        connector = aiohttp.UnixConnector(str(tmp_path / "p.sock"))
        async with aiohttp.ClientSession(connector=connector) as http:
            url = f"http://127.0.0.1/r/{work.session.secret}/v1/chat/completions"
            async with http.post(url, json=chat_body()) as answer:
                assert answer.status == 200


async def test_odd_requests_are_answered_with_what_is_wrong(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        for path, body in (
            ("/v1/chat/completions", {"model": "m", "messages": []}),
            ("/v1/chat/completions", chat_body(n=3)),
            ("/v1/chat/completions", [1]),
            ("/v1/responses", {"model": "m", "input": 5}),
            ("/v1/messages", {"model": "m", "messages": [{"role": "x"}]}),
        ):
            status, output, _ = await work.post(path, body)
            assert status == 400 and output["error"]["message"], (path, body)
        status, _, _ = await work.post("/v1/embeddings", {})
        calls = work.session.calls
    assert status == 404 and not calls


@pytest.mark.parametrize(("between", "is_shared"), [(15, True), (16, False)])
async def test_a_call_is_written_against_one_of_the_last_sixteen(
    tmp_path: Path, between: int, is_shared: bool
) -> None:
    async with bench(tmp_path) as work:
        await work.post("/v1/chat/completions", chat_body())
        for number in range(between):
            await work.post("/v1/chat/completions", chat_body(f"What is {number} + 1?"))
        body = chat_body()
        body["messages"].append({"role": "user", "content": "Go on."})
        await work.post("/v1/chat/completions", body)
        last = work.lines()[-1]
    assert last["input_from"] == ({"call": 0, "items": 1} if is_shared else None)


async def test_only_a_get_of_the_models_lists_them(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        base = f"{work.proxy.url}/r/{work.session.secret}/v1"
        answers = []
        for method, path in (
            ("GET", "models"),
            ("GET", "models/simulated"),
            ("GET", "chat/completions"),
            ("PUT", "models"),
        ):
            async with work.http.request(
                method, f"{base}/{path}", json={} if method == "PUT" else None
            ) as answer:
                answers.append(answer.status)
    assert answers == [200, 200, 405, 405]
