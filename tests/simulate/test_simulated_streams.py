"""Streams and Anthropic's Messages: what a client reads event by event is what it would read whole."""

from __future__ import annotations

from typing import Any

import pytest

from rollforge.records import from_json
from rollforge.simulate import SimulatedServer, SimulateOptions
from tests.simulate.simulated_client import Raw, ask, chat, send

QUESTION = "What is 12 + 30? Put the answer in \\boxed{}."
TOOL = {
    "name": "look",
    "description": "Looks.",
    "input_schema": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
}
CHAT_TOOL = {"type": "function", "function": {"name": "look", "parameters": TOOL["input_schema"]}}


def unchunked(raw: Raw) -> bytes:
    """The body without its chunks' sizes, as far as it came."""
    rest, parts = raw.body, []
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def events(raw: Raw) -> list[tuple[str, Any]]:
    found = []
    for block in unchunked(raw).split(b"\n\n"):
        fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
        if b"data" in fields and fields[b"data"] != b"[DONE]":
            found.append((fields.get(b"event", b"").decode(), from_json(fields[b"data"])))
    return found


async def messages(server: SimulatedServer, text: str = QUESTION, **params: Any) -> Raw:
    body = {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": text}], **params}
    return await send(server, "/v1/messages", body, headers={"X-Rollforge-Sample": "0"})


async def test_a_chat_stream_adds_up_to_the_whole_answer():
    async with SimulatedServer(SimulateOptions(reasoning=1)) as server:
        whole = (await chat(server, QUESTION)).json
        raw = await chat(server, QUESTION, stream=True, stream_options={"include_usage": True})
    chunks = [record for _, record in events(raw)]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    message = whole["choices"][0]["message"]
    assert raw.headers["content-type"] == "text/event-stream"
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == message["reasoning_content"]
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["usage"] == whole["usage"] and chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert unchunked(raw).endswith(b"data: [DONE]\n\n")


async def test_a_chat_stream_carries_tool_calls_in_pieces():
    async with SimulatedServer(SimulateOptions(reasoning=0)) as server:
        raw = await chat(server, 'call look {"word": "amber"}', stream=True, tools=[CHAT_TOOL])
    calls = [
        call
        for _, chunk in events(raw)
        for choice in chunk["choices"]
        for call in choice["delta"].get("tool_calls") or []
    ]
    assert calls[0]["function"]["name"] == "look" and calls[0]["id"]
    assert from_json("".join(call["function"]["arguments"] for call in calls)) == {"word": "amber"}


async def test_a_responses_stream_ends_with_the_whole_response():
    async with SimulatedServer(SimulateOptions(reasoning=1)) as server:
        whole = (await ask(server, QUESTION)).json
        found = events(await ask(server, QUESTION, stream=True))
    names = [name for name, _ in found]
    texts = [record["delta"] for name, record in found if name == "response.output_text.delta"]
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
    assert found[-1][1]["response"]["output"] == whole["output"]
    assert "".join(texts) == whole["output"][-1]["content"][0]["text"]
    spoken = [record for name, record in found if name.startswith("response.output_text")]
    assert spoken and all(record["logprobs"] == [] for record in spoken)
    assert [record["sequence_number"] for _, record in found] == list(range(len(found)))
    assert [record["item"] for name, record in found if name == "response.output_item.done"] == whole[
        "output"
    ]


async def test_messages_answer_whole_and_streamed():
    async with SimulatedServer(SimulateOptions(reasoning=0)) as server:
        whole = (await messages(server)).json
        found = events(await messages(server, stream=True))
    names = [name for name, _ in found]
    assert whole["type"] == "message" and whole["stop_reason"] == "end_turn"
    assert whole["usage"]["input_tokens"] > 0 and whole["usage"]["output_tokens"] > 0
    assert names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"]
    text = "".join(record["delta"].get("text", "") for name, record in found if name == "content_block_delta")
    assert text == whole["content"][0]["text"]


async def test_messages_call_tools_and_read_their_results():
    async with SimulatedServer(SimulateOptions(reasoning=0)) as server:
        prompt = 'call look {"word": "amber"}'
        first = (await messages(server, prompt, tools=[TOOL])).json
        call = first["content"][-1]
        result = {
            "type": "tool_result",
            "tool_use_id": call["id"],
            "content": [{"type": "text", "text": "7"}],
        }
        history = [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": [result]},
        ]
        second = (
            await send(
                server, "/v1/messages", {"model": "m", "max_tokens": 50, "messages": history, "tools": [TOOL]}
            )
        ).json
        found = events(await messages(server, prompt, tools=[TOOL], stream=True))
    assert first["stop_reason"] == "tool_use" and call["input"] == {"word": "amber"}
    assert "7" in second["content"][0]["text"] and second["stop_reason"] == "end_turn"
    parts = [
        record["delta"].get("partial_json", "")
        for name, record in found
        if name.endswith("_delta") and "delta" in record
    ]
    assert from_json("".join(parts)) == {"word": "amber"}


async def test_tokens_are_counted_without_an_answer_and_models_are_listed_for_both_apis():
    async with SimulatedServer() as server:
        body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}], "system": "Be brief."}
        counted = (await send(server, "/v1/messages/count_tokens", body)).json
        answered = (await messages(server, system="Be brief.")).json
        models = (await send(server, "/v1/models")).json
        one = (await send(server, "/v1/models/simulated")).json
        none = await send(server, "/v1/models/other")
        requests = server.stats.requests
    assert counted == {"input_tokens": answered["usage"]["input_tokens"]}
    assert requests == 1
    assert models["data"][0]["id"] == "simulated" and models["data"][0]["type"] == "model"
    assert models["has_more"] is False
    assert one == models["data"][0]
    assert none.status == 404 and none.json["error"]["code"] == "model_not_found"


async def test_errors_of_messages_have_anthropics_shape():
    async with SimulatedServer(SimulateOptions(api_key="k")) as server:
        refused = await messages(server)
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        lacking = await send(server, "/v1/messages", body, headers={"x-api-key": "k"})
    async with SimulatedServer(SimulateOptions(faults=("429=1",))) as server:
        limited = await messages(server)
    assert refused.status == 401 and refused.json["error"]["type"] == "authentication_error"
    assert lacking.status == 400 and "max_tokens" in lacking.json["error"]["message"]
    assert limited.status == 429 and limited.json["type"] == "error"
    assert limited.json["error"]["type"] == "rate_limit_error"


async def test_a_websocket_is_refused_at_once():
    async with SimulatedServer(SimulateOptions(latency=30)) as server:
        raw = await send(
            server, "/v1/responses", headers={"Upgrade": "websocket", "Connection": "Upgrade, close"}
        )
    assert raw.status == 426


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_a_stream_can_be_cut_half_way_cleanly_or_not(api: str):
    async def streamed(server: SimulatedServer) -> Raw:
        if api == "messages":
            return await messages(server, stream=True)
        return await (chat if api == "chat" else ask)(server, QUESTION, stream=True)

    async with SimulatedServer() as server:
        whole = await streamed(server)
    for length, is_clean in (("right", True), ("wrong", False)):
        async with SimulatedServer(SimulateOptions(faults=(f"torn=1,content_length={length}",))) as server:
            cut = await streamed(server)
        assert cut.status == 200 and 0 < len(cut.body) < len(whole.body) * 3 / 4
        assert cut.body.endswith(b"0\r\n\r\n") is is_clean
        assert b"[DONE]" not in cut.body and b"completed" not in cut.body.rsplit(b"event:")[-1]
    async with SimulatedServer(SimulateOptions(faults=("reset=1,when=during",))) as server:
        reset = await streamed(server)
    assert reset.was_reset


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_a_stream_can_end_in_an_error_event_and_a_whole_answer_in_a_500(api: str):
    async with SimulatedServer(SimulateOptions(faults=("error-event=1",))) as server:
        if api == "messages":
            raw, whole = await messages(server, stream=True), await messages(server)
        else:
            call = chat if api == "chat" else ask
            raw, whole = await call(server, QUESTION, stream=True), await call(server, QUESTION)
        faults = server.stats.faults
    name, last = events(raw)[-1]
    assert raw.status == 200 and whole.status == 500 and faults["error-event"] == 2
    assert name == {"chat": "", "responses": "response.failed", "messages": "error"}[api]
    assert "fails on demand" in str(last)
    if api == "responses":
        failed = last["response"]
        assert last["sequence_number"] == len(events(raw)) - 1 and failed["model"] == "simulated"
        assert failed["error"]["code"] == "server_error" and failed["output"] == []
        assert {"id", "created_at", "tools", "tool_choice", "parallel_tool_calls"} <= set(failed)


async def test_a_stream_drips_event_by_event_and_takes_the_time_of_its_tokens():
    async with SimulatedServer(SimulateOptions(faults=("drip=1,seconds=0.001",))) as server:
        dripped = events(await ask(server, QUESTION, stream=True))
    async with SimulatedServer(SimulateOptions(tokens_per_second=5000)) as server:
        paced = events(await ask(server, QUESTION, stream=True))
    assert dripped[-1][0] == paced[-1][0] == "response.completed"


async def test_prompts_of_later_turns_begin_with_what_was_generated():
    """As with a real chat template: token ids continue unless the turn held reasoning."""
    async with SimulatedServer(SimulateOptions(reasoning=0)) as server:
        prompt = 'call look {"word":"amber"}'
        first = (await chat(server, prompt, tools=[CHAT_TOOL], return_token_ids=True)).json
        message = first["choices"][0]["message"]
        history = [
            {"role": "user", "content": prompt},
            message,
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "7"},
        ]
        body = {"model": "m", "messages": history, "tools": [CHAT_TOOL], "return_token_ids": True}
        second = (await send(server, "/v1/chat/completions", body)).json
    so_far = [*first["prompt_token_ids"], *first["choices"][0]["token_ids"]]
    assert second["prompt_token_ids"][: len(so_far)] == so_far
