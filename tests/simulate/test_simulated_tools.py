"""Tool tasks played over both APIs: calls go out, outputs come back, the rollout ends with an answer."""

from __future__ import annotations

from typing import Any

from rollforge.records import PARAMS_KEY, from_json, to_json
from rollforge.simulate import SimulatedServer, SimulateOptions, example_tasks
from rollforge.simulate.needles import run_tool
from tests.simulate.simulated_client import ask, send

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
    },
    "strict": True,
}


async def play_responses(
    server: SimulatedServer, task: dict[str, Any], sample: int, *, named: bool = True
) -> list[Any]:
    """The output items of a whole rollout over the Responses API."""
    items, done = list(task[PARAMS_KEY]["input"]), []
    for turn in range(20):
        headers = {"X-Rollforge-Sample": str(sample)} if named or turn == 0 else {}
        body = {"model": "simulated", **task[PARAMS_KEY], "input": items}
        output = (await send(server, "/v1/responses", body, headers=headers)).json["output"]
        calls = [item for item in output if item["type"] == "function_call"]
        answers = [
            {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": to_json(run_tool(call["name"], from_json(call["arguments"]))).decode(),
            }
            for call in calls
        ]
        items, done = [*items, *output, *answers], [*done, *output, *answers]
        if not calls:
            return done
    raise AssertionError("the model never came to an end")


async def play_chat(server: SimulatedServer, task: dict[str, Any], sample: int) -> list[Any]:
    """The messages of a whole rollout over Chat Completions."""
    params = task[PARAMS_KEY]
    messages = [{"role": item["role"], "content": item["content"]} for item in params["input"]]
    tools = [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in params["tools"]
    ]
    for _ in range(20):
        body = {"model": "simulated", "messages": messages, "tools": tools}
        raw = await send(server, "/v1/chat/completions", body, headers={"X-Rollforge-Sample": str(sample)})
        choice = raw.json["choices"][0]
        messages.append(choice["message"])
        calls = choice["message"].get("tool_calls") or []
        assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
        for call in calls:
            output = run_tool(call["function"]["name"], from_json(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": to_json(output).decode()})
        if not calls:
            return messages
    raise AssertionError("the model never came to an end")


def submitted(items: list[Any]) -> list[int]:
    calls = [item for item in items if item.get("name") == "extract_synonym_values"]
    return from_json(calls[-1]["arguments"])["synonym_values"] if calls else []


async def test_tool_tasks_are_sometimes_solved_and_sometimes_not():
    async with SimulatedServer() as server:
        results = []
        for task in example_tasks(30, kind="tools"):
            items = await play_responses(server, task, 0)
            is_right = submitted(items) == task["expected_synonym_values"]
            assert (
                is_right is (f"\\boxed{{{task['expected_answer']}}}" in items[-1]["content"][0]["text"])
                or not is_right
            )
            results.append(is_right)
    assert 5 < sum(results) < 28


async def test_both_apis_play_the_same_rollout():
    async with SimulatedServer(SimulateOptions(reasoning=0)) as server:
        for task in example_tasks(8, kind="tools"):
            by_responses = await play_responses(server, task, 3)
            by_chat = await play_chat(server, task, 3)
            assert by_responses[-1]["content"][0]["text"] == by_chat[-1]["content"]


async def test_a_rollout_goes_on_as_the_sample_it_began_as_even_when_nobody_says_which():
    async with SimulatedServer() as server:
        for task in example_tasks(6, kind="tools"):
            assert await play_responses(server, task, 7, named=False) == await play_responses(server, task, 7)


async def test_one_call_at_a_time_where_parallel_calls_are_not_wanted():
    async with SimulatedServer() as server:
        for task in example_tasks(6, kind="tools"):
            body = {"model": "simulated", **task[PARAMS_KEY], "parallel_tool_calls": False}
            output = (await send(server, "/v1/responses", body)).json["output"]
            assert len([item for item in output if item["type"] == "function_call"]) == 1


async def test_any_tool_is_called_when_the_prompt_asks_for_it_with_arguments_that_fit():
    async with SimulatedServer() as server:
        raw = await ask(server, "Use get_weather for the next 3 days in 'Oslo'.", tools=[WEATHER])
        call = raw.json["output"][-1]
        arguments = from_json(call["arguments"])
        assert call["name"] == "get_weather"
        assert arguments["city"] == "Oslo" and arguments["days"] == 3
        assert arguments["unit"] in ("celsius", "fahrenheit")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": '{"sky":"clear"}'}
        question = {"role": "user", "content": "Use get_weather for the next 3 days in 'Oslo'."}
        final = (await ask(server, [question, call, output], tools=[WEATHER])).json
    assert "clear" in final["output"][-1]["content"][0]["text"]
    assert final["usage"]["input_tokens_details"]["cached_tokens"] > 0


async def test_tools_are_left_alone_when_not_asked_for_or_forbidden():
    async with SimulatedServer() as server:
        quiet = (await ask(server, "What is 2 + 2?", tools=[WEATHER])).json["output"]
        forbidden = (await ask(server, "Use get_weather.", tools=[WEATHER], tool_choice="none")).json[
            "output"
        ]
        required = (await ask(server, "Hello.", tools=[WEATHER], tool_choice="required")).json["output"]
    assert quiet[-1]["type"] == forbidden[-1]["type"] == "message"
    assert required[-1]["type"] == "function_call"


async def test_the_server_also_offers_the_tools_of_its_tasks():
    async with SimulatedServer() as server:
        value = (await send(server, "/get_synonym_value", {"synonym": "Warm"})).json
        success = (await send(server, "/extract_synonym_values", {"synonym_values": [1]})).json
    assert value == {"synonym_value": sum(map(ord, "Warm"))} and success == {"success": True}
