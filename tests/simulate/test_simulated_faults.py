"""Each fault of the simulated server, as a raw client sees it over real HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter

import msgspec
import pytest

from rollforge.errors import UsageError
from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.simulate.faults import KINDS, parse_fault
from rollforge.simulate.service import Service
from rollforge.simulate.wire import HttpRequest
from tests.simulate.simulated_client import answer_text, ask, chat, send

QUESTION = "What is 47 × 83 + 12? Put the final answer in \\boxed{}."


QUESTION_BODY = msgspec.json.encode({"model": "simulated", "input": QUESTION})
QUESTION_REQUEST = b"POST /v1/responses HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (
    len(QUESTION_BODY),
    QUESTION_BODY,
)


def unchunked(body: bytes) -> bytes:
    """The body that its chunks spell."""
    pieces = []
    while body:
        size, _, rest = body.partition(b"\r\n")
        pieces.append(rest[: int(size, 16)])
        body = rest[int(size, 16) + 2 :]
    return b"".join(pieces)


def faulty(*faults: str, **options) -> SimulatedServer:
    return SimulatedServer(SimulateOptions(faults=faults, **options))


@pytest.mark.parametrize("status", ["500", "502", "503", "504"])
async def test_a_status_fault_answers_with_that_status_in_the_shape_of_openai(status):
    async with faulty(f"{status}=1") as server:
        raw = await ask(server, QUESTION)
    assert raw.status == int(status)
    assert raw.json["error"]["type"] == "server_error"
    assert server.stats.faults == {status: 1}


async def test_a_rate_meets_that_share_of_requests_and_a_retry_can_succeed():
    async with faulty("500=0.3") as server:
        statuses = Counter([(await ask(server, QUESTION, 0)).status for _ in range(200)])
    assert 35 < statuses[500] < 85 and statuses[200] == 200 - statuses[500]


async def test_the_same_seed_fails_the_same_requests():
    seen = []
    for _ in range(2):
        async with faulty("500=0.3", "reset=0.2", seed=4) as server:
            seen.append([(await ask(server, QUESTION)).status for _ in range(30)])
    assert seen[0] == seen[1]


async def test_a_429_says_when_to_come_back():
    async with faulty("429=1,retry_after=7") as server:
        raw = await ask(server, QUESTION)
    assert raw.status == 429 and raw.headers["retry-after"] == "7"
    assert raw.json["error"]["code"] == "rate_limit_exceeded"


async def test_a_hang_answers_nothing():
    async with faulty("hang=1") as server:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask(server, QUESTION), 0.3)
    async with faulty("hang=1,seconds=0.05") as server:
        assert (await ask(server, QUESTION)).status is None


async def test_a_drip_sends_the_whole_answer_byte_by_byte():
    async with faulty("drip=1,seconds=0.0001") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = b'{"model":"simulated","input":"What is 2 + 2?"}'
        writer.write(
            b"POST /v1/responses HTTP/1.1\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
            % (len(body), body)
        )
        pieces = []
        while piece := await reader.read(4096):
            pieces.append(piece)
        writer.close()
    assert len(pieces) > 200
    assert msgspec.json.decode(b"".join(pieces).partition(b"\r\n\r\n")[2])["status"] == "completed"


async def test_torn_json_comes_with_a_right_or_a_wrong_length():
    for length, is_short in (("right", False), ("wrong", True)):
        async with faulty(f"torn=1,content_length={length}") as server:
            raw = await ask(server, QUESTION)
        assert raw.status == 200 and raw.is_short is is_short
        with pytest.raises(msgspec.DecodeError):
            msgspec.json.decode(raw.body)


async def test_a_wrong_content_type_is_a_page_of_html():
    for status in (200, 502):
        async with faulty(f"content-type=1,status={status}") as server:
            raw = await chat(server, QUESTION)
        assert raw.status == status
        assert raw.headers["content-type"].startswith("text/html") and b"<html>" in raw.body


async def test_a_reset_cuts_the_connection_before_or_during_the_answer():
    async with faulty("reset=1,when=before") as server:
        raw = await ask(server, QUESTION)
    assert raw.was_reset and raw.status is None
    async with faulty("reset=1,when=during") as server:
        raw = await ask(server, QUESTION)
    assert raw.was_reset and (raw.status is None or raw.is_short)


async def test_empty_and_truncated_answers_and_refusals_are_stable_for_a_sample():
    async with faulty("empty=0.5", "truncated=0.5") as server:
        first = [answer_text(await ask(server, QUESTION, sample)) for sample in range(20)]
        again = [answer_text(await ask(server, QUESTION, sample)) for sample in range(20)]
        cut = [(await ask(server, QUESTION, sample)).json["status"] for sample in range(20)]
    assert first == again
    assert 3 < first.count("") < 17
    assert "incomplete" in cut and "completed" in cut


async def test_a_refusal_stands_where_refusals_stand():
    async with faulty("refusal=1") as server:
        item = (await ask(server, QUESTION)).json["output"][0]
        message = (await chat(server, QUESTION)).json["choices"][0]["message"]
    assert item["content"][0]["type"] == "refusal" and item["content"][0]["refusal"]
    assert message["content"] is None and message["refusal"]


async def test_a_filtered_answer_names_the_filter():
    async with faulty("filtered=1") as server:
        response = (await ask(server, QUESTION)).json
        choice = (await chat(server, QUESTION)).json["choices"][0]
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert choice["finish_reason"] == "content_filter"


async def test_an_overflow_uses_the_words_of_openai_or_of_vllm():
    async with faulty("overflow=1,wording=openai") as server:
        openai = await ask(server, QUESTION)
    async with faulty("overflow=1,wording=vllm") as server:
        vllm = await ask(server, QUESTION)
    assert openai.status == vllm.status == 400
    assert openai.json["error"]["code"] == "context_length_exceeded"
    assert vllm.json["error"]["type"] == "BadRequestError"
    assert all("maximum context length" in raw.json["error"]["message"] for raw in (openai, vllm))


async def test_a_wrong_model_name_is_claimed():
    async with faulty("wrong-model=1,name=impostor") as server:
        assert (await ask(server, QUESTION)).json["model"] == "impostor"


async def test_an_outage_takes_everything_down_but_the_stats():
    async with faulty("down=1") as server:
        raw = await ask(server, QUESTION)
        assert raw.was_reset and raw.status is None
    async with faulty("down=1,status=503") as server:
        assert (await ask(server, QUESTION)).status == 503
        assert (await send(server, "/health")).status == 503
        assert (await send(server, "/stats")).json["faults"] == {"down": 2}


class Clock:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def statuses_at(fault: str, times: list[float]) -> list[int | str]:
    clock = Clock()
    service = Service(SimulateOptions(faults=(fault,)), clock)
    seen: list[int | str] = []
    for moment in times:
        clock.now = 100.0 + moment
        outcome = service.outcome(HttpRequest("POST", "/v1/responses", {}, b'{"model":"m","input":"hi"}'))
        seen.append(outcome.manner.kind if outcome.manner else outcome.reply.status)
    return seen


def test_a_burst_comes_every_so_often_and_ends():
    seen = statuses_at(
        "429=burst,every=10,length=2,retry_after=1", [0, 7.9, 8.1, 9.9, 10.1, 17.9, 18.5, 20.5]
    )
    assert seen == [200, 200, 429, 429, 200, 200, 429, 200]


def test_an_interval_comes_once():
    seen = statuses_at("down=interval,after=5,length=10", [0, 4.9, 5.1, 14.9, 15.1, 40])
    assert seen == [200, 200, "down", "down", 200, 200]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("hnag=0.1", "did you mean 'hang'?"),
        ("500=2", "between 0 and 1"),
        ("500=often", "must be a number"),
        ("429=burst,every=10", "needs length"),
        ("429=0.1,retry=3", "did you mean 'retry_after'"),
        ("torn=1,content_length=odd", "right or wrong"),
    ],
)
def test_a_fault_that_cannot_be_understood_says_why(spec, words):
    with pytest.raises(UsageError) as caught:
        parse_fault(spec)
    assert words in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_alike(kind):
    assert parse_fault(f"{kind}=0.25").rate == 0.25
    assert parse_fault(f"{kind}=interval,length=3").is_in_force(2.9)


async def test_an_endless_body_goes_on_until_the_client_leaves_and_holds_no_memory():
    async with faulty("endless=1") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(QUESTION_REQUEST)
        received = 0
        while received < 20_000_000:
            received += len(await reader.read(1 << 20))
        writer.close()
        await writer.wait_closed()
        while not server.stats.abandoned:
            await asyncio.sleep(0)


async def test_an_endless_error_has_its_status_and_gives_up_at_its_size():
    async with faulty("endless=1,status=500,mb=2") as server:
        raw = await ask(server, QUESTION)
    assert (raw.status == 500 and raw.was_reset) or 2_000_000 < len(raw.body) < 3_000_000


async def test_a_gzip_bomb_is_a_valid_answer_a_thousand_times_its_size():
    async with faulty("gzip-bomb=1,mb=8") as server:
        raw = await chat(server, QUESTION)
    assert raw.headers["content-encoding"] == "gzip" and len(raw.body) < 60_000
    answer = msgspec.json.decode(gzip.decompress(unchunked(raw.body)))
    assert answer["choices"] and len(answer["padding"]) == 8 << 20


async def test_a_large_body_is_a_valid_answer_of_that_size():
    async with faulty("large-body=1,mb=3") as server:
        raw = await ask(server, QUESTION)
    assert len(msgspec.json.decode(unchunked(raw.body))["padding"]) == 3 << 20


async def test_a_redirect_names_another_host_and_keeps_the_path():
    async with faulty("redirect=1,to=http://127.0.0.2:9/v1") as server:
        raw = await ask(server, QUESTION)
    assert (raw.status, raw.headers["location"]) == (307, "http://127.0.0.2:9/v1/responses")


@pytest.mark.parametrize("number", ["digits", "negative", "huge", "fraction", "text"])
async def test_absurd_numbers_stand_where_token_counts_are_expected(number):
    async with faulty(f"absurd-numbers=1,number={number}") as server:
        raw, plain = await chat(server, QUESTION), await ask(server, QUESTION)
    for usage in (json.loads(raw.body)["usage"], json.loads(plain.body)["usage"]):
        count = usage["total_tokens"]
        assert (isinstance(count, int) and (count < 0 or len(str(count)) == 400)) or count in (
            1e308,
            12.5,
            "many",
        )


async def test_bodies_that_most_readers_refuse():
    for fault, error in (("absurd-numbers=1,number=nan", msgspec.DecodeError), ("bad-utf8=1", Exception)):
        async with faulty(fault) as server:
            raw = await ask(server, QUESTION)
        with pytest.raises(error):
            msgspec.json.decode(raw.body, type=dict[str, object])
    async with faulty("nested=1,depth=5000") as server:
        assert b"[" * 5000 in (await ask(server, QUESTION)).body
    async with faulty("headers=1,kb=64") as server:
        assert len((await ask(server, QUESTION)).headers["x-padding"]) == 65536


async def test_an_error_may_repeat_the_key_it_was_sent():
    async with faulty("echo-headers=1") as server:
        raw = await send(
            server, "/v1/responses", {"model": "m", "input": "hi"}, headers={"Authorization": "Bearer s3cret"}
        )
    assert raw.status == 401 and "s3cret" in raw.json["error"]["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Content-Type": "text/plain"},
        {"Content-Type": "multipart/form-data; boundary=x"},
        {"Content-Type": "application/x-www-form-urlencoded", "User-Agent": "Mozilla/5.0 (X11)"},
        {"Content-Type": "application/json, text/plain"},
        {"Host": "[::1]evil.example"},
        {"Host": "localhost:80.evil.example"},
        {"Host": "evil@localhost"},
    ],
)
async def test_a_request_that_a_web_page_sent_is_refused(headers):
    async with SimulatedServer() as server:
        raw = await send(server, "/v1/responses", {"model": "m", "input": "hi"}, headers=headers)
        fine = await send(
            server, "/v1/responses", {"model": "m", "input": "hi"}, headers={"Origin": server.base_url[:-3]}
        )
    assert raw.status == 403 and fine.status == 200
    assert server.stats.requests == 1


async def test_a_reply_that_cannot_be_made_closes_the_connection(monkeypatch, caplog):
    async with faulty("endless=1,status=200") as server:
        monkeypatch.setattr("rollforge.simulate.hostile_bodies.endless", lambda megabytes: 1 / 0)
        raw = await asyncio.wait_for(ask(server, QUESTION), 10)
    assert raw.body == b"" and "ZeroDivisionError" in caplog.text
