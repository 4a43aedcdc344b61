"""This module is an exporter that keeps the form it was asked for as long as the trainer's loader leaves its rows whole.

Every arguments object, and every list of tools, is shown to an `ArgumentsGuard` before it is written; the first one that would not
survive changes the form of the whole data set. A slip of the model in one call (arguments that are no object at all) costs only
its own row.
"""

from __future__ import annotations

from typing import Any, ClassVar, Never

from rollforge.exporters.base import Exporter, FormChanged
from rollforge.exporters.examples import Example, Prompt
from rollforge.exporters.guard import LATE, ROUNDED, SLIPS, ArgumentsGuard, Beside
from rollforge.exporters.messages import Inexpressible, Message
from rollforge.exporters.shape import Shaping, keys_used


class GuardedExporter(Exporter):
    """An exporter whose trainer reads JSON with a loader that infers types."""

    unguarded: ClassVar[frozenset[str]] = frozenset()
    """Columns that are read by a loader which infers nothing."""

    def __init__(self, shape_as: Shaping | None = None) -> None:
        super().__init__(shape_as)
        self._has_numbers = False
        """The row has reward statistics beside its messages."""
        self._forget()

    def _forget(self) -> None:
        self._beside = Beside()
        self._guards: dict[str, ArgumentsGuard] = {}
        self._message_keys: dict[str, frozenset[str]] = {}
        """Column → the optional keys of its first message."""
        self._watched_tools: bytes | None = None
        self._position = 0

    def start_over(self) -> None:
        super().start_over()
        self._forget()

    def line(self, example: Example) -> bytes:
        self._has_numbers = isinstance(example, Prompt)
        self._beside.has_risky_number |= self._has_numbers
        line = super().line(example)
        self._position += len(line) + 1
        return line

    def messages(
        self, messages: list[Message], tools: bytes | None = None, *, column: str = "messages"
    ) -> list[Any]:
        if column not in self.unguarded and not self.is_columnar:
            if self.shape_as.keys == "present" and not self._beside.has_json:
                self._watch_keys(messages, column)
            if self.shape_as.arguments == "object":
                self._watch(messages, column)
        return super().messages(messages, tools, column=column)

    def tools(self, tools: bytes | None) -> object:
        is_list = self.shape_as.tools == "list" and "tools" not in self.unguarded
        if is_list and tools is not None and tools is not self._watched_tools:
            if (damage := self._damage("tools", f'{{"tools": {tools.decode()}}}')) is not None:
                raise FormChanged(damage.replace("arguments", "tools"), tools="string")
            self._watched_tools = tools
        return super().tools(tools)

    def _damage(self, column: str, text: str) -> str | None:
        guard = self._guards.get(column)
        if guard is None:
            guard = self._guards[column] = ArgumentsGuard(self._beside)
        return guard.damage(text, self._position if self.is_first_file else LATE)

    def _watch(self, messages: list[Message], column: str) -> None:
        for message in messages:
            if not message.calls:
                continue
            for call in message.calls:
                damage = self._damage(column, call.arguments)
                if damage is None:
                    call.is_checked = True
                else:
                    self._refuse(damage)

    def _watch_keys(self, messages: list[Message], column: str) -> None:
        """Messages with different keys are a `Json` column too, whatever their calls look like."""
        for message in messages:
            keys = keys_used([message], self.shape_as)
            if keys != self._message_keys.setdefault(column, keys):
                self._beside.has_json = True
                if self._beside.has_risky_number:
                    self._give_way()
                return

    def _give_way(self) -> Never:
        """Change the form of what holds a number that messages with different keys would have rounded."""
        if self._has_numbers:
            raise FormChanged("a number beside the messages would be rounded by the loader", keys="uniform")
        if "tools" in self._guards and self._guards["tools"].has_risky_number:
            raise FormChanged(ROUNDED.replace("arguments", "tools"), tools="string")
        self._refuse(ROUNDED)

    def _refuse(self, damage: str) -> Never:
        """Leave the row out for the model's own slip; else change the form of the whole data set, where there is another."""
        if damage in SLIPS:
            raise Inexpressible(damage)
        if self.fallback is None:
            raise Inexpressible(f"{damage}; the template takes no other form")
        raise FormChanged(damage, arguments=self.fallback)
