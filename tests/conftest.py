"""Settings shared by all tests: slow machines fail no property, and every hint of an error is a command that works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from rollforge.errors import RollforgeError

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

_SEEN: set[str] = set()
"""Hints that were parsed already, in this process."""


@pytest.fixture(autouse=True)
def hints_are_commands_that_parse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Parse every `rollforge …` that an error raised in this test names as the next step."""
    hints: list[str] = []
    init = RollforgeError.__init__

    def record(self: RollforgeError, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        if self.hint and "rollforge " in self.hint:
            hints.append(self.hint)

    monkeypatch.setattr(RollforgeError, "__init__", record)
    yield
    new = [hint for hint in hints if hint not in _SEEN]
    if not new:
        return
    from tests.hints import commands_in, complaint

    _SEEN.update(new)
    wrong = [told for hint in new for words in commands_in(hint) if (told := complaint(words))]
    assert not wrong, "\n".join(wrong)
