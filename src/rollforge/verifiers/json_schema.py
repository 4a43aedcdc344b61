"""Rewards an answer that is JSON and fits a schema.

The schema comes from the `schema` option, or else from the row's field `schema`, `json_schema` or `schema_str` (an object, or JSON
text of one). The answer is the whole text, without a code fence around it. An answer that takes more than `answer_seconds` of CPU
time (a `pattern` of the schema may backtrack) gets reward 0 with `timed_out`.

It judges form, not content. It fetches nothing, so a `$ref` to another address is a failure to judge. Extra: `json-schema`.
"""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import Any

import msgspec

from rollforge.errors import UsageError
from rollforge.records import JsonFields, Response, Task
from rollforge.verifiers.building_blocks.answer_limit import (
    ANSWER_SECONDS,
    TIMED_OUT,
    AnswerTooSlow,
    answer_limit,
)
from rollforge.verifiers.building_blocks.verdict_fields import SchemaVerdictJson

needs = ()
skip_probes = ("gold", "swapped gold", "swapped response", "hedge")
"""Probes that do not apply because only form is judged: an answer to another task with the same schema passes."""

SCHEMA_FIELDS = ("schema", "json_schema", "schema_str")


class JsonSchemaOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Source of the schema, and extraction of the answer."""

    schema: JsonFields | None = None
    """The schema for every row; None takes the row's own."""
    find: bool = False
    """When the whole text is no JSON, judge the last fenced block, or else from the first bracket on."""
    answer_seconds: float = ANSWER_SECONDS
    """CPU time for checking one answer."""


class JsonSchema:
    """Judges by a JSON schema."""

    options_type = JsonSchemaOptions

    def __init__(self, options: JsonSchemaOptions | None = None) -> None:
        self._options = options or JsonSchemaOptions()
        try:
            import jsonschema  # noqa: F401  (asked for now, so that a missing extra is not met per rollout)
        except ImportError as error:
            raise UsageError(
                "the json_schema verifier needs the package jsonschema",
                hint="pip install 'rollforge[json-schema]'",
            ) from error

    def verify(self, task: Task, response: Response) -> SchemaVerdictJson:
        validator = _validator(json.dumps(self._schema(task), sort_keys=True))
        try:
            value = self._value(response.text)
        except ValueError as error:
            return {"reward": 0.0, "is_json": False, "error": str(error)}
        try:
            with answer_limit(self._options.answer_seconds):
                fault = next(validator.iter_errors(value), None)
        except AnswerTooSlow:
            return {"reward": 0.0, "is_json": True, "error": "took too long", TIMED_OUT: True}
        except RecursionError:
            validator.is_valid(None)  # an endless schema raises here too: then the answer is not to blame
            return {"reward": 0.0, "is_json": True, "error": "nested too deeply"}
        if fault is None:
            return {"reward": 1.0, "is_json": True, "error": None}
        where = "/".join(map(str, fault.absolute_path))
        return {"reward": 0.0, "is_json": True, "error": f"{where or 'the value'}: {fault.message}"[:500]}

    def _schema(self, task: Task) -> Any:
        if self._options.schema is not None:
            return self._options.schema
        for field in SCHEMA_FIELDS:
            schema = task.get(field)
            if schema is not None:
                return json.loads(schema) if isinstance(schema, str) else schema
        raise ValueError("neither the options nor the task have a schema")

    def _value(self, text: str) -> Any:
        try:
            return parse(without_fence(text))
        except ValueError:
            inner = _found(text) if self._options.find else None
            if inner is None:
                raise
            return parse(inner)


def parse(text: str) -> Any:
    """Parse strict JSON; raises ValueError for anything else, NaN and Infinity included."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def without_fence(text: str) -> str:
    """The text without an enclosing code fence."""
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and len(text) >= 6:
        first_line, _, rest = text[:-3].partition("\n")
        return rest.strip() if first_line[3:].strip().lower() in ("", "json") else text
    return text


def _found(text: str) -> str | None:
    pieces = text.split("```")
    if len(pieces) >= 3:
        return without_fence(f"```{pieces[-2]}```")
    starts = [position for position in (text.find("{"), text.find("[")) if position >= 0]
    if not starts:
        return None
    start = min(starts)
    end = text.rfind("}" if text[start] == "{" else "]")
    return text[start : end + 1] if end > start else None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large")
    return value


@lru_cache(maxsize=1024)
def _validator(schema_text: str) -> Any:
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = json.loads(schema_text)
    kind = validator_for(schema)
    kind.check_schema(schema)
    return kind(schema, registry=Registry())  # a registry without a fetcher: no rollout may cause a request
