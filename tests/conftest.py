"""Settings shared by all tests: a busy machine must not fail a property for being slow. Counts what hostile tests tried."""

from __future__ import annotations

from collections import Counter
from pathlib import PurePosixPath

import pytest
from hypothesis import settings

settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many hostile inputs were tried, by topic: the file's name in `tests/hostile`."""
    tests, inputs = Counter[str](), Counter[str]()
    for report in terminalreporter.stats.get("passed", []) + terminalreporter.stats.get("failed", []):
        path = PurePosixPath(report.nodeid.partition("::")[0])
        if report.when != "call" or path.parent.name != "hostile":
            continue
        topic = path.stem.removeprefix("test_")
        tests[topic] += 1
        inputs[topic] += sum(count for name, count in report.user_properties if name == "tried") or 1
    if tests:
        terminalreporter.section("hostile inputs tried")
        for topic in sorted(tests):
            terminalreporter.line(f"{topic:<28} {inputs[topic]:>9,} in {tests[topic]} tests")
        terminalreporter.line(f"{'all':<28} {inputs.total():>9,} in {tests.total()} tests")
