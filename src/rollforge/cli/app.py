"""This module is the command line as cyclopts reads it: every word, its help, and what is wrong with it."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import cyclopts

from rollforge import __version__
from rollforge.cli.flags import Group, Parameter
from rollforge.cli.verbs import COMMANDS, load_command


def build_app(verb: str | None = None) -> cyclopts.App:
    """The command line; with a known `verb`, only that command is imported."""
    app = cyclopts.App(
        name="rollforge",
        help="From tasks to training-ready data: collect, verify, profile, check, prepare.",
        version=__version__,
        help_epilogue="Start here: rollforge demo",
        help_format="plaintext",
    )
    for name in [verb] if verb in COMMANDS else COMMANDS:
        command = load_command(name)
        _translate(command.function)
        app.command(command.function, name=name, help_epilogue=f"Example:\n  {command.example}")
    return app


def _translate(holder: Any) -> None:
    """Let the annotations of a function, or of a dataclass, say the same to cyclopts."""
    hints = get_type_hints(holder, include_extras=True)
    holder.__annotations__ = {name: _translated(hint) for name, hint in hints.items()}


def _translated(hint: Any) -> Any:
    if is_dataclass(hint):
        _translate(hint)
        return cyclopts.Parameter(name="*")(hint)
    if get_origin(hint) is not Annotated:
        return hint
    kind, *extras = get_args(hint)
    own = [extra for extra in extras if isinstance(extra, Parameter)]
    return Annotated[kind, *own, *map(_parameter, own)]


def _parameter(parameter: Parameter) -> cyclopts.Parameter:
    told: dict[str, Any] = {name: value for name, value in parameter._asdict().items() if value is not None}
    if parameter.group is not None:
        told["group"] = _group(parameter.group)
    return cyclopts.Parameter(**told)


def _group(group: Group) -> cyclopts.Group:
    return cyclopts.Group(group.name, sort_key=group.sort_key)
