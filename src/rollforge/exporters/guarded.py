"""This module is an exporter that writes call arguments as objects for as long as the trainer's loader leaves them whole.

Every arguments object is shown to an `ArgumentsGuard` before it is written; the first one that would not survive changes the form of
the whole data set. A slip of the model in one call (arguments that are no object at all) costs only its own row.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, ClassVar, Never

from rollforge.exporters.base import Exporter, FormChanged
from rollforge.exporters.examples import Example, Prompt
from rollforge.exporters.guard import LATE, SLIPS, ArgumentsGuard
from rollforge.exporters.messages import Inexpressible, Message
from rollforge.exporters.shape import Shaping


class GuardedExporter(Exporter):
    """An exporter whose trainer reads JSON with a loader that infers types."""

    unguarded: ClassVar[frozenset[str]] = frozenset()
    """Columns of messages that are read by a loader which infers nothing."""

    def __init__(self, shape_as: Shaping | None = None) -> None:
        super().__init__(shape_as)
        self._guards: dict[str, ArgumentsGuard] = defaultdict(ArgumentsGuard)
        self._position = 0
        self._has_numbers = False

    def start_over(self) -> None:
        super().start_over()
        self._guards.clear()
        self._position = 0

    def line(self, example: Example) -> bytes:
        self._has_numbers = isinstance(example, Prompt)
        line = super().line(example)
        self._position += len(line) + 1
        return line

    def messages(
        self, messages: list[Message], tools: bytes | None = None, *, column: str = "messages"
    ) -> list[Any]:
        if self.shape_as.arguments == "object" and column not in self.unguarded:
            self._watch(messages, column)
        return super().messages(messages, tools, column=column)

    def _watch(self, messages: list[Message], column: str) -> None:
        position = self._position if self.is_first_file else LATE
        for message in messages:
            if not message.calls:
                continue
            guard = self._guards[column]
            guard.has_risky_number = guard.has_risky_number or self._has_numbers
            for call in message.calls:
                damage = guard.damage(call.arguments, position)
                if damage is None:
                    call.is_checked = True
                else:
                    self._refuse(damage)

    def _refuse(self, damage: str) -> Never:
        """Leave the row out for the model's own slip; else change the form of the whole data set, where there is another."""
        if damage in SLIPS:
            raise Inexpressible(damage)
        if self.fallback is None:
            raise Inexpressible(f"{damage}; the template takes no other form")
        raise FormChanged(self.fallback, damage)
