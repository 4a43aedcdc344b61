"""The two APIs of the simulated model over real HTTP: shapes, limits, errors."""

from __future__ import annotations

import asyncio

from rollforge.records import Response
from rollforge.simulate import SimulatedServer, SimulateOptions
from tests.simulate.simulated_client import answer_text, ask, chat, parse, send

QUESTION = "What is 47 × 83 + 12? Put the final answer in \\boxed{}."


async def test_every_reply_says_that_it_is_simulated():
    async with SimulatedServer() as server:
        for raw in (await ask(server, QUESTION, model="gpt-9"), await chat(server, QUESTION, model="gpt-9")):
            assert raw.json["model"] == "simulated"
            assert raw.json["system_fingerprint"] == "rollforge-simulated"
            assert raw.headers["server"] == "rollforge-simulate"


async def test_usage_adds_up_on_both_apis():
    async with SimulatedServer(SimulateOptions(reasoning=1.0)) as server:
        usage = (await ask(server, QUESTION)).json["usage"]
        other = (await chat(server, QUESTION)).json["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < usage["output_tokens"]
    assert usage["input_tokens_details"] == {"cached_tokens": 0}
    assert other["prompt_tokens"] == usage["input_tokens"]
    assert other["completion_tokens"] == usage["output_tokens"]
    assert other["completion_tokens_details"]["reasoning_tokens"] > 0


async def test_reasoning_stands_in_its_own_place():
    async with SimulatedServer(SimulateOptions(reasoning=0.0)) as server:
        plain = (await chat(server, QUESTION)).json["choices"][0]["message"]
        chatty = (await chat(server, QUESTION, reasoning_effort="high")).json["choices"][0]["message"]
        items = (await ask(server, QUESTION, reasoning={"effort": "high"})).json["output"]
    assert "reasoning_content" not in plain and chatty["reasoning_content"]
    assert [item["type"] for item in items] == ["reasoning", "message"]


async def test_max_tokens_cuts_the_answer_and_says_so():
    async with SimulatedServer() as server:
        response = (await ask(server, QUESTION, max_output_tokens=7)).json
        choice = (await chat(server, QUESTION, max_tokens=7)).json["choices"][0]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 7
    assert choice["finish_reason"] == "length"


async def test_logprobs_come_when_asked_for_and_cover_the_text():
    async with SimulatedServer() as server:
        part = (await ask(server, QUESTION, include=["message.output_text.logprobs"], top_logprobs=3)).json
        choice = (await chat(server, QUESTION, logprobs=True, top_logprobs=2)).json["choices"][0]
        without = (await chat(server, QUESTION)).json["choices"][0]
    content = part["output"][-1]["content"][0]
    assert "".join(entry["token"] for entry in content["logprobs"]) == content["text"]
    assert all(len(entry["top_logprobs"]) == 3 and entry["logprob"] <= 0 for entry in content["logprobs"])
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["message"]["content"]
    assert without["logprobs"] is None


async def test_token_ids_come_in_the_way_of_vllm_and_of_nemo_gym():
    async with SimulatedServer() as server:
        completion = (await chat(server, QUESTION, return_token_ids=True)).json
        response = (await ask(server, QUESTION, return_token_ids=True)).json
    assert len(completion["prompt_token_ids"]) == completion["usage"]["prompt_tokens"]
    assert len(completion["choices"][0]["token_ids"]) == completion["usage"]["completion_tokens"]
    last = response["output"][-1]
    assert (
        len(last["generation_token_ids"])
        == len(last["generation_log_probs"])
        == response["usage"]["output_tokens"]
    )


async def test_n_gives_different_choices():
    async with SimulatedServer() as server:
        completion = (await chat(server, QUESTION, 0, n=4)).json
        counted = (await chat(server, QUESTION, None, n=3)).json
    texts = [choice["message"]["content"] for choice in completion["choices"]]
    assert [choice["index"] for choice in completion["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert counted["choices"][0]["message"]["content"] == texts[0]


async def test_input_items_with_parts_read_like_a_text():
    item = {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
    async with SimulatedServer() as server:
        assert answer_text(await ask(server, [item], 2)) == answer_text(await ask(server, QUESTION, 2))


async def test_an_unknown_model_is_an_error_where_names_are_given():
    async with SimulatedServer(SimulateOptions(models=("small", "large"))) as server:
        listed = (await send(server, "/v1/models")).json
        wrong = await ask(server, QUESTION, model="smal")
        right = await ask(server, QUESTION, model="large")
    assert [model["id"] for model in listed["data"]] == ["small", "large"]
    assert wrong.status == 404 and wrong.json["error"]["code"] == "model_not_found"
    assert right.json["model"] == "large"


async def test_a_wrong_key_is_refused_and_the_right_one_is_not():
    async with SimulatedServer(SimulateOptions(api_key="secret")) as server:
        body = {"model": "simulated", "input": "hi"}
        wrong = await send(server, "/v1/responses", body, headers={"Authorization": "Bearer other"})
        right = await send(server, "/v1/responses", body, headers={"Authorization": "Bearer secret"})
    assert wrong.status == 401 and wrong.json["error"]["code"] == "invalid_api_key"
    assert b"secret" not in wrong.body
    assert right.status == 200


async def test_bad_requests_are_answered_and_never_crash():
    bodies = [
        b"{",
        b"[]",
        b"\xff\xfe",
        {"model": "simulated"},
        {"input": "hi"},
        {"model": "simulated", "input": [1]},
        {"model": "simulated", "input": "hi", "temperature": "hot"},
        {"model": "simulated", "input": "hi", "max_output_tokens": 0},
        {"model": "simulated", "input": "hi", "tools": [{"type": "function"}]},
        {"model": "simulated", "input": [{"type": "mystery"}]},
    ]
    async with SimulatedServer() as server:
        for body in bodies:
            raw = await send(server, "/v1/responses", body)
            assert raw.status == 400 and raw.json["error"]["message"], body
        assert (await send(server, "/v1/chat/completions", {"model": "m", "messages": []})).status == 400
        odd = {"model": "m", "messages": [{"role": "assistant", "tool_calls": ["x"]}]}
        assert (await send(server, "/v1/chat/completions", odd)).status == 400
        assert (await send(server, "/v1/responses")).status == 405
        assert (await send(server, "/nowhere")).status == 404


async def test_health_and_stats_answer():
    async with SimulatedServer() as server:
        await ask(server, QUESTION)
        assert (await send(server, "/health")).json["simulated"] is True
        assert (await send(server, "/")).status == 200
        stats = (await send(server, "/stats")).json
    assert stats["requests"] == 1 and stats["by_status"] == {"200": 3}


async def test_a_connection_is_kept_and_requests_may_be_sent_ahead_and_in_chunks():
    body = b'{"model":"simulated","input":"What is 2 + 2?"}'
    plain = b"POST /v1/responses HTTP/1.1\r\nContent-Length: %d\r\nX-Rollforge-Sample: 1\r\n\r\n%b" % (
        len(body),
        body,
    )
    chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (10, body[:10], len(body) - 10, body[10:])
    chunked = (
        b"POST /v1/responses HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-Rollforge-Sample: 1\r\n\r\n" + chunks
    )
    async with SimulatedServer(SimulateOptions(latency=0.001)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for byte in plain[:60]:
            writer.write(bytes((byte,)))
            await writer.drain()
        writer.write(plain[60:] + chunked + plain)
        seen = []
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(parse(head).headers["content-length"])
            seen.append(Response(parse(head + await reader.readexactly(length)).json).text)
        writer.close()
    assert len(set(seen)) == 1


async def test_a_prompt_longer_than_the_context_is_an_overflow():
    async with SimulatedServer(SimulateOptions(context_tokens=50)) as server:
        raw = await ask(server, "word " * 80)
    assert raw.status == 400
    assert "maximum context length is 50 tokens" in raw.json["error"]["message"]
