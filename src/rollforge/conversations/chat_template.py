"""Chat templates: pick the message form that a template takes, and prove that each row renders.

Some templates crash on string arguments, some encode them twice, some drop reasoning or tool calls silently. A probe conversation
shows which form renders completely; then every row is rendered before it is written. Nothing is tokenized. Needs `jinja2`
(`pip install 'rollforge[template]'`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from rollforge.conversations.messages import ChatMessage, FunctionCall, Inexpressible
from rollforge.conversations.shape import (
    Arguments,
    Keys,
    Reasoning,
    Shaping,
    keys_used,
    shape,
    tools_in_system,
)
from rollforge.errors import UsageError
from rollforge.records import JsonFields, JsonObject

_PROBE = [
    ChatMessage("user", "probe question"),
    ChatMessage(
        "assistant",
        "",
        "probe thought",
        [FunctionCall("call00001", "probe_call", '{"probe_key": "probe value"}')],
    ),
    ChatMessage("tool", "probe result", call_id="call00001", name="probe_call"),
    ChatMessage("assistant", "probe answer", "probe second thought"),
]
_PLAIN_PROBE = [_PROBE[0], _PROBE[-1]]
_TOOLS = (
    b'[{"type":"function","function":{"name":"probe_call","description":"a probe","parameters":{"type":"object",'
    b'"properties":{"probe_key":{"type":"string","description":"a key"}}}}}]'
)


class Template:
    """A chat template."""

    def __init__(self, source: str, name: str) -> None:
        self.name = name
        self._template = _environment().from_string(_GENERATION.sub("", source))

    def render(self, messages: list[JsonFields], tools: list[Any] | None = None) -> str:
        """Render the conversation as the trainer does.

        Raises:
            Inexpressible: the template refuses it.
        """
        try:
            text: str = self._template.render(
                messages=messages,
                tools=tools,
                add_generation_prompt=False,
                bos_token="",
                eos_token="",
                pad_token="",
            )
        except _template_errors() as error:
            raise Inexpressible(f"the template refuses it: {str(error).splitlines()[0][:120]}") from error
        return text


_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
"""Jinja markers for loss masks; removing them does not change the rendered text."""


def _template_errors() -> tuple[type[Exception], ...]:
    """Exceptions of a template: Jinja's own, `raise_exception` and Python's; the sandbox runs no other code."""
    from jinja2 import TemplateError

    return (
        TemplateError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    )


def _environment() -> Any:
    try:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise UsageError("--template needs jinja2", hint="pip install 'rollforge[template]'") from error

    def refuse(message: str) -> NoReturn:
        raise ValueError(message)

    def to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **_: object) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime(2026, 1, 1).strftime(
        form
    )  # the same every day
    return environment


def template_file(path: str) -> Path:
    """The file that `--template` names: the file itself, or the chat template inside a model's folder."""
    file = Path(path)
    if file.is_dir():
        names = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
        file = next((file / name for name in names if (file / name).is_file()), file / names[0])
    if not file.is_file():
        raise UsageError(
            f"--template {path}: no chat template there", hint="give a .jinja file or tokenizer_config.json"
        )
    return file


def load_template(path: str) -> Template:
    """The template in a file, a `tokenizer_config.json`, or a model's folder."""
    file = template_file(path)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        template = msgspec.json.decode(text).get("chat_template")
        if isinstance(template, list):
            by_name = {item["name"]: item["template"] for item in template}
            template = by_name.get("tool_use") or by_name.get("default")
        if not isinstance(template, str):
            raise UsageError(
                f"{file}: it has no chat_template", hint="give the template itself, a .jinja file"
            )
        text = template
    return Template(text, file.name)


class Picked(NamedTuple):
    """The message form chosen for a template."""

    shaping: Shaping
    fallback: Arguments | None
    """An alternative form of arguments that the template also renders completely, if any."""
    shows_tools: bool
    """Whether the template renders calls and their results."""


def pick_shaping(template: Template, own: Shaping, fixed: dict[str, str]) -> Picked:
    """The message form closest to the exporter's own that the template renders completely.

    Args:
        fixed: forms that the user chose; they are checked, not changed.
    """
    arguments: list[Arguments] = ["text"] if own.arguments == "text" else ["object", "string", "text"]
    keys: list[Keys] = (
        [own.keys, "present"] if own.keys == "uniform" and own.arguments != "text" else [own.keys]
    )
    reasonings: list[Reasoning] = [own.reasoning, "think", "drop"]
    candidates = []
    for form, keyed, thought in product(arguments, keys, reasonings):
        candidate = msgspec.structs.replace(own, arguments=form, keys=keyed, reasoning=thought)
        if form == "text":
            candidate = msgspec.structs.replace(candidate, tools="system")
        candidates.append(msgspec.structs.replace(candidate, **fixed))
    for probe in (_PROBE, _PLAIN_PROBE):  # a template without tools still takes rollouts without calls
        fitting = [candidate for candidate in candidates if _shows(template, candidate, probe)]
        if fitting:
            others = {candidate.arguments for candidate in fitting}
            fallback = next((form for form in _FALLBACKS if form in others), None)
            return Picked(fitting[0], fallback, probe is _PROBE)
    raise UsageError(
        f"the template {template.name} shows no conversation whole in any form that fits",
        hint="leave --arguments, --reasoning, --tools and --keys out to let the template pick",
    )


def _shows(template: Template, shaping: Shaping, probe: list[ChatMessage]) -> bool:
    """Whether the rendered probe is complete, with nothing encoded twice."""
    has_calls = any(message.calls for message in probe)
    messages, tools = probe, json.loads(_TOOLS) if has_calls else None
    if shaping.tools == "system" and has_calls:
        messages, tools = tools_in_system(messages, _TOOLS, as_text=shaping.arguments == "text"), None
    rows = json.loads(msgspec.json.encode(shape(messages, shaping, keys_used(messages, shaping))))
    try:
        text = template.render(rows, tools)
    except Inexpressible:
        return False
    wanted = ["probe question", "probe answer"]
    if has_calls:
        wanted += ["probe_key", "probe value", "probe result"]
    if shaping.reasoning != "drop":
        wanted.append("probe second thought")
    shown = text.partition("probe question")[
        2
    ]  # calls must show in the conversation, not only in the schemas before it
    return (
        all(part in (text if part == "probe question" else shown) for part in wanted)
        and '\\"probe_key' not in shown
    )


def conversations(row: JsonObject) -> Iterator[list[JsonObject]]:
    """Every conversation in a written row, for rendering."""
    context = row.get("prompt") or row.get("context") or row.get("input") or []
    if "messages" in row:
        context = row["messages"]
    if not isinstance(context, list):
        return
    answers = [row[name] for name in ("chosen", "rejected", "completion") if name in row]
    answers += [side["completion"] for side in row.get("completions", [])]
    if not answers:
        yield context
    for answer in answers:
        yield context + (answer if isinstance(answer, list) else [answer])


_FALLBACKS: tuple[Arguments, ...] = ("string", "text")
"""Forms of arguments that every loader preserves."""


class Prover:
    """Renders every row with the template before it is written."""

    def __init__(self, template: Template, *, shows_tools: bool = True) -> None:
        self._template = template
        self._shows_tools = shows_tools

    def prove(self, row: JsonObject) -> None:
        """Raise `Inexpressible` when the template refuses the row, or omits its last message."""
        tools = row.get("tools")
        tools = json.loads(tools) if isinstance(tools, str) and tools else tools or None
        for messages in conversations(row):
            text = self._template.render(messages, tools)
            if not self._shows_tools and any(m["role"] == "tool" or m.get("tool_calls") for m in messages):
                raise Inexpressible("the template shows no tool calls and results")
            last = messages[-1]
            last_text = last["content"] if isinstance(last["content"], str) else ""
            tail = last_text.strip().rpartition("\n")[2].strip()
            if tail and tail not in text:
                raise Inexpressible("the template does not show the last message")
