"""Merging calls into sequences: random trees, re-serialised arguments, retries, sub-agents, compaction."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge.conversations.apis.messages_api import message_from_response, params_from_messages
from rollforge.proxy import RecordedCall, Sequence, merge_calls
from rollforge.proxy.calls import CallOrigin, call_line, whole_inputs
from rollforge.proxy.same_item import item_key
from rollforge.records import from_json

TOOLS = [{"type": "function", "name": "sh", "parameters": {}}]
SEEDS = st.integers(0, 2**32)


def said(role: str, text: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def called(number: int, draw: random.Random | None = None) -> list[dict[str, Any]]:
    """What a model generates in one turn: words, and a call with arguments in some spelling."""
    arguments = {"cmd": f"step {number}", "n": number}
    text = json.dumps(arguments)
    if draw is not None:
        pairs = list(arguments.items())
        draw.shuffle(pairs)
        text = json.dumps(dict(pairs), indent=draw.choice([None, 1]))
    return [
        said("assistant", [{"type": "output_text", "text": f"turn {number}"}]),
        {"type": "function_call", "call_id": f"c{number}", "name": "sh", "arguments": text},
    ]


def rewritten(items: list[dict[str, Any]], draw: random.Random) -> list[dict[str, Any]]:
    """The model's items as an agent sends them back: other spelling, other ids, text instead of parts, null for nothing."""
    found = []
    for item in items:
        if item["type"] == "function_call":
            arguments = list(json.loads(item["arguments"]).items())
            draw.shuffle(arguments)
            text = json.dumps(dict(arguments), indent=draw.choice([None, 2]))
            found.append({**item, "arguments": text, "call_id": f"x{draw.random()}"})
        elif item["type"] == "message" and item["role"] == "assistant":
            content = item["content"]
            found.append(said("assistant", content[0]["text"] if isinstance(content, list) else content))
            if draw.random() < 0.3:
                found.append(said("assistant", draw.choice([None, ""])))
        else:
            found.append(item)
    if draw.random() < 0.3:
        found.insert(0, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]})
    return found


def call(
    number: int, prompt: list[dict[str, Any]], output: list[dict[str, Any]], *, tools: bool = True
) -> RecordedCall:
    params: dict[str, Any] = {"input": prompt, **({"tools": TOOLS} if tools else {})}
    response = {"id": f"r{number}", "output": output, "usage": {"input_tokens": 10, "output_tokens": 3}}
    return RecordedCall(number=number, api="chat", is_streamed=False, params=params, response=response)


def played(
    start: int, turns: int, opening: list[dict[str, Any]], draw: random.Random, *, tools: bool = True
) -> list[RecordedCall]:
    """One agent at work: every prompt repeats what came before, in the agent's own spelling."""
    calls, prompt = [], list(opening)
    for number in range(start, start + turns):
        output = called(number, draw)
        calls.append(call(number, list(prompt), output, tools=tools))
        answered = {"type": "function_call_output", "call_id": "y", "output": f"result {number}"}
        prompt += [*rewritten(output, draw), answered]
    return calls


def roles(sequences: list[Sequence]) -> list[tuple[str, list[int]]]:
    return [(sequence.role, sequence.calls) for sequence in sequences]


def opening(name: str) -> list[dict[str, Any]]:
    return [said("system", "You are an agent."), said("user", f"Do {name}.")]


@given(SEEDS, st.integers(1, 12))
def test_a_conversation_in_any_spelling_is_one_sequence(seed: int, turns: int) -> None:
    calls = played(0, turns, opening("it"), random.Random(seed))
    (main,) = merge_calls(random.Random(seed).sample(calls, len(calls)))
    assert main.role == "main" and main.calls == list(range(turns))
    generated = [item for one in calls for item in one.output]
    assert [item for item in main.output if item in generated] == generated
    outputs = [item["output"] for item in main.output if item["type"] == "function_call_output"]
    assert outputs == [f"result {number}" for number in range(turns - 1)]
    assert main.prompt["input"] == opening("it") and main.output_tokens == 3 * turns


@given(SEEDS, st.lists(st.integers(0, 30), min_size=1, max_size=25))
@settings(max_examples=60)
def test_in_a_random_tree_every_call_is_in_one_sequence_and_follows_its_parent(
    seed: int, parents: list[int]
) -> None:
    draw = random.Random(seed)
    calls = [call(0, opening("it"), called(0, draw))]
    parent_of: dict[int, int] = {}
    for number, wish in enumerate(parents, start=1):
        parent = calls[wish % number]
        parent_of[number] = parent.number
        added = {"type": "function_call_output", "call_id": "y", "output": f"result for {number}"}
        prompt = [*rewritten(parent.items, draw), *rewritten(parent.output, draw), added]
        prompt = [item for item in prompt if item["type"] != "reasoning"]
        calls.append(call(number, prompt, called(number, draw)))
    sequences = merge_calls(calls)
    numbers = [number for sequence in sequences for number in sequence.calls]
    assert sorted(numbers) == list(range(len(calls)))
    leaves = set(range(len(calls))) - set(parent_of.values())
    assert {sequence.calls[-1] for sequence in sequences} == leaves
    for sequence in sequences:
        assert all(parent_of[b] == a for a, b in zip(sequence.calls, sequence.calls[1:], strict=False))
    assert sequences[0].role == "main" and sequences[0].calls[-1] == max(leaves)
    assert all(sequence.role == "branch" for sequence in sequences[1:])


@given(SEEDS, st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
def test_titles_are_auxiliary_and_sub_agents_are_sub(seed: int, turns: int, below: int, titles: int) -> None:
    draw = random.Random(seed)
    title = [
        call(number, [said("user", f"Title {number}?")], [said("assistant", "A title")], tools=False)
        for number in range(titles)
    ]
    sub_opening = [said("system", "You are a helper."), said("user", "Search.")]
    sub = played(titles, below, sub_opening, draw)
    main = played(titles + below, turns, opening("it"), draw)
    found = merge_calls([*title, *sub, *main])
    assert roles(found) == [
        ("main", [one.number for one in main]),
        *(("auxiliary", [one.number]) for one in title),
        ("sub", [one.number for one in sub]),
    ]


@given(SEEDS, st.integers(1, 5), st.integers(1, 5))
def test_a_sub_agent_with_the_same_system_prompt_is_no_branch(seed: int, below: int, turns: int) -> None:
    draw = random.Random(seed)
    sub, main = played(0, below, opening("this"), draw), played(below, turns, opening("that"), draw)
    assert roles(merge_calls([*sub, *main])) == [
        ("main", [one.number for one in main]),
        ("sub", [one.number for one in sub]),
    ]


@given(SEEDS, st.integers(1, 5))
def test_a_title_that_is_asked_for_last_is_not_the_main_sequence(seed: int, turns: int) -> None:
    main = played(0, turns, opening("it"), random.Random(seed))
    title = call(turns, [said("user", "Title?")], [said("assistant", "A title")], tools=False)
    assert roles(merge_calls([*main, title])) == [("main", list(range(turns))), ("auxiliary", [turns])]


@given(SEEDS, st.integers(1, 6))
def test_an_answer_that_was_asked_for_again_is_a_retry(seed: int, turns: int) -> None:
    draw = random.Random(seed)
    calls = played(0, turns, opening("it"), draw)
    dropped = calls[-1]
    again = call(turns, dropped.params["input"], called(99, draw))
    assert roles(merge_calls([*calls, again])) == [
        ("main", [*range(turns - 1), turns]),
        ("retry", [turns - 1]),
    ]


def test_a_title_that_was_asked_for_twice_is_still_a_title() -> None:
    main = played(0, 2, opening("it"), random.Random(0))
    asks = [said("user", "Name this.")]
    titles = [call(number, asks, [said("assistant", f"title {number}")], tools=False) for number in (2, 3)]
    assert roles(merge_calls([*main, *titles])) == [("main", [0, 1]), ("retry", [2]), ("auxiliary", [3])]


@pytest.mark.parametrize("arguments", ['{"cmd": "ls', "[1]", "ls -l", '"ls"'])
def test_arguments_that_are_no_object_are_the_same_when_an_agent_must_make_them_one(arguments: str) -> None:
    """Anthropic's API has no place for them but an object: agents repeat what they were given."""
    made = {"type": "function_call", "call_id": "c", "name": "sh", "arguments": arguments}
    sent = message_from_response({"output": [made]}, "m")
    body = {
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": sent["content"]}]
    }
    again = params_from_messages(body)["input"]
    result = {"type": "function_call_output", "call_id": "c", "output": "no"}
    calls = [call(0, again[:1], [made]), call(1, [*again, result], [said("assistant", "done")])]
    assert roles(merge_calls(calls)) == [("main", [0, 1])]


@given(SEEDS, st.integers(1, 5), st.integers(1, 5))
def test_after_compaction_the_later_conversation_is_main(seed: int, before: int, after: int) -> None:
    draw = random.Random(seed)
    first = played(0, before, opening("it"), draw)
    asks = [*opening("it"), said("user", "Summarise what happened.")]
    summary = call(before, asks, [said("assistant", [{"type": "output_text", "text": "sum"}])], tools=False)
    shorter = [said("system", "You are an agent."), said("user", "Summary: sum. Go on.")]
    second = played(before + 1, after, shorter, draw)
    found = merge_calls([*first, summary, *second])
    assert found[0].role == "main" and found[0].calls == [one.number for one in second]
    assert {(one.role, tuple(one.calls)) for one in found[1:]} == {
        ("branch", tuple(range(before))),
        ("branch", (before,)),
    }


def test_outputs_may_stand_between_the_calls_of_one_turn() -> None:
    two = [
        {"type": "function_call", "call_id": "a", "name": "sh", "arguments": '{"x":1}'},
        {"type": "function_call", "call_id": "b", "name": "sh", "arguments": '{"x":2}'},
    ]
    one, other = ({"type": "function_call_output", "call_id": key, "output": key} for key in "ab")
    first = call(0, opening("it"), two)
    second = call(1, [*opening("it"), two[0], one, two[1], other], [said("assistant", "done")])
    (main,) = merge_calls([first, second])
    assert [item.get("output") for item in main.output] == [None, None, "a", "b", None]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ({"arguments": '{"a": 1, "b": 2}'}, {"arguments": '{"b":2,"a":1}'}, True),
        ({"arguments": "{}"}, {"arguments": None}, True),
        ({"arguments": '{"a": 1}', "call_id": "x"}, {"arguments": '{"a":1}', "call_id": "y"}, True),
        ({"arguments": '{"a": 1}'}, {"arguments": '{"a": 1.5}'}, False),
        ({"arguments": "{broken"}, {"arguments": "{ broken"}, False),
    ],
)
def test_calls_are_the_same_by_their_arguments_as_json(
    one: dict[str, Any], other: dict[str, Any], is_same: bool
) -> None:
    item = {"type": "function_call", "name": "sh"}
    assert (item_key({**item, **one}) == item_key({**item, **other})) is is_same


def with_ids(one: RecordedCall, prompt: list[int], generated: list[int]) -> RecordedCall:
    one.output[-1].update(prompt_token_ids=prompt, generation_token_ids=generated)
    return one


def test_fidelity_says_where_tokens_drift_and_by_how_many() -> None:
    a, b, c = played(0, 3, opening("it"), random.Random(1))
    (text,) = merge_calls([a, b, c])
    assert text.fidelity == "text" and text.drift is None
    with_ids(a, [1, 2, 3], [4, 5])
    with_ids(b, [1, 2, 3, 4, 5, 6], [7])
    with_ids(c, [1, 2, 3, 4, 5, 6, 7, 8], [9])
    (exact,) = merge_calls([a, b, c])
    assert exact.fidelity == "exact" and exact.drift is None
    with_ids(b, [1, 2, 3, 4, 50, 6], [7])
    with_ids(c, [1, 2, 3, 4, 50, 6, 7, 8], [9])
    (drift,) = merge_calls([a, b, c])
    assert drift.fidelity == "drift" and drift.drift is not None
    assert (drift.drift.turn, drift.drift.tokens, drift.drift.turns) == (2, 1, 1)


@given(SEEDS, st.integers(1, 10))
def test_lines_leave_out_what_an_earlier_call_holds_and_can_be_read_back(seed: int, turns: int) -> None:
    calls = played(0, turns, opening("it"), random.Random(seed))
    place = CallOrigin("s", 0, 0)
    rows = [from_json(call_line(place, one, calls[:at])) for at, one in enumerate(calls)]
    assert [row["params"]["input"] for row in whole_inputs(rows)] == [one.params["input"] for one in calls]


def test_no_answered_call_gives_no_sequence() -> None:
    assert merge_calls([]) == []
