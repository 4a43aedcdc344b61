"""Converts a line to a task row: checked, in Responses form, with template and overrides applied.

An unusable row raises `BadRow` with the mistake and a correction; nothing is guessed. Items that NeMo Gym's schema would silently
coerce into something else (a wrong role, no content, a chat `tool` message) are bad rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec

from rollforge.json_shapes import ItemJson, ParamsJson, PartJson, RowJson, Shape
from rollforge.records import PARAMS_KEY, from_json, has_field
from rollforge.store.reading import NO_LINE, UNREADABLE
from rollforge.tasks.prompt_template import PromptTemplate

ROLES = ("user", "assistant", "system", "developer")
MOST_NAMES = 8
"""Fields of a row that a message lists."""


class BadRow(ValueError):
    """A line that cannot be a task; `hint` is the correction."""

    def __init__(self, message: str, *, hint: str = "", path: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.path = path


class RowMapping(Protocol):
    """Computes task fields from a row's fields."""

    def apply(self, row: Mapping[str, object]) -> RowJson:
        """Return the row with the new fields; raises `BadRow`."""


def to_task_row(
    line: bytes,
    *,
    overrides: Mapping[str, Any] | None = None,
    template: PromptTemplate | None = None,
    needs: Sequence[str] = (),
    may_lack_prompt: bool = False,
    mapping: RowMapping | None = None,
) -> RowJson:
    """Parse a line to a task row. `may_lack_prompt`: the agent or environment makes the prompt."""
    parsed = _parse(line)
    if mapping is not None:
        parsed = mapping.apply(parsed)
    row = task_row(parsed, template=template, overrides=overrides, may_lack_prompt=may_lack_prompt)
    for field in needs:
        if not has_field(row, field):
            raise BadRow(
                f"the verifier needs the field {field!r}", hint=f"add {field!r} to the row", path=field
            )
    return row


def task_row(
    row: Mapping[str, object],
    *,
    template: PromptTemplate | None = None,
    overrides: Mapping[str, Any] | None = None,
    may_lack_prompt: bool = False,
) -> RowJson:
    """The task row of a parsed line: what `collect` sends and `validate` checks. Raises `BadRow`."""
    unwrapped = unwrap_typed_task(row)
    params = _params_of(unwrapped, template, may_lack_prompt=may_lack_prompt)
    if overrides:
        params = merged(params, overrides)
    check_params(params, may_lack_prompt=may_lack_prompt)
    return {**unwrapped, PARAMS_KEY: params}


def is_typed_task(row: Mapping[str, object]) -> bool:
    """Whether the row is a typed NeMo Gym task, that is, an identity and the input of an environment server."""
    return "task_id" in row and any(isinstance(row.get(key), dict) for key in _TYPED_INPUTS)


_TYPED_INPUTS = ("task_input", "resolved_row")


def unwrap_typed_task(row: Mapping[str, object]) -> RowJson:
    """A typed task with its input's fields moved to the top level, where verifiers look; other rows unchanged."""
    if not is_typed_task(row):
        return cast("RowJson", dict(row))
    fields = next(value for key in _TYPED_INPUTS if isinstance(value := row.get(key), dict))
    data = fields.get("task_data")
    return cast("RowJson", {**(data if isinstance(data, dict) else {}), **fields, **row})


def _parse(line: bytes) -> RowJson:
    try:
        row = from_json(line)
    except UNREADABLE as error:
        is_text = isinstance(error, msgspec.DecodeError)
        reason = NO_LINE if line.startswith(b"\0") else error
        raise BadRow(
            f"not JSON: {reason}", hint="one JSON object per line" + ("" if is_text else ", in UTF-8")
        ) from error
    if not isinstance(row, dict):
        raise BadRow(f"a {type(row).__name__}, not an object", hint="one JSON object per line")
    return cast("RowJson", row)


def _params_of(row: RowJson, template: PromptTemplate | None, *, may_lack_prompt: bool) -> ParamsJson:
    row_params = row.get(PARAMS_KEY, {})
    if not isinstance(row_params, dict):
        raise BadRow(f"{PARAMS_KEY} is a {type(row_params).__name__}, not an object", path=PARAMS_KEY)
    params = row_params.copy()
    if template is not None:
        if params.get("input") is not None:
            raise BadRow(
                "the row has its own responses_create_params.input, and a prompt template was given",
                hint="leave out --prompt-template, or the row's input",
                path=f"{PARAMS_KEY}.input",
            )
        try:
            params["input"] = template.items(row)
        except KeyError as error:
            raise BadRow(str(error.args[0]), hint="add the field, or change the template") from error
    elif "input" not in params:
        has_own = any(row.get(key) for key in ("messages", "prompt"))
        params["input"] = [] if may_lack_prompt and not has_own else _plain_input(row)
    tools = row.get("tools")
    if "tools" not in params and isinstance(tools, list):
        params["tools"] = [flat_tool(tool) for tool in tools]
    return params


def _plain_input(row: RowJson) -> list[ItemJson]:
    """Input items of a row with `prompt` (text or messages) or `messages`."""
    for key in ("messages", "prompt"):
        value = row.get(key)
        if isinstance(value, str):
            return [{"role": "user", "content": value, "type": "message"}]
        if isinstance(value, list) and value:
            return chat_to_items(value, path=key)
    raise BadRow(
        "no prompt: the row has neither responses_create_params.input nor prompt nor messages",
        hint=f'{{"prompt": "…"}} is enough{_fields_to_map(row)}; see docs/formats/tasks.md',
    )


def _fields_to_map(row: RowJson) -> str:
    """The row's own texts, one of which may be the prompt under another name."""
    names = [name for name, value in row.items() if isinstance(value, str) and not name.startswith("_")]
    if not names:
        return ""
    more = ", …" if len(names) > MOST_NAMES else ""
    return f", or a field under another name: --map prompt=FIELD, of {', '.join(names[:MOST_NAMES])}{more}"


def chat_to_items(messages: Sequence[Any], *, path: str = "messages") -> list[ItemJson]:
    """Chat messages as Responses items; tool calls and tool results become separate items."""
    items: list[ItemJson] = []
    for number, message in enumerate(messages):
        where = f"{path}[{number}]"
        if not isinstance(message, dict):
            raise BadRow(f"{where} is not an object", path=where)
        role, content = message.get("role"), message.get("content")
        if role == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": content}
            )
            continue
        if role not in ROLES:
            raise BadRow(
                f"{where} has role {role!r}", hint=f"one of {', '.join(ROLES)}, tool", path=f"{where}.role"
            )
        calls = message.get("tool_calls") or []
        if content is not None or not calls:
            items.append({"role": role, "content": _content_parts(content, where), "type": "message"})
        for call in calls:
            function = call.get("function", {}) if isinstance(call, dict) else {}
            arguments = function.get("arguments", "{}")
            items.append(
                {
                    "type": "function_call",
                    "call_id": call.get("id") if isinstance(call, dict) else None,
                    "name": function.get("name"),
                    "arguments": arguments
                    if isinstance(arguments, str)
                    else msgspec.json.encode(arguments).decode(),
                }
            )
    return items


def _content_parts(content: object, where: str) -> str | list[PartJson]:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRow(f"{where} has no content", hint="a text, or a list of parts", path=f"{where}.content")
    names = {"text": "input_text", "image_url": "input_image"}
    parts: list[PartJson] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url":
            image = part["image_url"]
            parts.append(
                {"type": "input_image", "image_url": image.get("url") if isinstance(image, dict) else image}
            )
        elif isinstance(part, dict):
            parts.append(cast("PartJson", {**part, "type": names.get(str(kind), kind)}))
        else:
            raise BadRow(f"{where} has a content part that is no object", path=f"{where}.content")
    return parts


def flat_tool(tool: Any) -> Any:
    """A tool in Responses form, with chat's nested `function` object flattened."""
    if isinstance(tool, dict) and isinstance(tool.get("function"), dict):
        return {"type": "function", "strict": None, **tool["function"]}
    return tool


def check_params(params: ParamsJson, *, may_lack_prompt: bool = False) -> None:
    """Raise `BadRow` unless the params are valid."""
    if params.get("stream"):
        raise BadRow(
            "stream is on", hint="leave it out: rollouts are stored whole", path=f"{PARAMS_KEY}.stream"
        )
    value = params.get("input")
    if is_empty_prompt(value):
        if may_lack_prompt:
            return
        raise BadRow(
            "the prompt is empty",
            hint="a row whose prompt an agent or environment makes needs that server: --gym-agent, --gym-head",
            path=f"{PARAMS_KEY}.input",
        )
    if isinstance(value, str):
        return
    if not isinstance(value, list):
        raise BadRow("input is neither a text nor a list of items", path=f"{PARAMS_KEY}.input")
    for number, item in enumerate(value):
        _check_item(item, f"{PARAMS_KEY}.input[{number}]")


def is_empty_prompt(value: object) -> bool:
    """Whether the prompt is empty: no text, no item, or one user message without text."""
    if isinstance(value, str):
        return not value.strip()
    if not isinstance(value, list):
        return False
    return not value or (
        len(value) == 1
        and isinstance(value[0], dict)
        and isinstance(value[0].get("content"), str)
        and not value[0]["content"].strip()
    )


def _check_item(item: Any, where: str) -> None:
    if not isinstance(item, dict):
        raise BadRow(f"{where} is not an object", path=where)
    kind = item.get("type", "message")
    if kind == "message":
        if item.get("role") not in ROLES:
            raise BadRow(
                f"{where} has role {item.get('role')!r}",
                hint=f"one of {', '.join(ROLES)}; a tool's answer is an item of type function_call_output",
                path=f"{where}.role",
            )
        if not isinstance(item.get("content"), str | list):
            raise BadRow(
                f"{where} has no content", hint="a text, or a list of parts", path=f"{where}.content"
            )
    elif kind in ("function_call", "function_call_output"):
        if not isinstance(item.get("call_id"), str):
            raise BadRow(f"{where} ({kind}) has no call_id", path=f"{where}.call_id")
    elif not isinstance(kind, str):
        raise BadRow(f"{where} has type {kind!r}", path=f"{where}.type")


def merged(row: Shape, overrides: Mapping[str, object]) -> Shape:
    """`row` updated by `overrides`, recursively for nested objects."""
    whole = dict(row)
    for key, value in overrides.items():
        under = whole.get(key)
        whole[key] = merged(under, value) if isinstance(value, Mapping) and isinstance(under, dict) else value
    return cast("Shape", whole)
