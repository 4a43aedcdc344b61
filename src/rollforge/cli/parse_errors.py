"""Parser errors in the user's terms: the typed words, the mistake, and a correction."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

import cyclopts

from rollforge.errors import UsageError
from rollforge.registry import near_names

HELP_FLAGS = ("--help", "--help-all")
ALL_COMMANDS = "see all commands: rollforge --help"
_WITHOUT_COMMAND = {
    "help": "the help of one command: rollforge collect --help; all commands: rollforge --help",
    "-v": "the version: rollforge --version; all commands: rollforge --help",
    "version": "the version: rollforge --version; all commands: rollforge --help",
}
"""What follows first words that are no command here but are one elsewhere."""

ONE_RUN = {
    "verify": "verify takes one run, and not also",
    "merge": "merge takes one run of shards, and not also",
}
"""How commands that take a single run reject a second argument."""

ONCE = {
    (verb, flag): "one file of tasks is read; join several: cat one.jsonl two.jsonl > tasks.jsonl"
    for verb in ("collect", "eval", "bench")
    for flag in ("-i", "--input")
}
"""What to do instead of giving a flag twice, by command and flag."""

OTHER_TOOLS_FLAGS = {
    ("prepare", "--recipe"): "the recipe is the first word: rollforge prepare sft RUN --to trl -o DIR",
    ("experiences", "--operators"): "operators are listed in a file: --pipeline FILE",
    ("check", "--recipe"): "name the recipe with --for: rollforge check RUN --for dpo",
    ("check", "--algorithm"): "name the recipe with --for: rollforge check RUN --for dpo",
    ("collect", "--tasks"): "a task file is named with -i",
    ("collect", "--dataset"): "a task file is named with -i",
    ("collect", "--num-samples"): "samples per task: -k 8",
    ("collect", "--n-samples"): "samples per task: -k 8",
    ("collect", "--max-tokens"): "tokens of an answer: --max-output-tokens 512",
    ("collect", "--api-key"): "name the variable that holds the key: --api-key-env NAME",
    ("collect", "--reward"): "a verifier is named with --verifier",
    ("collect", "--judge"): "a judge is a verifier: --verifier judge",
    ("collect", "--resume"): "the same command resumes by itself; --fresh begins anew",
    ("collect", "--overwrite"): "the same command resumes; --fresh begins anew and moves the old run aside",
}
"""Flags of other tools that users type, by command, and the equivalent here."""


def usage_error(
    error: cyclopts.CycloptsError,
    verb: str | None,
    *,
    command: Callable[..., object] | None,
    example: str,
    flags: Iterable[str],
) -> UsageError:
    """The error of the parser for a command, as a message with a next step.

    Args:
        flags: those that the command has.
    """
    if verb is None:
        words = list(error.root_input_tokens or ())
        return UsageError(str(error), hint=_WITHOUT_COMMAND.get(words[0] if words else "", ALL_COMMANDS))
    if isinstance(error, cyclopts.MissingArgumentError) and command is not None:
        misspelt = _misspelt(error.root_input_tokens or (), [*flags, *HELP_FLAGS])
        if misspelt is not None:
            return UsageError(misspelt, hint=f"see all options: rollforge {verb} --help")
        if error.keyword and error.argument is not None:
            if dashed := _dashed_value(error.keyword, error.root_input_tokens or ()):
                return UsageError(
                    f"{error.keyword} requires an argument, and {dashed} begins with a dash, as flags do",
                    hint=f"if it is the value: {error.keyword}={dashed}; see what it takes: rollforge {verb} --help",
                )
            count = error.argument.token_count()[0]
            got = f", and got {len(error.tokens_so_far)}" if error.tokens_so_far else ""
            return UsageError(
                f"{error.keyword} requires {f'{count} values' if count > 1 else 'an argument'}{got}",
                hint=f"see what it takes: rollforge {verb} --help; for example: {example}",
            )
        needed = _needed(error, command)
        if needed:
            positional = [word for word in (error.root_input_tokens or ())[1:2] if not word.startswith("-")]
            alone = f", and got {positional[0]!r} alone" if positional else ""
            return UsageError(f"{verb} needs {needed}{alone}", hint=f"for example: {example}")
    if isinstance(error, cyclopts.UnknownOptionError):
        return _unknown_option(error, verb)
    if isinstance(error, cyclopts.RepeatArgumentError):
        flag = error.token.keyword or error.token.value
        return UsageError(f"{flag} is given twice", hint=ONCE.get((verb, flag), f"give {flag} once"))
    if isinstance(error, cyclopts.CoercionError):
        wrong_number = _wrong_number(error)
        if wrong_number is not None:
            return wrong_number
    if isinstance(error, cyclopts.CoercionError | cyclopts.ValidationError):
        return UsageError(str(error), hint=_allowed(error, verb, example))
    if isinstance(error, cyclopts.UnusedCliTokensError) and error.unused_tokens:
        what = ONE_RUN.get(verb, f"{verb} does not take")
        return UsageError(
            f"{what} {' '.join(error.unused_tokens)!r}", hint=_unused(verb, error.unused_tokens[0], example)
        )
    return UsageError(str(error), hint=f"see all options: rollforge {verb} --help")


def _unknown_option(error: cyclopts.UnknownOptionError, verb: str) -> UsageError:
    typed = (error.token.keyword or error.token.value).partition("=")[0]
    source = "" if error.token.source in ("", "cli") else f" (from {error.token.source})"
    what = f"Unknown option: {typed}{source}."
    flags = [name for one in error.argument_collection if one.parse for name in one.names]
    near = _near(typed, flags)
    all_options = f"see all options: rollforge {verb} --help"
    if (verb, typed) in OTHER_TOOLS_FLAGS:
        return UsageError(what, hint=OTHER_TOOLS_FLAGS[verb, typed])
    return UsageError(f"{what} Did you mean {' or '.join(near)}?" if near else what, hint=all_options)


def _misspelt(words: Iterable[str], flags: list[str]) -> str | None:
    """A word that was meant as a flag, which may be why another one is missing."""
    for word in words:
        typed = word.partition("=")[0]
        if typed.startswith("--") and typed not in flags and (near := _near(typed, flags)):
            return f"Unknown option: {typed}. Did you mean {' or '.join(near)}?"
    return None


def _dashed_value(keyword: str, words: Sequence[str]) -> str | None:
    """The word after the flag, if it begins with one dash and is longer than a short flag."""
    after = [word for flag, word in itertools.pairwise(words) if flag == keyword]
    return next((word for word in after if len(word) > 2 and word[0] == "-" != word[1]), None)


def _near(typed: str, flags: Iterable[str]) -> list[str]:
    """Flags that are spelled like the typed one, or begin with it; keys of a config file are written without dashes."""
    names = dict.fromkeys(flag[2:] for flag in (*flags, *HELP_FLAGS) if flag.startswith("--"))
    return [f"--{name}" for name in near_names(typed.strip("-[]").replace("_", "-"), names, most=2)]


def _wrong_number(error: cyclopts.CoercionError) -> UsageError | None:
    kinds = {int: ("a whole number", "4"), float: ("a number", "0.5")}
    token, argument = error.token, error.argument
    if token is None or argument is None or error.target_type not in kinds:
        return None
    kind, usual = kinds[error.target_type]
    default = argument.field_info.default
    example = str(default) if type(default) in (int, float) else usual
    name = token.keyword or argument.name.lstrip("-").upper()
    if name.startswith("["):  # a key of the config file that the source names
        key = name.strip("[]")
        return UsageError(
            f"{token.source}: {key} {token.value}: expected {kind}", hint=f"for example: {key} = {example}"
        )
    return UsageError(
        f"{name} {token.value}: expected {kind}",
        hint=f"for example: {name}{'=' if token.source == 'env' else ' '}{example}"
        if token.keyword
        else f"give {kind}",
    )


def _allowed(error: cyclopts.CoercionError | cyclopts.ValidationError, verb: str, example: str) -> str:
    """The next step after a value that is no choice or out of bounds: the flag with its default, or with the first choice."""
    all_options = f"see all options: rollforge {verb} --help"
    argument = error.argument
    if argument is None or not argument.tokens or not (flag := argument.tokens[0].keyword):
        return f"for example: {example}; see all options: rollforge {verb} --help"
    default = argument.field_info.default
    choices = [one for one in get_args(getattr(error, "target_type", None)) if isinstance(one, str)]
    if type(default) in (int, float, str):
        return f"the default is {flag} {default}; {all_options}"
    return f"for example: {flag} {choices[0]}" if choices else all_options


def _unused(verb: str, word: str, example: str) -> str:
    """The next step after an unexpected argument."""
    if word.startswith("-"):
        return f"see all options: rollforge {verb} --help"
    if verb in ("collect", "eval", "bench"):
        return f"a task file is named with -i; for example: {example}"
    if verb == "verify":
        return f"the run comes first, the verifier follows --verifier; for example: {example}"
    if verb == "merge":
        return "several runs need no merging, most commands take them together: rollforge metrics RUN RUN"
    return f"for example: {example}; see all options: rollforge {verb} --help"


def _needed(error: cyclopts.MissingArgumentError, command: Callable[..., object]) -> str:
    """Names of missing required arguments; empty if the error is another one."""
    argument = error.argument
    if argument is None or argument.tokens:
        return ""
    if not argument.field_info.is_positional:
        return argument.name if argument.required else ""
    parameters = inspect.signature(command).parameters.values()
    positional = [one for one in parameters if one.kind is one.POSITIONAL_ONLY]
    return " and ".join(one.name.upper() for one in positional if one.default is one.empty)
