"""This module is the command line as cyclopts reads it: every word, its help, and what is wrong with it."""

from __future__ import annotations

import inspect
import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import cyclopts

from rollforge import __version__
from rollforge.cli.flags import Group, Parameter
from rollforge.cli.output import help_console
from rollforge.cli.verbs import COMMANDS, load_command
from rollforge.errors import UsageError
from rollforge.registry import did_you_mean

NARROW = 78
"""Columns that every terminal has, less the example's indent."""


def build_app(verb: str | None = None) -> cyclopts.App:
    """The command line; with a known `verb`, only that command is imported."""
    app = cyclopts.App(
        name="rollforge",
        help="From tasks to training-ready data: collect, verify, profile, check, prepare.",
        version=__version__,
        help_epilogue="Start here: rollforge demo",
        help_format="plaintext",
        console=help_console(),
        default_parameter=cyclopts.Parameter(negative_iterable=()),
    )
    for place, name in enumerate(COMMANDS):
        if verb in COMMANDS and name != verb:
            continue
        command = load_command(name)
        _translate(command.function)
        app.command(
            command.function,
            name=name,
            help=_prose(command.function),
            help_epilogue=f"Example:\n  {_pasteable(command.example)}",
            sort_key=place,
        )
    return app


def call(app: cyclopts.App, words: Sequence[str]) -> object:
    """What the command returns; words that it does not take are a usage error like any other."""
    try:
        return app(words, result_action="return_value", exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        verb = words[0] if words and words[0] in COMMANDS else None
        raise UsageError(_complaint(error, verb), hint=_way_out(error, verb)) from None


def check_variables(app: cyclopts.App, verb: str) -> None:
    """Refuse variables of the environment that are meant for this command and name none of its options."""
    if verb not in COMMANDS:
        return
    prefix = _as_variable("rollforge", verb, "")
    arguments = app[verb].assemble_argument_collection()
    known = [_as_variable("rollforge", verb, name) for argument in arguments for name in argument.names]
    for name in os.environ:
        if name.startswith(prefix) and not any(name == one or name.startswith(f"{one}_") for one in known):
            raise UsageError(
                f"{verb} has no option for the variable {name}{did_you_mean(name, known)}",
                hint=f"see all options: rollforge {verb} --help",
            )


def _as_variable(*words: str) -> str:
    return "_".join(word.strip("-").replace("-", "_").replace(".", "_").upper() for word in words)


def _complaint(error: cyclopts.CycloptsError, verb: str | None) -> str:
    """What is wrong with the words, by the names that the usage line gives them."""
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        return f"{verb or 'rollforge'} does not take {' '.join(error.unused_tokens)!r}"
    return f"{verb} needs {_needed(error, verb)}" if verb and _needed(error, verb) else str(error)


def _way_out(error: cyclopts.CycloptsError, verb: str | None) -> str:
    if verb is None:
        return "see all commands: rollforge --help"
    if _needed(error, verb):
        return f"for example: {load_command(verb).example}"
    return f"see all options: rollforge {verb} --help"


def _needed(error: cyclopts.CycloptsError, verb: str) -> str:
    """What the command cannot do without and was not given; empty when something else is wrong."""
    argument = error.argument
    if argument is None or argument.tokens or not isinstance(error, cyclopts.MissingArgumentError):
        return ""
    if not argument.field_info.is_positional:
        return argument.name if argument.required else ""
    parameters = inspect.signature(load_command(verb).function).parameters.values()
    positional = [one for one in parameters if one.kind is one.POSITIONAL_ONLY]
    return " and ".join(one.name.upper() for one in positional if one.default is one.empty)


def _prose(function: Callable[..., object]) -> str:
    """What the docstring says before its parameters, in lines as long as the terminal makes them."""
    told = (inspect.getdoc(function) or "").partition("\n\nParameters\n---")[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in told.split("\n\n"))


def _pasteable(example: str) -> str:
    """The example in lines that no terminal breaks, because a line that is broken cannot be pasted."""
    if len(example) <= NARROW:
        return example
    lines = textwrap.wrap(example, NARROW - 2, break_long_words=False, break_on_hyphens=False)
    return " \\\n      ".join(lines)


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
