"""Tool use of the simulated model: it solves the multi-step tasks, and calls any other tool once on request.

A call's id contains the sample number, so that later turns of a rollout belong to the same sample.
"""

from __future__ import annotations

import re
from typing import Any

from rollforge.json_shapes import SchemaJson
from rollforge.records import JsonObject, from_json, to_json
from rollforge.simulate.conversation import (
    Ask,
    SimulatedCall,
    SimulatedMessage,
    SimulatedTurn,
    Tool,
    ToolOutput,
)
from rollforge.simulate.draws import Chance, digest
from rollforge.simulate.needles import LOOK_UP, SUBMIT, Needles, words_to_look_up
from rollforge.store.reading import UNREADABLE

_ONE_AT_A_TIME = 0.5
_CALL_ID = re.compile(r"call_(\d+)_[0-9a-f]+$")
_SPELT = re.compile(r"^\s*call (\S+) (\{.*\})\"?\s*$", re.MULTILINE)
_ASKS_FOR_TOOLS = re.compile(r"\b(tools?|functions?|call|look up|search|fetch|calculator)\b", re.IGNORECASE)


def sample_in_calls(ask: Ask) -> int | None:
    """The sample number in the conversation's call ids; None without calls of this model."""
    for item in ask.since_user():
        if isinstance(item, SimulatedCall) and (match := _CALL_ID.match(item.call_id)):
            return int(match.group(1))
    return None


def offers_needles(ask: Ask) -> bool:
    """Whether the request has both tools of the multi-step tasks."""
    return {LOOK_UP, SUBMIT} <= {tool.name for tool in ask.tools}


def play_needles(ask: Ask, task: Needles, is_right: bool, chance: Chance, sample: int) -> SimulatedTurn:
    """Next turn of a multi-step task: look up a missing value, submit, or state the sum."""
    outputs = _outputs(ask)
    if any(name == SUBMIT for name, _, _ in outputs):
        values = _submitted(ask)
        return SimulatedTurn(text=f"I submitted {len(values)} values. Their sum is \\boxed{{{sum(values)}}}.")
    one_at_a_time = chance.happens(_ONE_AT_A_TIME) or not ask.parallel_calls
    words = words_to_look_up(task, is_right, chance)
    value_by_word = {
        arguments.get("synonym"): _value(output) for name, arguments, output in outputs if name == LOOK_UP
    }
    missing = [word for word in words if word not in value_by_word]
    if missing:
        next_words = missing[:1] if one_at_a_time else missing
        return _calls(ask, [(LOOK_UP, {"synonym": word}) for word in next_words], sample)
    values = [value for word in words if (value := value_by_word[word]) is not None]
    if not values:
        return SimulatedTurn(text="The tool gave me no values, so I cannot submit any.")
    return _calls(ask, [(SUBMIT, {"synonym_values": values})], sample)


def obey(ask: Ask, sample: int) -> SimulatedTurn | None:
    """The next call that the prompt lists in a line `call NAME {…}`; None if there are no more.

    Rehearsals with a real agent use this to determine exactly which tools are called.
    """
    names = {tool.name for tool in ask.tools}
    spelt: list[tuple[str, JsonObject]] = []
    answered = 0
    for item in ask.items:
        if (
            isinstance(item, SimulatedMessage)
            and item.role == "user"
            and (calls := _SPELT.findall(item.text))
        ):
            # Some agents hand the prompt over in quotes, with those inside escaped.
            spelt = [
                (name, _object(text) or _object(text.replace('\\"', '"')))
                for name, text in calls
                if name in names
            ]
            answered = 0
        answered += isinstance(item, ToolOutput)
    return _calls(ask, [spelt[answered]], sample) if answered < len(spelt) else None


def use_any(ask: Ask, chance: Chance, sample: int) -> SimulatedTurn | None:
    """A call of a suitable tool if the prompt asks for one, then an answer from its output."""
    outputs = _outputs(ask)
    if outputs:
        name, _, text = outputs[-1]
        ending = " \\boxed{" + _scalar(text) + "}." if "\\boxed" in ask.task_text else ""
        return SimulatedTurn(text=f"The tool {name} answered: {text[:300]}{ending}")
    tool = _fitting_tool(ask)
    if tool is None:
        return None
    return _calls(ask, [(tool.name, _arguments(tool.parameters, ask.task_text, chance))], sample)


def _fitting_tool(ask: Ask) -> Tool | None:
    by_name = {tool.name: tool for tool in ask.tools}
    if ask.tool_choice in by_name:
        return by_name[ask.tool_choice]
    text = ask.task_text.lower()
    for tool in ask.tools:
        if tool.name.lower() in text or tool.name.lower().replace("_", " ") in text:
            return tool
    wanted = ask.tool_choice == "required" or _ASKS_FOR_TOOLS.search(ask.task_text)
    return ask.tools[0] if wanted else None


def _arguments(schema: SchemaJson, text: str, chance: Chance) -> Any:
    """Arguments that satisfy the schema, with suitable words and numbers from the prompt."""
    if schema.get("enum"):
        return chance.pick(schema["enum"])
    kind = schema.get("type", "object" if "properties" in schema else "string")
    numbers = re.findall(r"\d+", text)
    match kind if isinstance(kind, str) else kind[0]:
        case "object":
            return {
                name: _arguments(part, text, chance)
                for name, part in (schema.get("properties") or {}).items()
            }
        case "array":
            return [_arguments(schema.get("items") or {}, text, chance)]
        case "integer":
            return int(numbers[0][:9]) if numbers else chance.between(1, 9)
        case "number":
            return float(numbers[0][:9]) if numbers else round(chance.uniform(0, 10), 2)
        case "boolean":
            return chance.happens(0.5)
        case "null":
            return None
        case _:
            quoted = (
                re.findall(r"[\"'“]([^\"'”]{1,80})[\"'”]", text)
                or re.findall(r"\b[A-Z][a-z]{2,}\b", text)[1:]
            )
            return quoted[0] if quoted else " ".join(text.split()[:6])


def _calls(ask: Ask, wanted: list[tuple[str, JsonObject]], sample: int) -> SimulatedTurn:
    turn = len(ask.since_user())
    calls = tuple(
        SimulatedCall(
            name,
            to_json(arguments).decode(),
            f"call_{sample}_{digest(ask.task_text, turn, number) & 0xFFFFFFFF:08x}",
        )
        for number, (name, arguments) in enumerate(wanted)
    )
    return SimulatedTurn(calls=calls, finish="tool_calls")


def _outputs(ask: Ask) -> list[tuple[str, JsonObject, str]]:
    """Name, arguments and output of each answered call."""
    calls = {item.call_id: item for item in ask.since_user() if isinstance(item, SimulatedCall)}
    return [
        (calls[item.call_id].name, _object(calls[item.call_id].arguments), item.text)
        for item in ask.since_user()
        if isinstance(item, ToolOutput) and item.call_id in calls
    ]


def _submitted(ask: Ask) -> list[int]:
    calls = [item for item in ask.since_user() if isinstance(item, SimulatedCall) and item.name == SUBMIT]
    return [int(value) for value in _object(calls[-1].arguments).get("synonym_values", [])]


def _object(text: str) -> JsonObject:
    try:
        value = from_json(text)
    except UNREADABLE:
        return {}
    return value if isinstance(value, dict) else {}


def _value(output: str) -> int | None:
    value = _object(output).get("synonym_value")
    return value if isinstance(value, int) else None


def _scalar(text: str) -> str:
    """The single value in a tool's output, or its first words."""
    values = list(_object(text).values())
    return str(values[0]) if len(values) == 1 else " ".join(text.split()[:5])
