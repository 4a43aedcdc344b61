"""The shell: the only layer that prints or exits. `main` turns errors into messages and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import gc
import io
import os
import sys
import threading
from collections.abc import Sequence
from typing import Never

from rollforge.cli.early import read_early
from rollforge.errors import Exit, RollforgeError
from rollforge.interrupts import held_back

RUN_OTHERS_CODE = frozenset({"collect", "verify", "eval", "bench", "serve-verifier", "check", "demo"})
"""Commands that run a user's functions, whose process is left as it was found."""

NOT_WRITABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOSPC}
)
"""What the system says when files cannot be written where they should be."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What it says when there is no room, often without a name: of a file under way, or of what stdout leads to."""

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENAS = -3, -1, -8
"""glibc's numbers for the size from which memory is mapped on its own, how much of the rest may lie idle, and in how many places."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    words = list(sys.argv[1:] if argv is None else argv)
    is_light = False
    try:
        with held_back():
            is_light = _travel_light(words)
            read_early(words)
            _print_in_any_locale()
            import rollforge.cli.output  # noqa: F401  (with all that every command needs)
        code = run(words)
        sys.stdout.flush()
    except RollforgeError as error:
        _report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        if is_light and argv is None:
            _leave(Exit.INTERRUPTED, at_once=True)
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has gone, and there is no one to tell.
        _drop_output()
        sys.exit(Exit.DONE)
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            _drop_output()
        elif error.errno not in NOT_WRITABLE or error.filename is None:
            raise
        _report(RollforgeError(f"{error.filename or 'cannot write'}: {error.strerror}", hint=_hint(error)))
        sys.exit(Exit.USAGE)
    code = int(code) if isinstance(code, int) else Exit.DONE
    if is_light and argv is None:
        _leave(code)
    sys.exit(code)


def _report(error: RollforgeError) -> None:
    from rollforge.cli.output import report_error

    report_error(error)


def _drop_output() -> None:
    """What is left of our output goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hint(error: OSError) -> str:
    is_there = error.errno in (errno.EACCES, errno.EPERM) and os.path.exists(error.filename)  # noqa: PTH110  (any kind of name)
    if is_there and not os.access(error.filename, os.R_OK):
        return "get permission to read it, or read a copy"
    return "make room or get permission there, or write elsewhere: --out"


def _print_in_any_locale() -> None:
    """Let a terminal that has no UTF-8 show `?` for what it lacks; JSON, CSV and files are always UTF-8."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def run(words: list[str]) -> object:
    """What the command returns: flags over environment over config file over defaults."""
    words, config_path = _take_config(words)
    if any(word.startswith("+") for word in words):
        from rollforge.cli.output import say
        from rollforge.config import translate_gym_words

        words, notes = translate_gym_words(words)
        for note in notes:
            say(f"note: {note}")
    is_alone = config_path is None and not any(name.startswith("ROLLFORGE_") for name in os.environ)
    return _run_plainly(words) if is_alone else _run_with_sources(words, config_path)


def _run_plainly(words: list[str]) -> object:
    """Nothing but the words says what to do."""
    with held_back():
        from rollforge.cli.plain import NotPlain, read_plainly
        from rollforge.cli.verbs import COMMANDS, load_command

        verb, *rest = words or [""]
        command = load_command(verb) if verb in COMMANDS else None
    if command is None:
        return _run_with_sources(words, None)
    try:
        positional, named = read_plainly(command.function, rest)
    except NotPlain:
        return _run_with_sources(words, None)
    return command.function(*positional, **named)


def _run_with_sources(words: list[str], config_path: str | None) -> object:
    with held_back():
        from rollforge.cli.app import build_app, call

        app = build_app(words[0] if words else None)
    sources: list[object] = []
    if any(name.startswith("ROLLFORGE_") for name in os.environ):
        from cyclopts.config import Env

        from rollforge.cli.app import check_variables

        check_variables(app, words[0] if words else "")
        sources.append(Env("ROLLFORGE_", command=True, show=False))
    if config_path is not None:
        from cyclopts.config import Dict

        from rollforge.cli.verbs import COMMANDS
        from rollforge.config import read_config

        sources.append(Dict(read_config(config_path, tables=list(COMMANDS)), source=config_path))
    app.config = sources
    return call(app, words)


def _travel_light(words: list[str]) -> bool:
    """Spare a short command what libraries do for long ones; whatever the user has chosen stays."""
    verb = next(iter(_take_config(words)[0]), None)
    if verb is None or verb in RUN_OTHERS_CODE:
        return False
    # Threads for matrices that are never large: they spin while they wait, from the moment numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own pool keeps more memory than the columns of most runs take.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Large arrays go back to the system when they are let go of, instead of waiting for others of their size.
    with contextlib.suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_MMAP_THRESHOLD, 1 << 20)
        tune(_TRIM_THRESHOLD, 16 << 20)
        tune(_ARENAS, 1)
    # What is imported stays, and rows have no cycles: looking for some takes a tenth of a short command's time.
    gc.set_threshold(200_000, 20, 20)
    return True


def _leave(code: int, *, at_once: bool = False) -> Never:
    """Exit without taking the interpreter apart, object by object, just before the system frees it all at once.

    Threads that outlive us are waited for, unless it is to be at once: what they do is of use to nobody then.
    """
    if threading.active_count() > 1 and not at_once:
        sys.exit(code)
    atexit._run_exitfuncs()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _take_config(words: list[str]) -> tuple[list[str], str | None]:
    """`--config FILE` belongs to every command, so it is taken off before the command sees its words."""
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            return words[:place] + words[place + 2 :], words[place + 1]
        if word.startswith("--config="):
            return words[:place] + words[place + 1 :], word.partition("=")[2]
    return words, None
