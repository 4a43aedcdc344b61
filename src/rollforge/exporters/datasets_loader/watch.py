"""Watches rows before they are written: the keys that their messages need, and values that the loader would damage.

The watch is a row writer, so it sees exactly the messages and tools that the exporter's columns write. When the loader would
damage a value, the watch changes the form of the whole dataset from there on and says why. A mistake of the model in one call
(arguments that are no JSON object) affects only its own row, and only while arguments are objects.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rollforge.conversations.messages import NOT_AN_OBJECT, ChatMessage, Inexpressible, is_object
from rollforge.conversations.shape import Arguments, keys_used
from rollforge.exporters.base import Exporter
from rollforge.exporters.datasets_loader.call_arguments import (
    LATE,
    ROUNDED,
    SLIPS,
    ArgumentsGuard,
    SharedRounding,
)
from rollforge.exporters.datasets_loader.times import TimesWatch
from rollforge.exporters.examples import Example, Kind, Prompt, Scored
from rollforge.exporters.form import Form
from rollforge.exporters.writer import RowWriter, qualified


class LoaderWatch(RowWriter):
    """A row writer that writes nothing and records what it sees."""

    def __init__(self, exporter: Exporter, kind: Kind, form: Form, fallback: Arguments | None) -> None:
        """`fallback` is the form of arguments used when the loader would damage objects; None if there is no other form."""
        super().__init__(form)
        self._exporter, self._kind, self._fallback = exporter, kind, fallback
        self._is_inferred = exporter.is_inferred(kind) and not form.is_columnar
        self._is_guarded = self._is_inferred and exporter.keeps_arguments
        self._shared = SharedRounding(has_risky_number=kind == "prompt")
        self._guards: dict[str, ArgumentsGuard] = {}
        self._first_keys: dict[str, frozenset[str]] = {}
        """Column → the optional keys of its first message."""
        self._checked_tools: bytes | None = None
        self._times = TimesWatch()
        self.times: str | None = None
        """A field whose texts all look like times in some file, if any."""
        self.position = 0
        """Byte of the current file at which the next row would start; `LATE` after the first file."""
        self.slip: str | None = None
        """Why the current row is inexpressible while arguments are objects, if it is."""
        self._builds = False
        self._plain_prompt: list[ChatMessage] | None = None
        """The last prompt, if a second look at it would find nothing new."""

    def look(self, example: Example, limit: int) -> int:
        """Examine one example; returns the size of its line, or 0 if the size is not needed.

        Args:
            limit: positions beyond it need no size.

        Raises:
            Inexpressible: with the reason to count.
        """
        self.used, self.slip = set(), None
        if isinstance(example, Prompt | Scored):
            self.used.update(name for name, value in example.numbers.items() if value is not None)
        if isinstance(example, Scored) and example.tokens:
            self.used.add("tokens")
        is_measured = self._is_inferred and self.position <= limit
        self._builds = is_measured or (self._is_inferred and not self._times.is_done)
        if not self._builds:
            if not (self._exporter.has_task_rows and isinstance(example, Prompt)):
                self._exporter.row(example, self._kind, self)
            return 0
        line = self._exporter.line(example, self._kind, self)
        if self.slip is not None:
            return 0
        if not self._times.is_done:
            self._times.look(msgspec.json.decode(line))
        if self.position <= limit:
            self.position += len(line) + 1
        return len(line) + 1

    def end_file(self) -> None:
        """Record the end of a file: the loader infers types from the first file only."""
        self.times = self.times or self._times.path
        self._times = TimesWatch()
        self.position = LATE

    def messages(self, messages: list[ChatMessage], column: str, tools: bytes | None = None) -> list[Any]:
        if self._is_guarded:
            if self.form.shaping.keys == "present" and not self._shared.has_json:
                self._watch_keys(messages, column)
            if self.form.shaping.arguments == "object":
                self._watch_arguments(messages, column)
        if self._builds and self.slip is None:
            return super().messages(messages, column, tools)
        if self.form.shaping.arguments != "string" and self.slip is None:
            for message in messages:
                for call in message.calls:
                    if not call.is_checked and not is_object(call.arguments):
                        raise Inexpressible(NOT_AN_OBJECT)
        if used := keys_used(messages, self.form.shaping):
            self.used |= qualified(column, used)
        return []

    def prompt(self, prompt: list[ChatMessage], column: str, tools: bytes | None = None) -> list[Any]:
        if prompt is self._plain_prompt and not self._builds:
            return []
        before = len(self.used)
        rows = self.messages(prompt, column, tools)
        # Every row has its own faults, so that only a prompt without calls, and without any optional key, is seen once.
        is_plain = len(self.used) == before and not any(message.calls for message in prompt)
        self._plain_prompt = prompt if is_plain else None
        return rows

    def tools(self, tools: bytes | None) -> object:
        is_list = self._is_guarded and self.form.shaping.tools == "list"
        if is_list and tools is not None and tools is not self._checked_tools:
            if (damage := self._damage("tools", f'{{"tools": {tools.decode()}}}')) is not None:
                self._change(damage.replace("arguments", "tools"), tools="string")
            self._checked_tools = tools
        return super().tools(tools)

    def _damage(self, column: str, text: str) -> str | None:
        guard = self._guards.get(column)
        if guard is None:
            guard = self._guards[column] = ArgumentsGuard(self._shared)
        return guard.damage(text, self.position)

    def _watch_arguments(self, messages: list[ChatMessage], column: str) -> None:
        if self.slip is not None:
            return
        for message in messages:
            for call in message.calls:
                damage = self._damage(column, call.arguments)
                if damage is None:
                    call.is_checked = True
                elif damage in SLIPS:
                    self.slip = damage
                    return
                else:
                    self._change_arguments(damage)
                    return

    def _watch_keys(self, messages: list[ChatMessage], column: str) -> None:
        """Detect messages with different keys, which also make a `Json` column, whatever their calls contain."""
        for message in messages:
            keys = keys_used([message], self.form.shaping)
            if keys != self._first_keys.setdefault(column, keys):
                self._shared.has_json = True
                if self._shared.has_risky_number:
                    self._keep_numbers()
                return

    def _keep_numbers(self) -> None:
        """Change the form of values with a number that would be rounded because messages have different keys."""
        if self._kind == "prompt":
            self._change("a number beside the messages would be rounded by the loader", keys="uniform")
        elif "tools" in self._guards and self._guards["tools"].has_risky_number:
            self._change(ROUNDED.replace("arguments", "tools"), tools="string")
        else:
            self._change_arguments(ROUNDED)

    def _change_arguments(self, damage: str) -> None:
        if self._fallback is None:
            raise Inexpressible(f"{damage}; the template takes no other form")
        self._change(damage, arguments=self._fallback)

    def _change(self, reason: str, **changed: str) -> None:
        """Change the form of the whole dataset."""
        shaping = msgspec.structs.replace(self.form.shaping, **changed)
        if shaping == self.form.shaping:
            return
        if shaping.arguments == "text":
            shaping = msgspec.structs.replace(shaping, tools="system")
        notes = tuple(f"{name} are written as {value}: {reason}" for name, value in changed.items())
        self.form = msgspec.structs.replace(self.form, shaping=shaping, changes=(*self.form.changes, *notes))
