"""Converts a trainer's rows and answers to tasks and responses for verifiers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rollforge.errors import DataError
from rollforge.json_shapes import ItemJson, PartJson
from rollforge.records import PARAMS_KEY, JsonFields, Response, Task, content_text, from_json
from rollforge.store.reading import UNREADABLE

TASK_FIELDS = "task_fields"
"""Prompt-set column with the whole task row as JSON text."""
EXPECTED = "expected_answer"
GROUND_TRUTH = "ground_truth"

_THINK = re.compile(r"\A\s*<think>(.*?)</think>\s*", re.DOTALL)
_END_TOKENS = re.compile(
    r"(?:<\|[^|<>\s]{1,40}\|>|<\uff5c[^<>\s]{1,40}\uff5c>|</s>|<eos>|<pad>|<end_of_turn>|\[/?INST\])+\s*\Z"
)
"""Special tokens that end an answer in common models' templates."""
PROMPT_TAIL = 200
"""Characters at the end of a prompt to search for if its beginning was cut off."""


def make_task(
    row: Mapping[str, Any], *, prompt: object = None, fields: Mapping[str, str] | None = None
) -> Task:
    """The task behind a trainer's row.

    A prompt set made by rollforge carries the whole task row as JSON text (`task_fields`); any other row is used unchanged.

    Args:
        prompt: The trainer's prompt, as text or messages, for rows without the task's prompt.
        fields: Field that the verifier needs → the trainer's column that holds it.
    """
    own = row.get(TASK_FIELDS)
    if isinstance(own, str) and own:
        task = read_object(own, TASK_FIELDS)  # only these fields, as in `collect`
    else:
        task = {key: value for key, value in row.items() if value is not None}
    for name, column in (fields or {}).items():
        if row.get(column) is None:
            raise DataError(
                f"the row has no column {column!r}; it has: {', '.join(sorted(row))}", hint="see `fields`"
            )
        task[name] = row[column]
    if EXPECTED not in task and task.get(GROUND_TRUTH) not in (None, ""):
        task[EXPECTED] = task[GROUND_TRUTH]
    if PARAMS_KEY not in task and prompt is not None:
        task[PARAMS_KEY] = {"input": prompt}
    return Task(task)


def read_object(text: str, name: str) -> JsonFields:
    """Decode the JSON object in a column."""
    try:
        value = from_json(text)
    except UNREADABLE as error:
        raise DataError(f"{name} is not JSON: {error}", hint="prepare the prompt set again") from error
    if not isinstance(value, dict):
        raise DataError(
            f"{name} is a {type(value).__name__}, not an object", hint="prepare the prompt set again"
        )
    return value


def make_response(answer: object, *, splits_reasoning: bool = False) -> Response:
    """The response for a trainer's completion, which is text, or messages with tool calls and results.

    Args:
        splits_reasoning: Take a leading `<think>…</think>` out of the text, as a server with a reasoning parser does.
    """
    if isinstance(answer, str):
        messages: Sequence[Any] = [{"role": "assistant", "content": answer}]
    elif isinstance(answer, Mapping):
        messages = [answer]
    elif isinstance(answer, Sequence):
        messages = answer
    else:
        raise DataError(
            f"a completion is a {type(answer).__name__}, neither a text nor messages",
            hint="give a text, or a list of messages",
        )
    items: list[ItemJson] = []
    for message in messages:
        items += _items(message, splits_reasoning=splits_reasoning)
    return Response(
        {"object": "response", "status": "completed", "incomplete_details": None, "output": items}
    )


def _items(message: object, *, splits_reasoning: bool) -> list[ItemJson]:
    if not isinstance(message, Mapping):
        raise DataError(
            f"a message of a completion is a {type(message).__name__}, not an object",
            hint='a message is {"role": …, "content": …}',
        )
    text = content_text(message.get("content"))
    if message.get("role") == "tool":
        return [
            {
                "type": "function_call_output",
                "call_id": str(message.get("tool_call_id") or message.get("name") or ""),
                "output": text,
            }
        ]
    if message.get("role") not in (None, "assistant"):
        part: PartJson = {"type": "input_text", "text": text}
        return [{"type": "message", "role": message.get("role"), "content": [part]}]
    reasoning = message.get("reasoning_content") or message.get("thinking")
    if splits_reasoning and (thought := _THINK.match(text)):
        reasoning, text = thought[1].strip(), text[thought.end() :]
    items: list[ItemJson] = []
    if isinstance(reasoning, str) and reasoning:
        items.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
    calls = message.get("tool_calls") or []
    if text or not calls:
        content: list[PartJson] = [{"type": "output_text", "text": text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "status": "completed", "content": content})
    return items + [_call(call, number) for number, call in enumerate(calls)]


def _call(call: Mapping[str, Any], number: int) -> ItemJson:
    function = call.get("function") or call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        from rollforge.records import to_json

        arguments = to_json(arguments or {}).decode()
    return {
        "type": "function_call",
        "name": str(function.get("name") or ""),
        "arguments": arguments,
        "call_id": str(call.get("id") or function.get("name") or number),
    }


def answer_in(query: str, prompt: str) -> str:
    """The answer in a query, which is the prompt followed by the answer and its end tokens.

    Raises:
        DataError: the query does not contain the prompt, so the start of the answer is unknown.
    """
    if query.startswith(prompt):
        answer = query[len(prompt) :]
    else:
        tail = prompt[-PROMPT_TAIL:]
        position = query.find(tail) if tail else -1
        if position < 0:
            raise DataError(
                "the query does not begin with its prompt, so the answer in it cannot be found",
                hint="use a tokenizer that decodes prompts to the same text",
            )
        answer = query[position + len(tail) :]
    return _END_TOKENS.sub("", answer)
