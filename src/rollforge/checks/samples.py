"""This module reads the text of a few rollouts: the only place where a check touches text, within a fixed budget.

Nothing is kept here: most checks look at rollouts of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, cast

import msgspec

from rollforge.records import PARAMS_KEY, JsonObject, Response, Task, from_json

BUDGET = 400
"""Rollouts whose text one check may read."""

EXPECTED = ("expected_answer", "answer", "ground_truth", "gold", "target", "label", "solution", "expected")
"""Task fields that hold the right answer, by the names people use."""

METADATA = ("verifier_metadata", "metadata", "reward_model", "extra_info")
"""Task fields that hold such fields in turn."""

LONGEST_EXPECTED = 60
"""A longer right answer is a text of its own: whether it is contained says little."""


class TextSource(Protocol):
    """What texts are read from."""

    def read(self, rows: Sequence[int]) -> Iterator[bytes]: ...
    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, JsonObject]]: ...


class _Part(TypedDict, total=False):
    type: Any
    text: Any


class _Item(TypedDict, total=False):
    type: Any
    role: Any
    name: Any
    content: str | list[_Part] | None


class _Params(TypedDict, total=False):
    input: str | list[_Item] | None
    tools: Any
    model: Any


class _Response(TypedDict, total=False):
    output: list[_Item] | None


_Row = TypedDict(
    "_Row",
    {PARAMS_KEY: _Params | None, "response": _Response | None, **dict.fromkeys((*METADATA, *EXPECTED), Any)},
    total=False,
)
"""What is looked at of a row: hardly half of it, and the rest need not be made into objects."""

_usual_row = msgspec.json.Decoder(_Row).decode
_field_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NULL = msgspec.Raw(b"null")


@dataclass(frozen=True)
class Sample:
    """The text of one rollout."""

    prompt: str
    answer: str
    calls: tuple[str, ...]
    """Names of the tools called."""
    tools: tuple[str, ...] | None
    """Names of the tools offered; None when the row does not say."""
    expected: str | None
    asked: str | None = None
    """The model that the request named."""


class Texts:
    """Reads samples of text."""

    def __init__(self, source: TextSource) -> None:
        self._source = source
        self._fields_by_task: dict[int, JsonObject] = {}

    def read(self, rows: Sequence[int], tasks: Sequence[int]) -> list[Sample]:
        """The text of these rows, whose tasks are given beside them."""
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
    except msgspec.DecodeError:
        return
    yield from (name for name, value in row.items() if value != _NULL)


def _read_row(line: bytes) -> JsonObject:
    """What is looked at of the row, in a row as it should be; of an odd one everything."""
    try:
        return cast(JsonObject, _usual_row(line))
    except msgspec.ValidationError:
        return cast(JsonObject, from_json(line))


def _sample(line: bytes, fields: JsonObject) -> Sample:
    try:
        row = _read_row(line)
    except msgspec.DecodeError:
        return Sample("", "", (), None, None)
    response = row.get("response")
    answer = Response(response if isinstance(response, dict) else {})
    params = row.get(PARAMS_KEY)
    params = params if isinstance(params, dict) else {}
    tools = params.get("tools")
    return Sample(
        prompt=Task({PARAMS_KEY: params}).prompt,
        answer=answer.text,
        calls=tuple(
            str(item.get("name") or "") for item in answer.output if item.get("type") == "function_call"
        ),
        tools=tuple(_tool_name(tool) for tool in tools) if isinstance(tools, list) else None,
        expected=expected_answer(fields) or expected_answer(row),
        asked=params["model"] if isinstance(params.get("model"), str) else None,
    )


def _tool_name(tool: object) -> str:
    if not isinstance(tool, dict):
        return ""
    inner = tool.get("function")
    return str(
        tool.get("name") or (inner.get("name") if isinstance(inner, dict) else "") or tool.get("type") or ""
    )


def expected_answer(fields: Mapping[str, Any]) -> str | None:
    """The right answer in a task's fields, or in those kept for the verifier, if it is short enough to be looked for."""
    for place in METADATA:
        inner = fields.get(place)
        if isinstance(inner, dict) and (found := expected_answer(inner)):
            return found
    for name in EXPECTED:
        value = fields.get(name)
        if isinstance(value, bool | list | dict) or value is None:
            continue
        text = str(value).strip()
        if text and len(text) <= LONGEST_EXPECTED:
            return text
    return None


SHORTEST_PROMPT = 16
"""Letters and digits of a prompt whose repetition is no coincidence."""

_FINAL = 160
"""Characters at the end of an answer in which a conclusion stands."""


def concludes(answer: str, expected: str) -> bool:
    """Whether the end of the answer names the expected answer as a word of its own."""
    return names(answer[-_FINAL:], expected)


def names(text: str, expected: str) -> bool:
    """Whether the text names the expected answer as a word of its own."""
    end = text.casefold()
    wanted = expected.casefold().strip().strip("$").strip()
    place = end.rfind(wanted) if wanted else -1
    while place >= 0:
        before, after = end[place - 1 : place], end[place + len(wanted) : place + len(wanted) + 2]
        if not _joins_before(before) and not _joins_after(after):
            return True
        place = end.rfind(wanted, 0, place + len(wanted) - 1)
    return False


def _joins_before(before: str) -> bool:
    return before.isalnum() or (before != "" and before in "_.,-")


def _joins_after(after: str) -> bool:
    """A letter or digit goes on, or a decimal point or comma with a digit behind it."""
    return after[:1].isalnum() or after[:1] == "_" or (after[:1] in (".", ",") and after[1:].isdigit())


def repeats(answer: str, prompt: str) -> bool:
    """Whether the answer is the prompt and hardly anything else."""
    wanted = bare(prompt)
    longest = 1.2 * len(wanted) + 10
    if len(wanted) < SHORTEST_PROMPT or _least_bare(answer) > longest:
        return False
    said = bare(answer)
    return wanted in said and len(said) <= longest


_ERROR = re.compile(
    r"""\s*(?:
        \{\s*["'](?:type|object)["']\s*:\s*["']error["']                     # errors of Anthropic and vLLM
      | \[?(?:fatal|critical|error|exception)\]?\s*[:\]]
      | [a-z_.]+\.[a-z]*(?:error|exception)\b                               # a class of a library
      | (?:panic|fatal\ error|segmentation\ fault|cuda\ error)\b
      | (?:the\ )?(?:request|connection|operation|generation)\ (?:timed\ out|failed|error|aborted|was\ cancelled)\b
      | [^\n]{0,200}\n\s+at\ [\w.$<>]+\(                                    # a stack of Java or JavaScript
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""How error messages begin that the index does not tell."""


def is_error_message(answer: str) -> bool:
    """Whether an answer is an error message, by more patterns than the index looks for in every row."""
    return _ERROR.match(answer[:400]) is not None


_ASCII_FORM = bytes(code for code in range(128) if not chr(code).isalnum())
_FORM = re.compile(r"[\W_]+")


def bare(text: str) -> str:
    """The text without what is mere formatting: case, white space, punctuation and mark-up."""
    # Nearly all of it is ASCII, which bytes are rid of many times faster than a pattern finds it.
    folded = text.casefold().encode("utf-8", "surrogatepass").translate(None, _ASCII_FORM)
    rest = folded.decode("utf-8", "surrogatepass")
    return rest if rest.isascii() else _FORM.sub("", rest)


def _least_bare(text: str) -> int:
    """How many characters `bare` leaves at least: the ASCII letters and digits."""
    return len(text.encode("ascii", "ignore").translate(None, _ASCII_FORM))
