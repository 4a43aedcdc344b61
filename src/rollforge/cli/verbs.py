"""This module is the table of commands: one line per verb, its module imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

COMMANDS = {
    "demo": "rollforge.cli.demo:demo",
    "collect": "rollforge.cli.collect:collect",
    "verify": "rollforge.cli.verify:verify",
    "metrics": "rollforge.cli.metrics:metrics",
    "profile": "rollforge.cli.profile:profile",
    "check": "rollforge.cli.check:check",
    "prepare": "rollforge.cli.prepare:prepare",
    "validate": "rollforge.cli.validate:validate",
    "query": "rollforge.cli.query:query",
    "show": "rollforge.cli.show:show",
    "status": "rollforge.cli.status:status",
    "eval": "rollforge.cli.eval_:evaluate",
    "bench": "rollforge.cli.bench:bench",
    "experiences": "rollforge.cli.experiences:experiences",
    "simulate": "rollforge.cli.simulate:simulate",
    "init": "rollforge.cli.init:init",
    "serve-verifier": "rollforge.cli.serve_verifier:serve_verifier",
    "list": "rollforge.cli.list_:list_members",
}
"""Verb → the function behind it. The order here is the order in `rollforge --help`."""


class Command(NamedTuple):
    """A verb: the function, whose docstring is the help, and a line that works when pasted."""

    function: Callable[..., object]
    example: str


def load_command(verb: str) -> Command:
    """The command behind a verb of the table."""
    place, _, attribute = COMMANDS[verb].partition(":")
    module = import_module(place)
    return Command(getattr(module, attribute), module.EXAMPLE)
