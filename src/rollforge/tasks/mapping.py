"""`--map`: the fields of a task made from a dataset's own columns, in a tiny path language.

    FIELD=PATH[|STEP]…        prompt=question,expected_answer="answer|after:####"

PATH names a column, and what lies inside it: `meta.solutions[0].text`. STEPs change a text: `after:X` (what follows the last X),
`before:X` (what precedes the first X), `strip`, `lower`, `upper`, `number` (without thousands separators and signs of currency),
`json` (a text as the JSON in it), `join:X` (a list of texts as one). If a path or step finds nothing, the row is bad; nothing is
guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from rollforge.errors import UsageError
from rollforge.json_shapes import RowJson, without
from rollforge.records import PARAMS_KEY
from rollforge.registry import did_you_mean
from rollforge.tasks.line_to_row import BadRow

_EXAMPLE = 'for example: --map prompt=question,expected_answer="answer|after:####"'
_PART = re.compile(r"[^.\[\]]+")
_PROMPTS = ("prompt", "messages")


class MapStep(msgspec.Struct, frozen=True):
    """One transformation of a value: its name and, after a colon, its argument."""

    name: str
    argument: str = ""


class MappedField(msgspec.Struct, frozen=True):
    """A field and the path and steps of its value."""

    name: str
    path: str
    steps: tuple[MapStep, ...] = ()


class FieldMap(msgspec.Struct, frozen=True):
    """The parsed `--map` option; `text` is its original text, for the fingerprint."""

    fields: tuple[MappedField, ...]
    text: str

    @classmethod
    def parse(cls, words: Sequence[str]) -> FieldMap | None:
        """Parse the values of `--map`; None without any. Raises `UsageError`."""
        entries = [entry for word in words for entry in _split(word, ",", '"') if entry.strip()]
        if not entries:
            return None
        fields = tuple(_field(entry) for entry in entries)
        names = [field.name for field in fields]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"--map names the field {repeated[0]!r} twice", hint="keep one of them")
        if set(_PROMPTS) <= set(names):
            raise UsageError(
                "--map makes both prompt and messages", hint="a task has one prompt: keep one of them"
            )
        return cls(fields, ",".join(entry.strip() for entry in entries))

    def apply(self, row: Mapping[str, object]) -> RowJson:
        """The row with the mapped fields. A mapped prompt replaces the row's own `prompt` or `messages`. Raises `BadRow`."""
        made = {field.name: _value(field, row) for field in self.fields}
        params = row.get(PARAMS_KEY)
        if isinstance(params, dict) and params.get("input") and any(name in made for name in _PROMPTS):
            raise BadRow(
                "the row has its own responses_create_params.input, and --map makes a prompt",
                hint="leave the prompt out of --map",
                path=f"{PARAMS_KEY}.input",
            )
        dropped = _PROMPTS if any(name in made for name in _PROMPTS) else ()
        return cast("RowJson", {**without(row, dropped), **made})


def _split(text: str, separator: str, quote: str) -> list[str]:
    """Split at separators outside quotes, and remove the quotes."""
    parts, is_quoted = [""], False
    for letter in text:
        if letter == quote:
            is_quoted = not is_quoted
        elif letter == separator and not is_quoted:
            parts.append("")
        else:
            parts[-1] += letter
    if is_quoted:
        raise UsageError(f"--map {text}: a quote {quote} is not closed", hint=_EXAMPLE)
    return parts


def _field(entry: str) -> MappedField:
    name, equals, source = entry.strip().partition("=")
    if not equals or not name.strip() or not source.strip():
        raise UsageError(f"--map {entry}: not FIELD=PATH", hint=_EXAMPLE)
    path, *steps = _split(source, "|", "'")
    if not _PART.findall(path):
        raise UsageError(f"--map {entry}: no path", hint=_EXAMPLE)
    return MappedField(name.strip(), path.strip(), tuple(_step(word, entry) for word in steps))


def _step(word: str, entry: str) -> MapStep:
    name, colon, argument = word.strip().partition(":")
    if name not in _STEPS:
        raise UsageError(
            f"--map {entry}: there is no step {name!r}{did_you_mean(name, sorted(_STEPS))}",
            hint=f"steps: {', '.join(sorted(_STEPS))}",
        )
    if bool(argument) != (name in _WITH_ARGUMENT):
        text = f"{name}:TEXT" if name in _WITH_ARGUMENT else name
        raise UsageError(f"--map {entry}: {name}{colon}{argument}", hint=f"write {text}")
    return MapStep(name, argument)


def _value(field: MappedField, row: Mapping[str, object]) -> Any:
    value = _at(field.path, row)
    for step in field.steps:
        try:
            value = _STEPS[step.name](value, step.argument)
        except (ValueError, TypeError) as error:
            raise BadRow(
                f"--map {field.name}={field.path}|{step.name}: {error}",
                hint="change the map, or mend such rows; `collect --skip-bad` leaves them out",
                path=field.path,
            ) from error
    return value


def _at(path: str, row: Mapping[str, object]) -> Any:
    """The value at a path; a column name that contains dots is matched as a whole first."""
    if path in row and row[path] is not None:
        return row[path]
    value: Any = row
    for part in _PART.findall(path):
        if isinstance(value, Mapping) and value.get(part) is not None:
            value = value[part]
        elif isinstance(value, list) and part.lstrip("-").isdigit() and -len(value) <= int(part) < len(value):
            value = value[int(part)]
        else:
            keys = sorted(map(str, value)) if isinstance(value, Mapping) else []
            raise BadRow(
                f"--map: the row has no {path!r}{did_you_mean(part, keys)}",
                hint=f"it has: {', '.join(map(str, row))}"[:200],
                path=path,
            )
    return value


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"a {type(value).__name__}, not a text")
    return str(value)


def _after(value: object, mark: str) -> str:
    _, separator, rest = _text(value).rpartition(mark)
    if not separator:
        raise ValueError(f"the text has no {mark!r}")
    return rest.strip()


def _before(value: object, mark: str) -> str:
    start, separator, _ = _text(value).partition(mark)
    if not separator:
        raise ValueError(f"the text has no {mark!r}")
    return start.strip()


def _number(value: object, _: str) -> str:
    text = _text(value).strip().lstrip("$€£").rstrip("%.").replace(",", "").strip()
    float(text)
    return text


def _join(value: object, separator: str) -> str:
    if not isinstance(value, list):
        raise TypeError(f"a {type(value).__name__}, not a list")
    return separator.join(_text(item) for item in value)


_STEPS: dict[str, Callable[[Any, str], Any]] = {
    "after": _after,
    "before": _before,
    "join": _join,
    "json": lambda value, _: msgspec.json.decode(_text(value)),
    "lower": lambda value, _: _text(value).lower(),
    "number": _number,
    "strip": lambda value, _: _text(value).strip(),
    "upper": lambda value, _: _text(value).upper(),
}
_WITH_ARGUMENT = frozenset({"after", "before", "join"})
