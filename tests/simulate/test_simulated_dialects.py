"""Habits of real servers that the simulated one imitates, as a raw client and as our own verifiers see them."""

from __future__ import annotations

import asyncio

import pytest

from rollforge.errors import UsageError
from rollforge.records import Response, Task
from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.verifiers.equivalence_judge import EquivalenceOptions, EquivalenceVerifier
from rollforge.verifiers.judge import RubricJudge, RubricJudgeOptions
from tests.simulate.simulated_client import answer_text, ask, chat, send

QUESTION = "What is 47 × 83 + 12? Put the final answer in \\boxed{}."


def speaking(dialect: str, **options) -> SimulatedServer:
    return SimulatedServer(SimulateOptions(dialect=dialect, reasoning=0.0, **options))


@pytest.mark.parametrize(
    ("dialect", "status"),
    [
        ("openai", "incomplete"),
        ("vllm", "incomplete"),
        ("llama.cpp", "completed"),
        ("transformers-serve", "completed"),
    ],
)
async def test_which_servers_hide_that_an_answer_was_cut(dialect, status):
    async with speaking(dialect) as server:
        cut = await ask(server, QUESTION, max_output_tokens=5, stream=False)
        body = await chat(server, QUESTION, max_tokens=5)
    assert cut.json["status"] == status and cut.json["usage"]["output_tokens"] == 5
    assert body.json["choices"][0]["finish_reason"] == "length"


async def test_transformers_serve_streams_unless_told_not_to_and_refuses_unknown_fields():
    async with speaking("transformers-serve") as server:
        streamed = await ask(server, QUESTION)
        whole = await ask(server, QUESTION, stream=False)
        unknown = await chat(server, QUESTION, top_k=5, return_token_ids=True)
        known = await chat(server, QUESTION)
    assert streamed.headers["content-type"] == "text/event-stream"
    assert b"event: response.created" in streamed.body and b"event: response.completed" in streamed.body
    assert whole.json["object"] == "response"
    assert unknown.status == 422 and "'return_token_ids', 'top_k'" in unknown.json["detail"]
    assert known.status == 200 and server.stats.requests == 4


async def test_transformers_serve_gives_equal_samples_and_no_logprobs():
    async with speaking("transformers-serve") as server:
        texts = {answer_text(await chat(server, QUESTION, sample, temperature=1.0)) for sample in range(4)}
        raw = await send(
            server, "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        )
    assert len(texts) == 1 and raw.json["choices"][0]["logprobs"] is None


async def test_llama_cpp_sends_twenty_alternatives_with_ids_its_file_name_and_its_defaults():
    async with speaking("llama.cpp") as server:
        raw = await chat(server, QUESTION, logprobs=True, top_logprobs=1)
        props = await send(server, "/props")
    entry = raw.json["choices"][0]["logprobs"]["content"][0]
    assert len(entry["top_logprobs"]) == 20 and isinstance(entry["id"], int)
    assert raw.json["model"].endswith(".gguf")
    assert (
        props.json["default_generation_settings"]["params"]["top_k"] == 40 and props.json["total_slots"] == 4
    )


async def test_llama_cpp_never_shows_the_tools_to_the_model():
    tools = [{"type": "function", "function": {"name": "calculator", "parameters": {"type": "object"}}}]
    async with speaking("llama.cpp") as server:
        with_tools = await chat(server, QUESTION, tools=tools, tool_choice="required")
        without = await chat(server, QUESTION)
    assert not with_tools.json["choices"][0]["message"].get("tool_calls")
    assert with_tools.json["usage"]["prompt_tokens"] == without.json["usage"]["prompt_tokens"]


async def test_llama_cpp_serves_as_many_connections_as_it_has_threads():
    async with speaking("llama.cpp") as server:
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        waiting = asyncio.create_task(chat(server, QUESTION))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        idle[0][1].close()
        assert (await asyncio.wait_for(waiting, 10)).status == 200
        for _, writer in idle[1:]:
            writer.close()


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        ("llama.cpp", "exceeds the available context size (64 tokens)"),
        ("vllm", "maximum context length is 64 tokens"),
    ],
)
async def test_a_prompt_that_does_not_fit_is_refused_in_the_servers_own_words(dialect, words):
    async with speaking(dialect, context_tokens=64) as server:
        raw = await chat(server, "word " * 100)
    assert raw.status == 400 and words in raw.json["error"]["message"]


def test_an_unknown_dialect_is_refused():
    with pytest.raises(UsageError, match="did you mean 'vllm'"):
        SimulatedServer(SimulateOptions(dialect="vlm"))


@pytest.mark.parametrize(("answer", "reward"), [("It is \\boxed{3,913}.", 1.0), ("It is 3914.", 0.0)])
async def test_the_simulated_model_judges(answer, reward):
    task = Task({"responses_create_params": {"input": QUESTION}, "expected_answer": "3913"}, 0)
    response = Response(
        {
            "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}
            ]
        }
    )
    async with SimulatedServer() as server:
        where = {"model": "simulated", "base_url": server.base_url}
        same = EquivalenceVerifier(EquivalenceOptions(**where))
        graded = RubricJudge(RubricJudgeOptions(rubric="right or wrong", **where))
        verdicts = [await same.verify(task, response), await graded.verify(task, response)]
        await same.close()
        await graded.close()
    assert [verdict["reward"] for verdict in verdicts] == [reward, reward]


async def test_it_reads_the_labels_of_a_prompt_of_the_users_own():
    prompt = "Gold answer: {}\nCandidate answer: 42\nReply [[A=B]] if equal, else [[A!=B]]."
    async with SimulatedServer() as server:
        assert "[[A=B]]" in answer_text(await chat(server, prompt.format("42")))
        assert "[[A!=B]]" in answer_text(await chat(server, prompt.format("43")))
