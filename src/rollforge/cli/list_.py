"""`rollforge list`: the members of a family, by name."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from rollforge.cli.output import out, print_json

EXAMPLE = "rollforge list verifiers"

Family = Literal["verifiers", "sinks", "checks"]


def list_members(family: Family, /, *, json: Annotated[bool, Parameter(negative=())] = False) -> None:
    """List the members of a family, with one line on each.

    Parameters
    ----------
    family
        Which family to list.
    json
        Print one JSON object on stdout instead of a table.
    """
    from rich.table import Table

    registry = _registry(family)
    members = [
        {"name": name, "summary": _summary(registry.load(name)), "needs": list(_needs(registry.load(name)))}
        for name in registry.names()
    ]
    if json:
        print_json({"family": family, "members": members})
        return
    table = Table("name", "needs", "what it does", box=None, pad_edge=False)
    for member in members:
        table.add_row(str(member["name"]), ", ".join(member["needs"]), str(member["summary"]))
    out().print(table)


def _registry(family: Family):  # type: ignore[no-untyped-def]
    from rollforge.checks import CHECKS
    from rollforge.sinks import SINKS
    from rollforge.verifiers import VERIFIERS

    return {"verifiers": VERIFIERS, "sinks": SINKS, "checks": CHECKS}[family]


def _summary(member: object) -> str:
    import inspect
    import sys

    if isinstance(getattr(member, "summary", None), str):
        return str(member.summary)  # type: ignore[attr-defined]
    module = sys.modules.get(getattr(member, "__module__", ""), None)
    text = inspect.getdoc(module) or inspect.getdoc(member) or ""
    return text.split("\n")[0]


def _needs(member: object) -> tuple[str, ...]:
    import sys

    module = sys.modules.get(getattr(member, "__module__", ""), None)
    found = getattr(member, "needs", None) or getattr(module, "needs", ())
    return tuple(found)
