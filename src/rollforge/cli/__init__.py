"""The shell: the only layer that prints or exits. `main` turns errors into messages and exit codes."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence

from rollforge.errors import Exit, RollforgeError
from rollforge.interrupts import held_back
from rollforge.redaction import SECRETS, guard_output

RUN_OTHERS_CODE = frozenset({"collect", "verify", "eval", "bench", "serve-verifier", "check", "demo"})
"""Commands that run a user's functions: their process keeps Python's and the libraries' own settings."""

NOT_WRITABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOSPC}
)
"""Errors of a path that cannot be written."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a full disk; they often name no file: a file being written, or the target of stdout."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    guard_output()
    SECRETS.learn_words(sys.argv[1:] if argv is None else argv)
    SECRETS.learn_environment()
    try:
        if argv is None:
            from rollforge.cli.interrupts import end_on_term

            end_on_term()
        code = run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except RollforgeError as error:
        _report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        _drop_output()  # the reader has gone (`| head`): there is nobody left to tell
        sys.exit(Exit.DONE)
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            _drop_output()
        elif error.errno not in NOT_WRITABLE or error.filename is None:
            raise
        _report(RollforgeError(f"{error.filename or 'cannot write'}: {error.strerror}", hint=_hint(error)))
        sys.exit(Exit.USAGE)
    sys.exit(int(code) if isinstance(code, int) else Exit.DONE)


def run(words: list[str]) -> object:
    """Run one command and return its result; flags win over environment over config file over defaults."""
    words, config_path = _take_config(words)
    with held_back():
        if words and words[0] not in RUN_OTHERS_CODE:
            _tune_libraries()
        _print_in_any_locale()
        from rollforge.cli.app import run_app
    if any(word.startswith("+") for word in words) or words[:1] in (["gym"], ["eval"]):
        words = _translate_gym_words(words)
    return run_app(words, config_path)


def _report(error: RollforgeError) -> None:
    from rollforge.cli.render.console import report_error

    report_error(error)


def _drop_output() -> None:
    """Send the rest of stdout to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hint(error: OSError) -> str:
    exists = error.errno in (errno.EACCES, errno.EPERM) and os.path.exists(error.filename)  # noqa: PTH110  (bytes too)
    if exists and not os.access(error.filename, os.R_OK):
        return "get permission to read it, or read a copy"
    return "make room or get permission there, or write elsewhere: --out"


def _tune_libraries() -> None:
    # OpenBLAS starts threads when numpy is imported, and they spin while they wait; our matrices are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Imported modules stay and rows have no cycles: frequent collections take a tenth of a short command's time.
    gc.set_threshold(200_000, 20, 20)


def _print_in_any_locale() -> None:
    """Let a terminal without UTF-8 show `?` for what it lacks; JSON, CSV and files are always UTF-8."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _take_config(words: list[str]) -> tuple[list[str], str | None]:
    """Take `--config FILE` off the words: it belongs to every command."""
    for position, word in enumerate(words):
        if word == "--config" and position + 1 < len(words):
            return words[:position] + words[position + 2 :], words[position + 1]
        if word.startswith("--config="):
            return words[:position] + words[position + 1 :], word.partition("=")[2]
    return words, None


def _translate_gym_words(words: list[str]) -> list[str]:
    """Replace NeMo Gym's `+key=value` words by flags."""
    from rollforge.cli.render.console import say
    from rollforge.config import is_gym_command, translate_gym_command, translate_gym_words

    if is_gym_command(words):
        words = translate_gym_command(words)
    flags, notes = translate_gym_words(words)
    for note in notes:
        say(f"note: {note}")
    return flags
