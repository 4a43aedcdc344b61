"""Writes message lists and tool schemas of a row in the dataset's form."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from rollforge.conversations.messages import ChatMessage
from rollforge.conversations.shape import keys_used, shape, shape_for_lines, tools_in_system
from rollforge.exporters.form import Form

_NO_KEYS: frozenset[str] = frozenset()


class RowWriter:
    """Writes messages and tools; columns call it while they build a row."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.used: set[str] = set()
        """Optional parts that the current row uses: `tools`, or `column.key` of a message."""
        self._prompt: tuple[list[ChatMessage], bytes | None, list[msgspec.Raw], frozenset[str]] | None = None
        self._tools: tuple[bytes, msgspec.Raw] | None = None

    def messages(self, messages: list[ChatMessage], column: str, tools: bytes | None = None) -> list[Any]:
        """Messages in this form; `tools` go into the system text if the form has them there."""
        shaping = self.form.shaping
        if shaping.tools == "system" and tools is not None:
            messages = tools_in_system(messages, tools, as_text=shaping.arguments == "text")
        keys = self.form.keys.get(column, _NO_KEYS)
        rows: list[Any]
        if self.form.is_columnar:
            rows, used = shape(messages, shaping, keys), keys_used(messages, shaping)
        else:
            rows, used = shape_for_lines(messages, shaping, keys)
        if used:
            self.used |= qualified(column, used)
        return rows

    def prompt(self, prompt: list[ChatMessage], column: str, tools: bytes | None = None) -> list[Any]:
        """The messages of a prompt. The rollouts of a task share their prompt, so its encoded lines are cached."""
        if self.form.is_columnar:
            return self.messages(prompt, column, tools)
        cached_prompt = self._prompt
        if cached_prompt is None or cached_prompt[0] is not prompt or cached_prompt[1] is not tools:
            before, self.used = self.used, set()
            rows = self.messages(prompt, column, tools)
            encoded = [msgspec.Raw(msgspec.json.encode(row)) for row in rows]
            cached_prompt = self._prompt = (prompt, tools, encoded, frozenset(self.used))
            self.used |= before
        else:
            self.used |= cached_prompt[3]
        return cached_prompt[2]

    def tools(self, tools: bytes | None) -> object:
        """The value of a `tools` column: JSON text, a list, or null."""
        shaping = self.form.shaping
        if tools is None or shaping.tools == "system":
            return None
        self.used.add("tools")
        if shaping.tools != "string":
            return msgspec.Raw(tools)
        if self.form.is_columnar:
            return tools.decode()
        if self._tools is None or self._tools[0] is not tools:
            self._tools = (tools, msgspec.Raw(msgspec.json.encode(tools.decode())))
        return self._tools[1]


@cache
def qualified(column: str, keys: frozenset[str]) -> frozenset[str]:
    """Message keys written as `column.key`."""
    return frozenset(f"{column}.{key}" for key in keys)
