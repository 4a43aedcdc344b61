"""Parses requests of NeMo Gym's clients; invalid ones are refused in FastAPI's error format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, cast

from rollforge.json_shapes import RowJson
from rollforge.records import PARAMS_KEY, TASK_KEY, Response, Task, as_received, from_json
from rollforge.store.reading import UNREADABLE


class ProblemJson(TypedDict):
    """One problem of a body, in FastAPI's format."""

    type: str
    loc: list[str | int]
    msg: str


class VerifyBodyJson(RowJson, total=False):
    """A task row with a response, or rows with verdicts."""

    verify_responses: list[RowJson]


class Unprocessable(Exception):
    """An invalid body: HTTP 422 with a `detail` list, one entry per problem."""

    def __init__(self, problems: list[ProblemJson]) -> None:
        super().__init__("; ".join(f"{problem['loc']}: {problem['msg']}" for problem in problems))
        self.detail = problems


def read_body(data: bytes) -> VerifyBodyJson:
    """The JSON object in a request."""
    try:
        value = from_json(data)
    except UNREADABLE as error:
        raise Unprocessable([_problem("json_invalid", ["body"], f"JSON decode error: {error}")]) from error
    if not isinstance(value, dict):
        raise Unprocessable([_problem("dict_type", ["body"], "Input should be a valid dictionary")])
    return cast("VerifyBodyJson", value)


def read_verify(body: VerifyBodyJson, needs: Sequence[str]) -> tuple[Task, Response]:
    """The task and the response in a `/verify` body."""
    problems = [*_params_problems(body), *_response_problems(body)]
    for field in needs:
        if not _has(body, field):
            problems.append(_problem("missing", ["body", *field.split(".")], "Field required"))
    if problems:
        raise Unprocessable(problems)
    index = body.get(TASK_KEY)
    row = {key: value for key, value in body.items() if key != "response"}
    return Task(row, index if isinstance(index, int) else 0), as_received(Response(body["response"] or {}))


def read_verdicts(body: VerifyBodyJson) -> list[RowJson]:
    """The rows in an `/aggregate_metrics` body."""
    rows = body.get("verify_responses")
    if not isinstance(rows, list):
        raise Unprocessable([_problem("missing", ["body", "verify_responses"], "Field required")])
    bad = [
        _problem("dict_type", ["body", "verify_responses", position], "Input should be a valid dictionary")
        for position, row in enumerate(rows)
        if not isinstance(row, dict)
    ]
    if bad:
        raise Unprocessable(bad)
    return rows


def _params_problems(body: VerifyBodyJson) -> list[ProblemJson]:
    params = body.get(PARAMS_KEY)
    if not isinstance(params, dict):
        return [_problem("missing", ["body", PARAMS_KEY], "Field required")]
    if not isinstance(params.get("input"), str | list):
        return [_problem("missing", ["body", PARAMS_KEY, "input"], "Field required")]
    return []


def _response_problems(body: VerifyBodyJson) -> list[ProblemJson]:
    response = body.get("response")
    if not isinstance(response, dict):
        return [_problem("missing", ["body", "response"], "Field required")]
    output = response.get("output")
    if not isinstance(output, list):
        return [_problem("missing", ["body", "response", "output"], "Field required")]
    # Every verifier skips an item without a type, so the verdict would be about an empty answer.
    return [
        _problem("missing", ["body", "response", "output", position, "type"], "Field required")
        for position, item in enumerate(output)
        if not isinstance(item, dict) or not item.get("type")
    ]


def _has(body: VerifyBodyJson, field: str) -> bool:
    value: Any = body
    if body.get(field) is not None:
        return True
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value is not None


def _problem(kind: str, location: list[str | int], text: str) -> ProblemJson:
    return {"type": kind, "loc": location, "msg": text}
