"""`rollforge list`: the members of a family, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rollforge.cli.converters import Flag
from rollforge.cli.render.console import print_json
from rollforge.errors import UsageError

if TYPE_CHECKING:
    from rollforge.registry import Registry

EXAMPLE = "rollforge list verifiers"

FAMILIES = {
    "agents": "rollforge.agents:AGENTS",
    "environments": "rollforge.environments:ENVIRONMENTS",
    "importers": "rollforge.importers:IMPORTERS",
    "verifiers": "rollforge.verifiers:VERIFIERS",
    "checks": "rollforge.checks:CHECKS",
    "recipes": "rollforge.recipes:RECIPES",
    "exporters": "rollforge.exporters:EXPORTERS",
    "sinks": "rollforge.sinks:SINKS",
    "operators": "rollforge.operators:OPERATORS",
    "executors": "rollforge.executors:EXECUTORS",
}
"""Family → its registry."""


class Member(msgspec.Struct, frozen=True):
    """One member of a family."""

    name: str
    summary: str
    needs: list[str]
    """Task fields that it requires (verifiers only)."""


def list_members(family: str | None = None, /, *, json: Flag = False) -> None:
    """List the members of a family, with one line on each.

    Parameters
    ----------
    family
        Which family: verifiers, sinks, …. Default: name the families.
    json
        Print one JSON object on stdout instead of a table.
    """
    if family is None:
        _list_families(json=json)
        return
    members = describe_family(family)
    if json:
        print_json({"family": family, "members": members})
        return
    from rollforge.cli.render.table import Grid, TableColumn

    has_needs = any(member.needs for member in members)
    names = ["name", *(["needs"] if has_needs else []), "what it does"]
    table = Grid(*(TableColumn(name) for name in names))
    for member in members:
        table.add(member.name, *([", ".join(member.needs)] if has_needs else []), member.summary)
    table.put()


def _list_families(*, json: bool) -> None:
    from rollforge.cli.render.table import put

    if json:
        print_json({"families": family_names()})
        return
    for name in family_names():
        put(name)


def family_names() -> list[str]:
    """Names of all families."""
    return list(FAMILIES)


def describe_family(family: str) -> list[Member]:
    """The members of a family, sorted by name."""
    from rollforge.registry import did_you_mean, load_target

    if family not in FAMILIES:
        raise UsageError(
            f"there is no family {family!r}{did_you_mean(family, FAMILIES)}",
            hint=f"one of {', '.join(FAMILIES)}",
        )
    registry: Registry = load_target(FAMILIES[family])
    loaded = {name: registry.load(name) for name in registry.names()}
    modules = [getattr(member, "__module__", "") for member in loaded.values()]
    return [
        Member(name, _summary(member, is_alone=modules.count(module) == 1), list(_needs(member)))
        for (name, member), module in zip(loaded.items(), modules, strict=True)
    ]


def _summary(member: object, *, is_alone: bool) -> str:
    """First line of the module's docstring, or of the member's own if its module contains several."""
    import inspect
    import sys

    if isinstance(getattr(member, "summary", None), str):
        return str(member.summary)  # type: ignore[attr-defined]
    module = sys.modules.get(getattr(member, "__module__", ""), None)
    text = (inspect.getdoc(module) if is_alone else None) or inspect.getdoc(member) or ""
    return text.split("\n")[0]


def _needs(member: object) -> tuple[str, ...]:
    import sys

    module = sys.modules.get(getattr(member, "__module__", ""), None)
    return tuple(getattr(member, "needs", ()) or getattr(module, "needs", ()))
