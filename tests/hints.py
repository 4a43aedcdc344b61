"""Commands inside hints: every `rollforge …` that a message names must be one that the real parser accepts."""

from __future__ import annotations

import re
import shlex

import cyclopts

from rollforge.cli.app import COMMANDS, build_app

_COMMAND = re.compile(rf"rollforge ((?:{'|'.join(COMMANDS)})\b[^\n`]*)")
_TOKEN = re.compile(r"""(?:"(?:\\.|[^"])*"|'[^']*'|[^\s"'])+""")


def commands_in(text: str) -> list[list[str]]:
    """Return the words of every command in a text; a command ends where the sentence goes on."""
    found = []
    for match in _COMMAND.finditer(text):
        words = _words(match[1])
        is_mention = (
            len(words) == 1 and text[match.start() - 1 : match.start()] == "`"
        )  # `rollforge collect` resumes
        if not is_mention:
            found.append(words)
    return found


def _words(line: str) -> list[str]:
    """Split up to the end of the command; quotes may hold what ends a sentence elsewhere."""
    words: list[str] = []
    for token in _TOKEN.findall(line):
        if token in ("&&", "|", "and", "or", "→") or token.startswith("("):
            break
        ended = re.search(r"[;,)]+$|:$", token)
        words.append(shlex.split(token[: ended.start()] if ended else token)[0])
        if ended:
            break
    return words


def complaint(words: list[str]) -> str | None:
    """Say what the parser has against a command; None if it would run."""
    app = build_app(words[0])
    try:
        app.parse_args(words, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        return f"rollforge {shlex.join(words)}: {error}"
    return None
