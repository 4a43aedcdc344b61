"""The proxy: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import asyncio
import json
import selectors
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from rollforge.endpoint import Model
from rollforge.endpoint.client import Outage
from rollforge.errors import Failure
from rollforge.proxy.asking import PROXY_APIS, _hidden_part, _params_from_responses, allowed_params
from rollforge.proxy.attempts import read_calls
from rollforge.proxy.calls import CallOrigin, RecordedCall, call_line, whole_inputs
from rollforge.proxy.merging import added_items, merge_calls
from rollforge.proxy.proxy_server import KEEP_ALIVE, _wait_aloud
from rollforge.proxy.same_item import item_key
from rollforge.proxy.session import ProgramSession, SessionClosed
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
    tied = json.loads(call_line(CallOrigin("s", 4, 2), call(3, "a", "b", "x"), earlier))
    assert tied["input_from"] == {"call": 1, "items": 2}, "the first of those that share as much"
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


@pytest.mark.parametrize(("status", "kind"), [(499, "invalid_request_error"), (500, "server_error")])
def test_an_error_from_500_on_is_the_servers(status: int, kind: str) -> None:
    assert PROXY_APIS["chat/completions"].error(status, "no")["error"]["type"] == kind


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (Failure("model", "rate-limited", "no", status=503), 429, None), (Failure("model", "transient", "no", status=503), 503, None),
        (Failure("model", "transient", "no"), 502, None), (Failure("model", "context-overflow", "no"), 400, "context_length_exceeded"),
    ],
)  # fmt: skip
def test_a_failure_has_the_status_of_its_kind_else_its_own(
    failure: Failure, status: int, code: str | None
) -> None:
    got, body = PROXY_APIS["responses"].failure(failure)
    assert (got, body["error"]["code"]) == (status, code)


def test_an_input_is_a_text_or_a_list_of_items() -> None:
    assert _params_from_responses(cast("Any", {"input": "a"}))["input"][0]["content"] == "a"
    assert _params_from_responses(cast("Any", {"input": [{}]}))["input"] == [{}]
    for wrong in (None, {}, ["a"], [{}, "a"]):
        with pytest.raises(ValueError, match="input must be"):
            _params_from_responses(cast("Any", {"input": wrong}))


def test_params_that_a_model_knows_are_sent_and_those_of_the_run_win() -> None:
    asked: Any = {
        "input": [], "temperature": 0.5, "top_p": None, "store": True, "reasoning": {"effort": None},
        "tools": [{"type": "function", "name": "sh"}, {"name": "ls"}, {"type": "web_search"}, {"type": "mcp", "name": "m"}],
    }  # fmt: skip
    sent, left_out = allowed_params(asked, cast("Any", {"temperature": 1.0, "model": "a"}))
    assert sent == {"input": [], "temperature": 1.0, "tools": asked["tools"][:2]} and left_out == [
        "web_search",
        "m",
    ]
    assert allowed_params(cast("Any", {"reasoning": {"effort": "low"}}), cast("Any", {}))[0] == {
        "reasoning": {"effort": "low"}
    }


def test_logprobs_are_hidden_where_a_part_has_some() -> None:
    parts = [{"text": "a", "logprobs": [1]}, {"text": "a", "logprobs": []}, {"text": "a"}, "a"]
    assert [_hidden_part(cast("Any", part)) for part in parts] == [
        {"text": "a", "logprobs": []}, {"text": "a", "logprobs": []}, {"text": "a"}, "a"]  # fmt: skip


def test_token_ids_are_those_of_the_last_item_that_has_both() -> None:
    call = answered(0, "a")
    both: Any = {"prompt_token_ids": [1], "generation_token_ids": [2]}
    for items, ids in (
        ([both, {}], ([1], [2])), ([{"prompt_token_ids": [1]}], None), ([{"generation_token_ids": [1]}], None), ([], None),
    ):  # fmt: skip
        call.response = cast("Any", {"output": items})
        assert call.tokens() == ids
    call.response = None
    assert call.tokens() is None


def test_inputs_are_restored_only_where_they_refer_to_an_earlier_call() -> None:
    rows: Any = [
        {"call": 0, "params": {"input": [{"a": 1}, {"b": 2}]}, "input_from": None},
        {"call": 1, "params": {"input": [{"c": 3}]}, "input_from": {"call": 0, "items": 1}},
        {"call": 2, "params": {"input": "text"}, "input_from": {"call": 0, "items": 1}}, {"call": 3},
    ]  # fmt: skip
    made = [row["params"].get("input") for row in whole_inputs(rows)]
    assert made == [[{"a": 1}, {"b": 2}], [{"a": 1}, {"c": 3}], "text", None]


def test_a_prompt_goes_on_only_if_it_is_longer_and_holds_the_answer() -> None:
    def call(texts: str, said: str = "") -> RecordedCall:
        made = answered(0, *texts)
        output = [{"type": "message", "role": "assistant", "content": text} for text in said]
        made.response = cast("Any", {"output": output})
        items = made.params["input"]
        for item in items:
            if item["content"].isupper():
                item["role"] = "assistant"
        return made

    def added(earlier: RecordedCall, later: str) -> list[Any] | None:
        items = added_items(earlier, call(later))
        return None if items is None else [item["content"] for item in items]

    assert (
        added(call("a"), "a") is None and added(call("a"), "ab") == ["b"] and added(call("a"), "cb") is None
    )
    assert added(call("a", "X"), "aXb") == ["b"] and added(call("a", "X"), "ab") is None
    assert added(call("a", "XY"), "aX") is None and added(call("a", "XY"), "aXYbc") == ["b", "c"]


async def test_the_last_ten_thousand_rollouts_that_ended_are_known(tmp_path: Path) -> None:
    async with bench(tmp_path) as work:
        work.proxy._ended = dict.fromkeys(str(number) for number in range(9_999))
        await work.proxy.close_session(work.session)
        assert len(work.proxy._ended) == 10_000
        status, _, _ = await work.post("/v1/responses", {}, root="/r/0")
        assert status == 410 and work.proxy.late_count == 1
        work.proxy.add(work.session)
        work.session.secret = "another"
        work.proxy.add(work.session)
        await work.proxy.close_session(work.session)
        assert (await work.post("/v1/responses", {}, root="/r/0"))[0] == 401
        assert (await work.post("/v1/responses", {}, root="/r/1"))[0] == 410


class Waiting:
    """A model that answers when it is let go, or fails."""

    def __init__(self, failure: Failure | None = None) -> None:
        self.go, self.failure = asyncio.Event(), failure

    async def respond(self, params: object, sample: int) -> object:
        await self.go.wait()
        if self.failure is not None:
            raise self.failure
        return SimpleNamespace(response={"output": []}, endpoint="", requests=1, api="chat", wasted=None)

    def release_large(self) -> None:
        """Hold nothing."""


class Journal:
    """Keeps nothing, at once."""

    def append(self, line: bytes) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


def session_with(model: Waiting) -> ProgramSession:
    return ProgramSession(
        model=cast("Model", model), journal=Journal(), imposed=cast("Any", {}), task=0, sample=0
    )


async def test_calls_in_flight_end_with_their_rollout() -> None:
    model = Waiting()
    session = session_with(model)
    assert not session.has_asked and session.failure is None
    asked = asyncio.ensure_future(session.ask(PROXY_APIS["chat/completions"], cast("Any", chat_body()), "a"))
    await asyncio.sleep(0)
    assert session.has_asked
    await session.close()
    model.go.set()
    with pytest.raises(asyncio.CancelledError):
        await asked
    with pytest.raises(SessionClosed):
        await session.ask(PROXY_APIS["chat/completions"], cast("Any", chat_body()), "a")
    assert (session.calls, session.late) == ([], 1)


@pytest.mark.parametrize(
    ("failure", "is_hopeless"),
    [
        (Failure("model", "auth", "no"), True),
        (Outage("gone"), True),
        (Failure("model", "timeout", "no"), False),
    ],
)
async def test_a_rollout_ends_once_no_further_call_can_be_answered(
    failure: Failure, is_hopeless: bool
) -> None:
    model = Waiting(failure)
    model.go.set()
    session = session_with(model)
    for identity in ("a", "b", "a"):  # what failed is asked again
        call = await session.ask(PROXY_APIS["chat/completions"], cast("Any", chat_body()), identity)
        assert call.failure is failure and session.failure is failure
    assert len(session.calls) == 3 and session.fatal.done() is is_hopeless
    await session.close()
