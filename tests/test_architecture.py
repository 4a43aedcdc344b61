"""A module imports only from rows above it; members of a family never import another family; steps never import steps."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "rollforge"

ROWS = [
    {"errors", "records", "installed"},
    {
        "interrupts",
        "registry",
        "stats",
        "_groups",
        "at_k",
        "group_yield",
        "loop",
        "sandbox",
        "metrics",
        "tasks",
        "store",
    },
    {"rollouts", "index", "endpoint", "simulate", "experience", "buffer", "conversations"},
    {"agents", "executors", "verifiers", "checks", "recipes", "exporters", "sinks", "operators"},
    {"steps"},
    {"config", "testing", "api"},
    {"cli"},
]
"""Units of the package, lowest first. A unit may import its own row's tools and everything in the rows above it here."""

TOOL_ROWS = 3
"""The first rows are nouns and tools, which may use each other; from the families on, neighbours are strangers."""

DRAWERS = {"utils", "util", "common", "helpers", "misc", "managers"}

MODULES = sorted(path for path in SOURCE.rglob("*.py") if path.name != "__main__.py")


def unit_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def row_of(unit: str) -> int:
    return next(number for number, row in enumerate(ROWS) if unit in row)


def imports_of(path: Path) -> set[str]:
    """Dotted names under `rollforge` that the module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.removeprefix("rollforge.") for name in found if name.startswith("rollforge.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_upwards_only(path: Path) -> None:
    unit = unit_of(path)
    if unit == "__init__":
        return
    own = row_of(unit)
    for name in imports_of(path):
        target = name.split(".")[0]
        if target in ("__version__", unit):
            continue
        row = row_of(target)
        is_allowed = row < own or (row == own and own < TOOL_ROWS)
        assert is_allowed, f"{path.relative_to(SOURCE)} imports {name}"


def test_steps_never_import_steps() -> None:
    for path in (SOURCE / "steps").rglob("*.py"):
        step = path.relative_to(SOURCE / "steps").parts[0].removesuffix(".py")
        for name in imports_of(path):
            parts = name.split(".")
            if parts[0] == "steps" and len(parts) > 1:
                assert parts[1] == step, f"{path.relative_to(SOURCE)} imports {name}"


def test_no_two_units_import_each_other_when_loaded() -> None:
    edges = set()
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rollforge."):
                edges.add((unit_of(path), node.module.split(".")[1]))
    mutual = {(a, b) for a, b in edges if a < b and (b, a) in edges}
    assert not mutual


def test_only_the_shell_prints_or_exits() -> None:
    for path in MODULES:
        if unit_of(path) in ("cli", "simulate"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "sys.exit", "exit"), (
                    f"{path.relative_to(SOURCE)}:{node.lineno}"
                )


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path)
        for path in MODULES
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_there_are_no_drawers() -> None:
    assert not [path for path in SOURCE.rglob("*") if path.stem in DRAWERS]
