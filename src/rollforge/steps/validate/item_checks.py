"""Checks the items that prompts and responses consist of.

It is stricter than NeMo Gym's own schema, which has a gap: an item with a wrong role, without content, a chat `tool` message or
`{}` passes there as an `mcp_list_tools` item, and is sent as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rollforge.registry import did_you_mean
from rollforge.steps.validate.validation_records import Level, RowFault, is_json, kind_of, shown

ROLES = ("user", "assistant", "system", "developer")
PARTS = (
    "input_text", "input_image", "input_file", "input_audio", "input_video", "output_text", "refusal",
)  # fmt: skip
HOSTED = frozenset({
    "file_search_call", "computer_call", "computer_call_output", "web_search_call", "image_generation_call",
    "code_interpreter_call", "local_shell_call", "local_shell_call_output", "mcp_approval_request", "shell_call", "shell_call_output",
    "mcp_approval_response", "mcp_call", "custom_tool_call", "custom_tool_call_output", "apply_patch_call", "apply_patch_call_output",
    "tool_search_call", "tool_search_output", "compaction",
})  # fmt: skip


MADE_ELSEWHERE = (
    "collect accepts it only where an agent or environment makes the prompt: --gym-agent, --gym-head"
)


def check_input(value: object, path: str) -> Iterator[RowFault]:
    """Check the prompt: a text or a list of items."""
    if isinstance(value, str):
        if not value.strip():
            yield RowFault(path, "the prompt is empty", MADE_ELSEWHERE, "warning")
        return
    if not isinstance(value, list):
        yield RowFault(path, f"expected a text or a list of items, got {kind_of(value)}", _ITEM)
        return
    if not value:
        yield RowFault(path, "the prompt is empty: there is no item", MADE_ELSEWHERE, "warning")
    for number, item in enumerate(value):
        yield from check_item(item, f"{path}[{number}]")
    yield from _check_calls(value, path)


def check_item(item: object, path: str, *, odd: Level = "error") -> Iterator[RowFault]:
    """Check one item of a prompt or response.

    `odd` is the severity of malformed content that a model or its server wrote, which in a response is merely recorded fact.
    """
    if not isinstance(item, dict):
        yield RowFault(path, f"expected an object, got {kind_of(item)}", _ITEM)
        return
    if not item:
        yield RowFault(path, "the item is empty", "NeMo Gym would send it as an mcp_list_tools item")
        return
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        yield RowFault(f"{path}.type", f"expected the name of an item type, got {kind_of(kind)}", _HOLE)
    elif kind == "message":
        yield from _check_message(item, path, odd)
    elif kind == "function_call":
        yield from _check_call(item, path, odd)
    elif kind == "function_call_output":
        yield from _need(item, path, {"call_id": str})
        yield from _check_output(item.get("output"), f"{path}.output")
    elif kind == "reasoning":
        yield from _check_reasoning(item, path)
    elif kind == "mcp_list_tools":
        yield from _check_listing(item, path)
    elif kind == "item_reference":
        yield from _need(item, path, {"id": str})
    elif kind not in HOSTED:
        item_types = ["message", "function_call", "function_call_output", "reasoning", "mcp_list_tools"]
        item_types += ["item_reference", *HOSTED]
        near = did_you_mean(kind, item_types)
        yield RowFault(
            f"{path}.type", f"no such item type: {kind!r}{near}", "NeMo Gym would take it for another item"
        )


def _check_call(item: Mapping[str, object], path: str, odd: Level) -> Iterator[RowFault]:
    yield from _need(item, path, {"call_id": str, "name": str, "arguments": str})
    arguments = item.get("arguments")
    if isinstance(arguments, str) and not is_json(arguments):
        hint = "write the arguments as a JSON object; for none: {}"
        yield RowFault(f"{path}.arguments", f"is not JSON: {shown(arguments)}", hint, odd)


def _check_output(output: object, path: str) -> Iterator[RowFault]:
    """Check a tool's output: text, or parts."""
    if isinstance(output, list):
        yield from _check_parts(output, path, "warning")
    elif not isinstance(output, str):
        got = "missing" if output is None else f"got {kind_of(output)}"
        yield RowFault(
            path, f"expected a text or a list of parts, {got}", f"write values as JSON text; {_HOLE}"
        )


def _check_reasoning(item: Mapping[str, object], path: str) -> Iterator[RowFault]:
    summary = item.get("summary")
    if not isinstance(summary, list):
        got = "missing" if summary is None else f"got {kind_of(summary)}"
        yield RowFault(f"{path}.summary", f"expected a list of summary texts, {got}", "for none: []")
        return
    for number, part in enumerate(summary):
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            hint = 'write {"type": "summary_text", "text": …}'
            yield RowFault(f"{path}.summary[{number}]", f"expected a summary text, got {shown(part)}", hint)


def _check_listing(item: Mapping[str, object], path: str) -> Iterator[RowFault]:
    """Check a tool list of an MCP server. NeMo Gym accepts any item as one, so it must be recognisable as intended."""
    yield from _need(item, path, {"server_label": str})
    if not isinstance(item.get("tools"), list):
        got = "missing" if item.get("tools") is None else f"got {kind_of(item['tools'])}"
        yield RowFault(f"{path}.tools", f"expected the list of the server's tools, {got}", "for none: []")


def _check_message(item: Mapping[str, object], path: str, odd: Level) -> Iterator[RowFault]:
    role = item.get("role")
    if role == "tool":
        yield RowFault(
            f"{path}.role", "a chat `tool` message is no Responses item",
            'write {"type": "function_call_output", "call_id": …, "output": …}',
        )  # fmt: skip
    elif role not in ROLES:
        got = "missing" if role is None else f"got {shown(role)}"
        near = did_you_mean(str(role), list(ROLES)) if role is not None else ""
        yield RowFault(f"{path}.role", f"expected one of {', '.join(ROLES)}, {got}{near}", _HOLE)
    if item.get("tool_calls"):
        yield RowFault(
            f"{path}.tool_calls",
            "chat tool calls are no part of a Responses message",
            "write each as a function_call item",
        )
    content = item.get("content")
    if content is None:
        if not item.get("tool_calls"):
            yield RowFault(f"{path}.content", "missing: expected a text or a list of parts", _HOLE)
    elif isinstance(content, list):
        yield from _check_parts(content, f"{path}.content", odd)
        if role in ("user", "system", "developer"):
            yield from _check_speaker(content, f"{path}.content", role, odd)
    elif not isinstance(content, str):
        yield RowFault(
            f"{path}.content", f"expected a text or a list of parts, got {kind_of(content)}", _HOLE
        )
    elif not content.strip() and role == "user":
        yield RowFault(f"{path}.content", "the message is empty", "leave it out", "warning")


_ITEM = 'an item is {"role": "user", "content": "…"}'
_PART = 'write {"type": "input_text", "text": …}'
_HOLE = "NeMo Gym's schema lets this pass as an mcp_list_tools item"
_CHAT_PART = "that is a chat part; here it is input_text or input_image, and NeMo Gym would take the item for an mcp_list_tools one"


def _check_parts(parts: list[object], path: str, odd: Level) -> Iterator[RowFault]:
    if not parts:
        yield RowFault(path, "the content is empty: there is no part", _PART, odd)
    for number, part in enumerate(parts):
        part_path = f"{path}[{number}]"
        if not isinstance(part, dict):
            yield RowFault(part_path, f"expected a part, got {kind_of(part)}", _PART)
            continue
        yield from _check_part(part, part_path)


_TEXT_OF = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of text parts → the key of their text."""


def _check_part(part: Mapping[str, object], path: str) -> Iterator[RowFault]:
    kind = part.get("type")
    if kind is None:
        yield RowFault(f"{path}.type", "missing: expected a part type", _HOLE)
    elif kind not in PARTS:
        near = did_you_mean(str(kind), list(PARTS))
        hint = _CHAT_PART if kind in ("text", "image_url") else _HOLE
        yield RowFault(f"{path}.type", f"no such part type: {shown(kind)}{near}", hint)
    elif kind in _TEXT_OF and not isinstance(part.get(_TEXT_OF[kind]), str):
        name = _TEXT_OF[kind]
        yield RowFault(f"{path}.{name}", f"expected a text, got {kind_of(part.get(name))}", _HOLE)
    elif kind == "input_image" and not any(
        isinstance(part.get(name), str) for name in ("image_url", "file_id")
    ):
        got = f"got {kind_of(part['image_url'])}" if part.get("image_url") is not None else "missing"
        yield RowFault(
            f"{path}.image_url", f"expected the image's address as a text, {got}", "or give its file_id"
        )


def _check_speaker(parts: list[object], path: str, role: str, odd: Level) -> Iterator[RowFault]:
    """Check content that only the assistant may have."""
    for number, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("output_text", "refusal"):
            text = f"{kind} is a part of the assistant's messages, this one is the {role}'s"
            yield RowFault(f"{path}[{number}].type", text, "write it as input_text", odd)


def _check_calls(items: list[object], path: str) -> Iterator[RowFault]:
    """Check that every tool output answers an earlier call."""
    called: set[str] = set()
    for number, item in enumerate(items):
        call_id = item.get("call_id") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(call_id, str):
            continue
        if item.get("type") == "function_call":
            called.add(call_id)
        elif item.get("type") == "function_call_output" and call_id not in called:
            field = f"{path}[{number}].call_id"
            yield RowFault(
                field,
                f"no function_call before it has call_id {call_id!r}",
                "put the call before its output",
                "warning",
            )


def _need(item: Mapping[str, object], path: str, fields: dict[str, type]) -> Iterator[RowFault]:
    for name, kind in fields.items():
        if not isinstance(item.get(name), kind):
            got = "missing" if item.get(name) is None else f"got {kind_of(item[name])}"
            hint = "arguments are a text that holds JSON" if name == "arguments" else _HOLE
            yield RowFault(f"{path}.{name}", f"expected a text, {got}", hint)
