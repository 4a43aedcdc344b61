"""This module is the table of commands: one line per verb, its module imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module

from cyclopts import App

from rollforge import __version__

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


def build_app(verb: str | None = None) -> App:
    """The command line; with a known `verb`, only that command is imported.

    Every command's module holds the function, whose docstring is the help, and `EXAMPLE`, a line that works when pasted.
    """
    app = App(
        name="rollforge",
        help="From tasks to training-ready data: collect, verify, profile, check, prepare.",
        version=__version__,
        help_epilogue="Start here: rollforge demo",
        help_format="plaintext",
    )
    wanted = {verb: COMMANDS[verb]} if verb in COMMANDS else COMMANDS
    for name, target in wanted.items():
        place, _, attribute = target.partition(":")
        module = import_module(place)
        app.command(getattr(module, attribute), name=name, help_epilogue=f"Example:\n  {module.EXAMPLE}")
    return app
