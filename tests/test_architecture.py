"""A module imports only from rows above it; members of a family never import another family; steps never import steps."""

from __future__ import annotations

import ast

import pytest

from tests.module_graph import (
    MODULES,
    PACKAGES,
    SOURCE,
    cycle,
    door_of,
    modules_imported_by,
    names_imported_by,
    parsed,
    past_the_door,
    public_classes,
)

ROWS = [
    {"errors", "records"},
    {
        "interrupts",
        "native",
        "typed_rows",
        "registry",
        "stats",
        "intervals",
        "_groups",
        "at_k",
        "group_yield",
        "loop",
        "sandbox",
        "metrics",
        "tasks",
        "conversations",
        "charts",
        "visible",
        "web_guard",
        "redaction",
        "store",
    },
    {"rollouts", "labels", "index", "endpoint", "simulate", "experience", "buffer", "conversations"},
    {"agents", "executors", "verifiers", "checks", "recipes", "exporters", "sinks", "operators"},
    {"steps"},
    {"config", "testing", "reports"},
    {"api", "view"},
    {"cli"},
]
"""Units of the package, lowest first. A unit may import its own row's tools and everything in the rows above it here."""

TOOL_ROWS = 3
"""The first rows are nouns and tools, which may use each other; from the families on, neighbours are strangers."""

DRAWERS = {"utils", "util", "common", "helpers", "misc", "managers"}

SIDE_DOORS = {
    "endpoint": {"breaker", "client", "faults", "model", "time_limit"},
    "experience": {"rollouts"},
    "metrics": {"evaluation", "fold", "ladder", "names", "profiles"},
    "simulate": {"options", "server", "service", "tasks"},
    "steps.collect": {"forecast", "live", "machinery", "options", "plan"},
    "steps.evaluation": {"compare"},
    "steps.metrics": {"records"},
    "steps.prepare": {"settings"},
    "steps.profile": {"records", "write"},
    "steps.verify": {"options", "tally"},
    "store": {"atomic", "digest", "files", "find", "lock", "manifest", "reading", "verifier_failures"},
    "tasks": {"reading"},
    "verifiers.probes": {"report"},
}
"""Modules that others may import although their package has a door. Nothing is added here without a reason."""


def unit_of(name: str) -> str:
    return name.split(".")[0]


def row_of(unit: str) -> int:
    return next(number for number, row in enumerate(ROWS) if unit in row)


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_point_upwards_only(name: str) -> None:
    unit = unit_of(name)
    own = row_of(unit)
    for target in names_imported_by(name):
        other = unit_of(target)
        if other in ("__version__", unit):
            continue
        row = row_of(other)
        is_allowed = row < own or (row == own and own < TOOL_ROWS)
        assert is_allowed, f"{name} imports {target}"


def test_steps_never_import_steps() -> None:
    for name in MODULES:
        if not name.startswith("steps."):
            continue
        for target in modules_imported_by(name):
            if target.startswith("steps."):
                assert target.split(".")[1] == name.split(".")[1], f"{name} imports {target}"


def test_no_two_units_import_each_other() -> None:
    edges = {
        (unit_of(name), unit_of(target)) for name in MODULES if name for target in modules_imported_by(name)
    }
    assert not {(a, b) for a, b in edges if a < b and (b, a) in edges}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Also not through imports inside functions or for type checkers only."""
    assert not cycle(), " -> ".join(cycle())


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_a_package_with_a_door_is_entered_through_it(package: str) -> None:
    if not door_of(package):
        return
    past = past_the_door(package)
    beside = {inner: who for inner, who in past.items() if inner not in SIDE_DOORS.get(package, set())}
    assert not beside, f"import from rollforge.{package} instead"


def test_a_class_name_means_one_thing() -> None:
    assert not {name: places for name, places in public_classes().items() if len(places) > 1}


def test_only_the_shell_prints_or_exits() -> None:
    for name in MODULES:
        if unit_of(name) in ("cli", "simulate"):
            continue
        for node in ast.walk(parsed(name)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "sys.exit", "exit"), f"{name}:{node.lineno}"


def test_every_module_says_what_it_is() -> None:
    assert not [
        name for name in MODULES if MODULES[name].read_text().strip() and not ast.get_docstring(parsed(name))
    ]


def test_there_are_no_drawers() -> None:
    assert not [path for path in SOURCE.rglob("*") if path.stem in DRAWERS]
