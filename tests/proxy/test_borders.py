"""The proxy: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import asyncio
import json
import selectors
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from rollforge.proxy.asking import PROXY_APIS
from rollforge.proxy.attempts import read_calls
from rollforge.proxy.calls import CallOrigin, RecordedCall, call_line
from rollforge.proxy.merging import merge_calls
from rollforge.proxy.proxy_server import KEEP_ALIVE, _wait_aloud
from rollforge.proxy.same_item import item_key
from rollforge.proxy.session import ProgramSession
from tests.proxy.test_recording_proxy import bench, chat_body


def answered(number: int, *texts: str, tools: bool = False) -> RecordedCall:
    items = [{"type": "message", "role": "user", "content": text} for text in texts]
    params = {
        "input": items,
        **({"tools": [{"type": "function", "name": "sh", "parameters": {}}]} if tools else {}),
    }
    output = [{"type": "message", "role": "assistant", "content": f"answer {number}"}]
    return RecordedCall(
        number=number,
        api="chat",
        is_streamed=False,
        params=cast("Any", params),
        response=cast("Any", {"output": output}),
    )


def test_a_call_is_written_against_the_earlier_one_that_shares_most() -> None:
    def call(number: int, *texts: str) -> RecordedCall:
        items = [{"type": "message", "role": "user", "content": text} for text in texts]
        return RecordedCall(
            number=number, api="chat", is_streamed=False, params=cast("Any", {"input": items})
        )

    earlier = [call(0, "a"), call(1, "a", "b", "c"), call(2, "a", "b")]
    row = json.loads(call_line(CallOrigin("s", 4, 2), call(3, "a", "b", "c", "d"), earlier))
    assert row["input_from"] == {"call": 1, "items": 3}
    assert [item["content"] for item in row["params"]["input"]] == ["d"]
    alone = json.loads(call_line(CallOrigin("s", 4, 2), call(3, "x"), earlier))
    assert alone["input_from"] is None and len(alone["params"]["input"]) == 1


def test_a_rollout_may_make_ten_thousand_calls() -> None:
    import inspect

    assert inspect.signature(ProgramSession).parameters["max_calls"].default == 10_000


def test_an_empty_part_of_a_message_says_nothing() -> None:
    def key(*parts: object) -> object:
        return item_key(cast("Any", {"type": "message", "role": "user", "content": list(parts)}))

    text, image = {"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}
    assert key(text, {"type": "text", "text": ""}) == key(text)
    assert key(text, image) != key(text)


def test_sequences_come_in_the_order_of_their_calls_whatever_the_order_of_the_lines() -> None:
    calls = [answered(0, "a", tools=True), answered(1, "b"), answered(2, "c", tools=True)]
    made = [(one.role, one.calls) for one in merge_calls(calls)]
    assert made == [(one.role, one.calls) for one in merge_calls(calls[::-1])]
    assert made[0] == ("main", [2])


def test_only_a_conversation_that_was_asked_again_is_a_retry() -> None:
    roles = [one.role for one in merge_calls([answered(0, "a"), answered(1, "a")])]
    assert sorted(roles) == ["main", "retry"]
    assert "retry" not in [one.role for one in merge_calls([answered(0, "a"), answered(1, "b")])]


def test_items_are_the_same_by_what_they_say_and_not_by_their_ids() -> None:
    def output(text: str, call: str) -> Any:
        return item_key(cast("Any", {"type": "function_call_output", "call_id": call, "output": text}))

    assert output("seen", "c1") == output("seen", "c2") == ("output", "seen")
    assert output("seen", "c1") != output("other", "c1")


def test_errors_have_the_shape_of_the_api_that_was_spoken() -> None:
    by_name = {api.name: api.error(400, "no") for api in PROXY_APIS.values()}
    assert by_name["messages"]["type"] == "error"
    assert all("type" not in body for name, body in by_name.items() if name != "messages")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to the next timer when nothing else is to be done: minutes of waiting pass at once."""

    def __init__(self) -> None:
        selector = selectors.DefaultSelector()
        select, self._jumped = selector.select, 0.0

        def select_or_jump(timeout: float | None = None) -> Any:
            found = select(0.02 if timeout is None else min(timeout, 0.02))
            if not found and timeout:
                self._jumped += timeout
            return found

        selector.select = select_or_jump  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return super().time() + self._jumped


@pytest.mark.parametrize(("seconds", "times"), [(5, 0), (35, 3)])
def test_a_stream_that_waits_says_every_ten_seconds_that_it_is_alive(seconds: int, times: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        stream = await _wait_aloud(request, cast("Any", asyncio.ensure_future(asyncio.sleep(seconds))))
        return stream or web.Response(text="at once")

    async def read() -> bytes:
        app = web.Application()
        app.router.add_get("/", answer)
        async with TestClient(TestServer(app)) as client, client.get("/") as got:
            return await got.read()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        said = runner.run(read())
    assert said == (KEEP_ALIVE * times or b"at once")


async def test_a_prompt_is_guessed_at_a_token_for_four_bytes(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        body = {"messages": [{"role": "user", "content": "x" * 1_000}]}
        _, answer, _ = await work.post("/v1/messages/count_tokens", body)
        assert answer == {"input_tokens": len(json.dumps(body)) // 4}


async def test_five_kinds_of_strangers_are_named_and_all_are_counted(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        for number in range(7):
            status, _, _ = await work.post(f"/v1/{number}", {}, root="/nobody")
            assert status == 401
        assert (len(work.proxy.strangers), work.proxy.stranger_count) == (5, 7)
        assert work.proxy.strangers[0] == "POST /nobody/v1/0"


async def test_a_call_is_compared_with_the_sixteen_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[list[int]] = []

    def note(place: CallOrigin, call: RecordedCall, earlier: list[RecordedCall]) -> bytes:
        compared.append([one.number for one in earlier])
        return call_line(place, call, earlier)

    monkeypatch.setattr("rollforge.proxy.session.call_line", note)
    async with bench(tmp_path) as work:
        for number in range(18):
            await work.post("/v1/chat/completions", chat_body(f"question {number}"))
    assert compared[16] == list(range(16)) and compared[17] == list(range(1, 17))


def test_calls_of_an_attempt_come_in_the_order_of_asking_whatever_the_order_of_the_lines(
    tmp_path: Path,
) -> None:
    path = tmp_path / "calls.jsonl"
    lines = [call_line(CallOrigin("s", 0, 0), answered(number, f"{number}"), []) for number in (2, 0, 1)]
    path.write_bytes(b"\n".join([*lines, b""]))
    assert [call.number for call in read_calls([path], ["s"])["s"]] == [0, 1, 2]
