"""Reads the text of a few rollouts for checks, within a fixed budget; no other code of a check reads text.

Nothing is cached: most checks sample rollouts of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Protocol, TypedDict, cast

import msgspec

from rollforge.json_shapes import ParamsJson, ResponseJson, RowJson
from rollforge.records import OWN_KEY, PARAMS_KEY, Response, Task, content_text, from_json
from rollforge.statistics.stats import LARGEST
from rollforge.store.reading import UNREADABLE

BUDGET = 400
"""Most rollouts whose text one check may read."""

EXPECTED = ("expected_answer", "answer", "ground_truth", "gold", "target", "label", "solution", "expected")
"""Task fields that hold the right answer, by the names people use."""

METADATA = ("verifier_metadata", "metadata", "reward_model", "extra_info")
"""Task fields whose objects can contain such answer fields."""

EXTRACTED = ("extracted_answer", "extracted_model_output", "predicted_answer", "parsed_answer")
"""Row fields that hold the answer as the verifier extracted it."""

LONGEST_EXPECTED = 60
"""Expected answers longer than this are prose: whether a text contains them says little."""


class TextSource(Protocol):
    """A source of lines and task rows."""

    def read(self, rows: Sequence[int]) -> Iterator[bytes]: ...
    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, RowJson]]: ...


class _Part(TypedDict, total=False):
    type: Any
    text: Any


class _Item(TypedDict, total=False):
    type: Any
    role: Any
    name: Any
    arguments: Any
    output: Any
    content: str | list[_Part] | None


class _Params(TypedDict, total=False):
    input: str | list[_Item] | None
    tools: Any
    model: Any
    temperature: Any
    top_p: Any


class _Response(TypedDict, total=False):
    output: list[_Item] | None
    status: Any
    error: Any
    usage: Any


_LOOKED_AT: dict[str, object] = {PARAMS_KEY: _Params | None, "response": _Response | None}
_LOOKED_AT |= dict.fromkeys((*METADATA, *EXPECTED, *EXTRACTED, "reward", OWN_KEY), Any)
"""The fields that are decoded: hardly half of a row."""

_Row = cast(Any, TypedDict)("_Row", _LOOKED_AT, total=False)
_usual_row = msgspec.json.Decoder(_Row).decode
_field_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = msgspec.Raw(b"null")


class SampledText:
    """The text of one rollout."""

    def __init__(self, row: RowJson, task: RowJson) -> None:
        self._row, self._task = row, task

    @cached_property
    def _params(self) -> ParamsJson:
        params = self._row.get(PARAMS_KEY)
        return params if isinstance(params, dict) else {}

    @cached_property
    def _response(self) -> Response:
        response = self._row.get("response")
        return Response(_with_flat_output(response) if isinstance(response, dict) else {})

    @property
    def prompt(self) -> str:
        return Task({PARAMS_KEY: self._params}).prompt

    @property
    def answer(self) -> str:
        return self._response.text

    @property
    def calls(self) -> list[str]:
        """Names of the tools called."""
        return [
            str(item.get("name") or "")
            for item in self._response.output
            if item.get("type") == "function_call"
        ]

    @property
    def tools(self) -> list[str] | None:
        """Names of the offered tools; None when the row does not record them."""
        tools = self._params.get("tools")
        return [_tool_name(tool) for tool in tools] if isinstance(tools, list) else None

    @property
    def tools_chars(self) -> int:
        """Length of the tools' definitions as JSON."""
        return len(msgspec.json.encode(self._params.get("tools") or []))

    @property
    def input_tokens(self) -> float | None:
        """Input tokens of the request, as counted by the server."""
        usage = self._response.raw.get("usage")
        count = usage.get("input_tokens") if isinstance(usage, dict) else None
        return float(count) if isinstance(count, int) and 0 < count < 1 << 53 else None

    @property
    def has_params(self) -> bool:
        """Whether the row holds the request."""
        return bool(self._params)

    def sampling(self, name: str) -> object:
        """A sampling parameter of the request; None when it names none."""
        return self._params.get(name)

    @property
    def ends_badly(self) -> bool:
        """Whether the response reports an error, or its last item is a tool call without a result."""
        raw, output = self._response.raw, self._response.output
        if raw.get("error") or raw.get("status") == "failed":
            return True
        answered = any(item.get("type") == "function_call_output" for item in output)
        return answered and output[-1].get("type") == "function_call"

    @property
    def hollow_turns(self) -> int:
        """Assistant messages without any text, beside other items."""
        output = self._response.output
        messages = [
            item
            for item in output
            if item.get("type") == "message" and item.get("role") in (None, "assistant")
        ]
        hollow = [item for item in messages if not content_text(item.get("content")).strip()]
        # A server may send an empty message beside each tool call: that turn does something.
        return max(0, len(hollow) - len(self.calls)) if len(output) > 1 else 0

    @property
    def asked(self) -> str | None:
        """The model named in the request."""
        model = self._params.get("model")
        return model if isinstance(model, str) else None

    @property
    def trajectory(self) -> bytes:
        """All output of model and tools, without the ids that differ between samples."""
        compared_keys = ("type", "role", "name", "arguments", "output", "content")
        items = [{name: item.get(name) for name in compared_keys} for item in self._response.output]
        return msgspec.json.encode(items, order="deterministic")

    @property
    def recorded(self) -> tuple[str | None, float | None]:
        """The verifier and the reward recorded when the rollout was collected."""
        own, reward = self._row.get(OWN_KEY), self._row.get("reward")
        name = own.get("verifier") if isinstance(own, dict) else None
        if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= LARGEST:
            reward = None
        return (name if isinstance(name, str) else None), None if reward is None else float(reward)

    @property
    def extracted(self) -> str | None:
        """The answer that the verifier extracted, empty if it extracted none; None when the row has no such field."""
        for name in EXTRACTED:
            if name in self._row:
                value = self._row.get(name)
                return "" if value is None else str(value).strip()
        return None

    @cached_property
    def expected(self) -> str | None:
        """The expected answer: from the task, else from the row."""
        return expected_answer(self._task) or expected_answer(self._row)


class Texts:
    """Reads samples of text."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._fields_by_task: dict[int, RowJson] = {}

    def read(self, rows: Sequence[int], tasks: Sequence[int]) -> list[SampledText]:
        """The text of these rows; `tasks` holds the task of each."""
        self._load_tasks(tasks)
        lines = self._source.read(rows)
        return [
            _sample(line, self._fields_by_task.get(task, {})) for line, task in zip(lines, tasks, strict=True)
        ]

    def fields(self, rows: Sequence[int]) -> list[frozenset[str]]:
        """The names of each row's own fields that are not null."""
        return [frozenset(_known_fields(line)) for line in self._source.read(rows)]

    def _load_tasks(self, tasks: Sequence[int]) -> None:
        unknown = [task for task in dict.fromkeys(tasks) if task not in self._fields_by_task]
        for task in unknown:
            self._fields_by_task[task] = {}
        self._fields_by_task.update(self._source.task_rows(unknown) if unknown else ())


def _known_fields(line: bytes) -> Iterator[str]:
    try:
        row = _field_names(line)
    except UNREADABLE:
        return
    yield from (name for name, value in row.items() if value != _NULL)


def _sample(line: bytes, task: RowJson) -> SampledText:
    try:
        row = _read_row(line)
    except UNREADABLE:
        row = None
    return SampledText(cast("RowJson", row), task) if isinstance(row, dict) else SampledText({}, {})


def _read_row(line: bytes) -> Any:
    """The decoded fields of a row. A row that does not match the schema is decoded as a whole, since only part of it may be odd."""
    try:
        return _usual_row(line)
    except msgspec.ValidationError:
        return from_json(line)


def _with_flat_output(response: ResponseJson) -> ResponseJson:
    """The response with one flat item list; some agents record one list per turn."""
    output = response.get("output")
    if not isinstance(output, list) or not any(isinstance(item, list) for item in output):
        return response
    flat = [one for item in output for one in (item if isinstance(item, list) else [item])]
    return {**response, "output": flat}


def _tool_name(tool: object) -> str:
    if not isinstance(tool, dict):
        return ""
    inner = tool.get("function")
    return str(
        tool.get("name") or (inner.get("name") if isinstance(inner, dict) else "") or tool.get("type") or ""
    )


def expected_answer(fields: Mapping[str, object]) -> str | None:
    """The expected answer from a task's fields, or from those kept for the verifier, if it is short enough to search for."""
    for field in METADATA:
        inner = fields.get(field)
        if isinstance(inner, dict) and (answer := expected_answer(inner)):
            return answer
    for name in EXPECTED:
        value = fields.get(name)
        if isinstance(value, bool | list | dict) or value is None:
            continue
        text = str(value).strip()
        if text and len(text) <= LONGEST_EXPECTED:
            return text
    return None


SHORTEST_PROMPT = 16
"""Fewest letters and digits at which repeating a prompt is no coincidence."""

_OPENING = 100
"""Characters of the prompt that are compared first, as a cheap test."""

_FINAL = 160
"""Characters at the end of an answer that contain its conclusion."""


def concludes(answer: str, expected: str) -> bool:
    """Whether the end of the answer names the expected answer as a word of its own."""
    return names(answer[-_FINAL:], expected)


def names(text: str, expected: str) -> bool:
    """Whether the text names the expected answer as a word of its own."""
    end = text.casefold()
    wanted = expected.casefold().strip().strip("$").strip()
    position = end.rfind(wanted) if wanted else -1
    while position >= 0:
        before, after = end[position - 1 : position], end[position + len(wanted) : position + len(wanted) + 2]
        if not _joins_before(before) and not _joins_after(after):
            return True
        position = end.rfind(wanted, 0, position + len(wanted) - 1)
    return False


def _joins_before(before: str) -> bool:
    return before.isalnum() or (before != "" and before in "_.,-")


def _joins_after(after: str) -> bool:
    """Whether a word continues here: a letter or digit, or a decimal point or comma before a digit."""
    return after[:1].isalnum() or after[:1] == "_" or (after[:1] in (".", ",") and after[1:].isdigit())


def repeats(answer: str, prompt: str) -> bool:
    """Whether the answer repeats the prompt and adds hardly anything."""
    bare_answer = bare(answer)
    if bare(prompt[:_OPENING]) not in bare_answer:
        return False  # cheap: most answers do not repeat even the opening of the prompt
    wanted = bare(prompt)
    return (
        len(wanted) >= SHORTEST_PROMPT
        and wanted in bare_answer
        and len(bare_answer) <= 1.2 * len(wanted) + 10
    )


_ASCII = bytes(range(128))
_ASCII_FORM = bytes(code for code in _ASCII if not chr(code).isalnum())


def bare(text: str) -> str:
    """The text without case, white space, punctuation and mark-up."""
    # On bytes, because nearly all of it is ASCII; every other distinct character is handled once.
    bare_text = text.encode("utf-8", "surrogatepass").lower().translate(None, _ASCII_FORM)
    for other in set(bare_text.translate(None, _ASCII).decode("utf-8", "surrogatepass")):
        left = _bare_character(other)
        if left != other:
            bare_text = bare_text.replace(
                other.encode("utf-8", "surrogatepass"), left.encode("utf-8", "surrogatepass")
            )
    return bare_text.decode("utf-8", "surrogatepass")


@cache
def _bare_character(character: str) -> str:
    return re.sub(r"[\W_]+", "", character.casefold())
