"""The command line: the table of verbs, the parser (cyclopts), config files and environment variables."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import cyclopts

from rollforge import __version__
from rollforge.cli.parse_errors import usage_error
from rollforge.errors import UsageError
from rollforge.registry import did_you_mean
from rollforge.unread_options import refuse_unread

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

NARROW = 78
"""Width of the narrowest supported terminal, minus the indent of an example."""
HELP_ALL = "--help-all"


class Verb(NamedTuple):
    """A command of the table; its module is imported only when the command is used."""

    target: str
    summary: str
    """First line of the function's docstring, repeated here so that `rollforge --help` need not import the function."""


COMMANDS = {
    "demo": Verb(
        "demo:demo", "Run the whole pipeline on the embedded model: no key, no GPU, under a minute."
    ),
    "collect": Verb(
        "collect:collect", "Collect rollouts: send every task to a model, judge the answers, write a run."
    ),
    "verify": Verb("verify:verify", "Judge a run with a verifier: now, later or again."),
    "metrics": Verb(
        "metrics:metrics",
        "Print the metrics of a run: every number field with its interval, success rate, pass@k, histogram, red flags.",
    ),
    "profile": Verb(
        "profile:profile",
        "Profile a run per task and per agent: write NeMo Gym's profile files and print what a person can act on.",
    ),
    "check": Verb(
        "check:check", "Tell whether a run's rewards can be trusted and its data is fit to train on."
    ),
    "prepare": Verb(
        "prepare:prepare",
        "Prepare training data: select rollouts by a recipe and write them as a trainer's loader reads them.",
    ),
    "report": Verb(
        "report:report",
        "Write a report as one HTML file: can the rewards be trusted, what is the data fit for, then charts.",
    ),
    "view": Verb(
        "view:view",
        "View runs in the browser: rollouts, groups, findings and charts, suspicious rollouts first.",
    ),
    "validate": Verb(
        "validate:validate",
        "Check every row of task files, rollout files and prepared datasets; exit with code 2 if anything is wrong.",
    ),
    "query": Verb(
        "query:query",
        "Ask a question in SQL over the tables `rollouts`, `tasks` and `failures`; nothing else can be read or changed.",
    ),
    "show": Verb(
        "show:show",
        "Print rollouts for reading: prompt, reasoning, tool calls and answer laid out, reward and numbers beside them.",
    ),
    "status": Verb("status:status", "Tell how far a run is: progress, rate, time left, failures by class."),
    "merge": Verb(
        "merge:merge", "Merge the shards of a run into one rollouts file, ordered by task and sample."
    ),
    "index": Verb(
        "index:index",
        "Build or extend the index of a run now, so that the commands that read it start at once.",
    ),
    "eval": Verb("eval_:evaluate", "Evaluate a model on several task sets in one resumable run."),
    "bench": Verb(
        "bench:bench",
        "Benchmark several models or checkpoints over the same task sets, and say which is better.",
    ),
    "import": Verb(
        "import_:import_",
        "Make a run of another tool's log: inspect, verifiers or harbor. Missing rewards stay missing.",
    ),
    "experiences": Verb(
        "experiences:experiences",
        "Turn a run into experiences, through a pipeline of operators, into a file or a buffer.",
    ),
    "simulate": Verb(
        "simulate:simulate", "Serve a simulated, seeded, OpenAI-compatible model on loopback; no key, no GPU."
    ),
    "init": Verb(
        "init:init",
        "Write a starter: a verifier with its test, an example folder, a skill file for coding agents; or print shell completion.",
    ),
    "test-verifier": Verb(
        "test_verifier:test_verifier",
        "Test a verifier on the cases beside it: full reward, zero reward, malformed rows, determinism.",
    ),
    "serve-verifier": Verb(
        "serve_verifier:serve_verifier",
        "Serve a verifier as a NeMo Gym resources server: /seed_session, /verify, /aggregate_metrics, /reverify_mode.",
    ),
    "rewards": Verb(
        "rewards:rewards",
        "Use a verifier as the reward of a trainer: print the adapter's path, or a file that the trainer loads.",
    ),
    "list": Verb("list_:list_members", "List the members of a family, with one line on each."),
}
"""The verbs, in the order of `rollforge --help`. Targets are in `rollforge.cli.commands`."""


class Command(NamedTuple):
    """A loaded verb: its function, whose docstring is the help text, and an example that works when pasted."""

    function: Callable[..., object]
    example: str
    common: frozenset[str] = frozenset()
    """Flags that `-h` shows; empty means all."""


def load_command(verb: str) -> Command:
    """Import the command behind a verb of the table."""
    name, _, attribute = COMMANDS[verb].target.partition(":")
    module = import_module(f"rollforge.cli.commands.{name}")
    return Command(getattr(module, attribute), module.EXAMPLE, frozenset(getattr(module, "COMMON", ())))


def version_text() -> str:
    """The version, and which compiled modules are installed; Python code replaces the missing ones."""
    from rollforge.runtime.native import MODULES, load_native

    compiled = [name.removeprefix("rollforge.") for name in MODULES if load_native(name) is not None]
    missing = [name.removeprefix("rollforge.") for name in MODULES if load_native(name) is None]
    lines = [f"rollforge {__version__}", f"compiled modules: {', '.join(compiled) or 'none'}"]
    return "\n".join(lines) + (f" (in Python instead: {', '.join(missing)})" if missing else "")


def build_app(verb: str | None = None, *, shows_all: bool = False, words: Sequence[str] = ()) -> cyclopts.App:
    """Build the parser; only the command of `verb` is imported. Typed options in `words` that would have no effect are refused."""
    app = cyclopts.App(
        name="rollforge",
        help="From tasks to training-ready data: collect, verify, profile, check, prepare.",
        version=version_text,
        help_epilogue="Start here: rollforge demo",
        help_format="plaintext",
        help_flags=("--help", "-h", HELP_ALL),
        default_parameter=cyclopts.Parameter(negative_iterable=(), show_default=_default_text),
    )
    for rank, (name, (target, summary)) in enumerate(COMMANDS.items()):
        if name != verb:
            app.command(f"rollforge.cli.commands.{target}", name=name, help=summary, sort_key=rank)
            continue
        command = load_command(name)
        is_brief = bool(command.common) and not shows_all
        more = f"More options: rollforge {name} {HELP_ALL}\n\n" if is_brief else ""
        app.command(
            _reading_all(command.function, name, words),
            name=name,
            help=_prose(command.function),
            help_epilogue=f"{more}Example:\n  {_pasteable(command.example)}",
            help_formatter=_brief_formatter(command.common) if is_brief else None,
            sort_key=rank,
        )
    return app


def _reading_all(function: Callable[..., object], verb: str, words: Sequence[str]) -> Callable[..., object]:
    """Wrap a command so that it refuses typed options that have no effect together with its other values."""

    @functools.wraps(function)
    def checked(*args: object, **options: object) -> object:
        bound = inspect.signature(function).bind(*args, **options)
        bound.apply_defaults()
        refuse_unread(verb, *_typed(verb, words, bound.arguments))
        return function(*args, **options)

    return checked


def _typed(
    verb: str, words: Sequence[str], arguments: Mapping[str, object]
) -> tuple[list[str], dict[str, object]]:
    """Return the flags among the words, and the value of every flag and argument."""
    value_by_name = _flattened(arguments)
    typed = {word.partition("=")[0] for word in words if word.startswith("-")}
    flags, values = [], {name.upper(): value for name, value in arguments.items()}
    for one in build_app(verb)[verb].assemble_argument_collection():
        if one.name.startswith("--") and one.parse:
            values[one.name] = value_by_name.get(one.field_info.names[0])
            if typed.intersection(one.names):
                flags.append(one.name)
    return flags, values


def _flattened(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return the values of all parameters, with groups of flags replaced by their fields."""
    values: dict[str, object] = {}
    for name, value in arguments.items():
        if dataclasses.is_dataclass(value):
            values |= _flattened(vars(value))
        else:
            values[name] = value
    return values


def _default_text(value: object) -> str | None:
    """Format a default value for the help; None for off, empty and None, which the help omits."""
    if value is None or value is False or value in ("", (), [], {}):
        return None
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _brief_formatter(common: frozenset[str]) -> cyclopts.help.DefaultFormatter:
    """Return a help formatter that omits all but the common flags."""
    from cyclopts.help import DefaultFormatter

    class BriefFormatter(DefaultFormatter):
        def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
            entries = [
                entry for entry in panel.entries if not entry.names or common.intersection(entry.names)
            ]
            if entries:
                super().__call__(console, options, panel.copy(entries=entries))

    return BriefFormatter()


def run_app(words: Sequence[str], config_path: str | None = None) -> object:
    """Parse the words, call the command and return its result; flags win over environment over config file."""
    from rollforge.cli.render.console import help_console

    verb = words[0] if words and words[0] in COMMANDS else None
    app = build_app(verb, shows_all=HELP_ALL in words, words=words)
    app.config = _sources(app, verb, config_path)
    is_help = not words or not {"-h", "--help", HELP_ALL}.isdisjoint(words)  # nothing else loads rich
    try:
        return app(
            words,
            console=help_console() if is_help else None,
            result_action="return_value",
            exit_on_error=False,
            print_error=False,
        )
    except cyclopts.CycloptsError as error:
        command = load_command(verb) if verb else None
        raise usage_error(
            error,
            verb,
            command=command.function if command else None,
            example=command.example if command else "",
            flags=[name for one in app[verb].assemble_argument_collection() for name in one.names]
            if verb
            else (),
        ) from None


def _sources(app: cyclopts.App, verb: str | None, config_path: str | None) -> list[object]:
    """Sources of values with lower precedence than flags, the strongest first."""
    sources: list[object] = []
    if any(name.startswith("ROLLFORGE_") for name in os.environ):
        from cyclopts.config import Env

        if verb is not None:
            _check_variables(app, verb)
        sources.append(Env("ROLLFORGE_", command=True, show=False))
    if config_path is not None:
        from cyclopts.config import Dict

        sources.append(Dict(_read_config(app, verb, config_path), source=config_path))
    return sources


def _read_config(app: cyclopts.App, verb: str | None, path: str) -> dict[str, object]:
    """Read a config file; the table of `verb` may name options as flags do, or as `--dry-run` prints them."""
    from rollforge.config import read_config, settings_words

    arguments = app[verb].assemble_argument_collection() if verb else []
    flag_by_option = {
        one.field_info.names[0]: one.name.removeprefix("--") for one in arguments if one.name.startswith("--")
    }
    tables = read_config(path, tables=list(COMMANDS), options={*flag_by_option, "step"})
    if verb is None:
        return tables
    table = tables.pop("", tables.get(verb, {}))
    if isinstance(table, dict):
        table = {
            flag_by_option.get(name, name): settings_words(value)
            if isinstance(value, dict) and name in ("overrides", "verifier_options")
            else value
            for name, value in table.items()
            if value not in (None, [], {})
        }
    return {**tables, verb: table}


def _check_variables(app: cyclopts.App, verb: str) -> None:
    """Refuse environment variables with this command's prefix that name none of its options."""
    prefix = _as_variable("rollforge", verb, "")
    arguments = app[verb].assemble_argument_collection()
    variables = [_as_variable("rollforge", verb, name) for argument in arguments for name in argument.names]
    for name in os.environ:
        if name.startswith(prefix) and not any(
            name == one or name.startswith(f"{one}_") for one in variables
        ):
            raise UsageError(
                f"{verb} has no option for the variable {name}{did_you_mean(name, variables)}",
                hint=f"see all options: rollforge {verb} {HELP_ALL}",
            )


def _as_variable(*words: str) -> str:
    return "_".join(word.strip("-").replace("-", "_").replace(".", "_").upper() for word in words)


def _prose(function: Callable[..., object]) -> str:
    """Return the docstring before its parameters, one line per paragraph, for the terminal to wrap."""
    text = (inspect.getdoc(function) or "").partition("\n\nParameters\n---")[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _pasteable(example: str) -> str:
    """Break a long example with backslashes, so that it can still be pasted."""
    if len(example) <= NARROW:
        return example
    lines = textwrap.wrap(example, NARROW - 2, break_long_words=False, break_on_hyphens=False)
    return " \\\n      ".join(lines)
