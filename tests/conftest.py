"""Settings shared by all tests: slow machines fail no property, and every hint of an error is a command that works."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from rollforge.errors import RollforgeError

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


def _import_all(package: str) -> None:
    """Import a package and its modules, except those that need another package, where it is installed."""
    if importlib.util.find_spec(package) is None:
        return
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if "trio" not in module.name:
            importlib.import_module(module.name)


# pytest parses and rewrites every module of a package that brings a plugin when the module is first imported. anyio is
# one, and the MCP client imports parts of it in the middle of a test. On CPython 3.11.7 `ast.parse` then fails with "AST
# constructor recursion depth mismatch" if the garbage collector reports an unclosed socket meanwhile. So import it now.
_import_all("anyio")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how much the hostile tests tried: kills, inputs, programs, by topic."""
    tried: dict[str, Counter[str]] = {}
    for report in terminalreporter.stats.get("", []):
        if (
            "/hostile/" not in report.nodeid or report.when != "teardown"
        ):  # the last report of a test knows all its counts
            continue
        topic = report.nodeid.partition("::")[0].rpartition("/test_")[2].removesuffix(".py")
        counts = [count for name, count in report.user_properties if name == "tried"]
        for count in counts or [{"cases": 1}]:
            tried.setdefault(topic, Counter()).update(count)
        for name, line in report.user_properties:
            if name == "said":
                terminalreporter.write_line(line)
    for topic, counted in sorted(tried.items()):
        terminalreporter.write_line(
            f"tried {topic}: " + ", ".join(f"{n:,} {what}" for what, n in counted.items())
        )
    if tried:
        sums = sum(tried.values(), Counter())
        terminalreporter.write_line("tried in all: " + ", ".join(f"{n:,} {what}" for what, n in sums.items()))


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
    wrong = [output for hint in new for words in commands_in(hint) if (output := complaint(words))]
    assert not wrong, "\n".join(wrong)
