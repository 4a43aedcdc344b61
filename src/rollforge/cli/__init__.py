"""The shell: the only layer that prints or exits. `main` turns errors into messages and exit codes."""

from __future__ import annotations

import errno
import gc
import itertools
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from rollforge.errors import Exit, RollforgeError
from rollforge.runtime.held_interrupt import held_back
from rollforge.runtime.on_error import OnError
from rollforge.text_safety.bucket_addresses import (
    SCHEMES,
    refuse_other_scheme,
    refuse_other_store,
    split_bucket_word,
)
from rollforge.text_safety.outgoing import guard_output
from rollforge.text_safety.redaction import SECRETS

RUN_OTHERS_CODE = frozenset({"collect", "verify", "eval", "bench", "serve-verifier", "check", "demo"})
"""Commands that run a user's functions; their process keeps the default settings of Python and its libraries."""

NOT_WRITABLE = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENOSPC,
        errno.ENOENT,
    }
)
"""Errno values of a path that cannot be written. ENOENT occurs below /proc, and for a folder removed meanwhile."""

OUT_FLAGS = frozenset({"-o", "--out"})

HUB, HUB_CONFIG = "hf://", "--hub-config"

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errno values of a full disk. Such errors often name no file: a file being written, or the target of stdout."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    guard_output()
    SECRETS.learn_words(sys.argv[1:] if argv is None else argv)
    SECRETS.learn_environment()
    try:
        if argv is None:
            from rollforge.cli.signals import end_on_term

            end_on_term()
        code = run(list(sys.argv[1:] if argv is None else argv))
    except RollforgeError as error:
        _report(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # the reader has gone (`| head`)
        sys.exit(Exit.DONE)
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            _drop_output()
        elif error.errno not in NOT_WRITABLE or error.filename is None:
            raise
        _report(RollforgeError(f"{error.filename or 'cannot write'}: {error.strerror}", hint=_hint(error)))
        sys.exit(Exit.USAGE)
    if argv is None and code == Exit.INTERRUPTED:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # another Ctrl-C while Python ends would replace the exit code
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
    _refuse_other_schemes(words)
    if any(is_bucket_word(word) for word in words):
        from rollforge.cli.buckets import run_with_copies

        return run_with_copies(words, lambda local: run_app(local, config_path))
    with _without_empty_folders(words):
        return run_app(words, config_path)


def is_bucket_word(word: str) -> bool:
    """Whether a word names an object in a bucket, alone or as the value of a flag."""
    return split_bucket_word(word)[1].startswith(SCHEMES)


def _refuse_other_schemes(words: list[str]) -> None:
    for flag, value in itertools.pairwise(words):
        if flag in OUT_FLAGS:
            refuse_other_scheme(value)
    for word in words:
        flag, _, value = word.partition("=")
        if flag in OUT_FLAGS:
            refuse_other_scheme(value)
        refuse_other_store(word)


@contextmanager
def _without_empty_folders(words: list[str]) -> Iterator[None]:
    """Remove the output's folder if the command created it, it is empty, and the command fails."""
    outs = [value for flag, value in itertools.pairwise(words) if flag in OUT_FLAGS]
    outs += [word.partition("=")[2] for word in words if word.partition("=")[0] in OUT_FLAGS]
    made = [path for out in outs for path in (Path(out), *Path(out).parents) if out and not path.exists()]

    def remove() -> None:
        for path in made:
            with suppress(OSError):  # it is not there, or something is in it
                path.rmdir()

    with OnError(remove):
        yield


def _report(error: RollforgeError) -> None:
    from rollforge.cli.render.console import report_error

    report_error(error)


def _drop_output() -> None:
    """Redirect the rest of stdout to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hint(error: OSError) -> str:
    exists = error.errno in (errno.EACCES, errno.EPERM) and os.path.exists(error.filename)  # noqa: PTH110  (bytes too)
    if exists and not os.access(error.filename, os.R_OK):
        return "get permission to read it, or read a copy"
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "it is a file, and a folder is needed there: choose another name, with --out if the command has it"
    if error.errno == errno.ENOENT:
        return "check the path, or choose another --out"
    if error.errno == errno.EISDIR:
        return "it is a folder, and a file is needed there: choose another --out"
    return "make room or get permission there, or write elsewhere: --out"


def _tune_libraries() -> None:
    # OpenBLAS starts threads when numpy is imported, and they spin while they wait; our matrices are small.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own allocator keeps freed pages: a third of the memory of `prepare` and `check` on 100,000 rows.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    # Imported modules stay and rows have no cycles: frequent collections take a tenth of a short command's time.
    gc.set_threshold(200_000, 20, 20)


def _print_in_any_locale() -> None:
    """Replace characters that the terminal's encoding lacks by `?`; JSON, CSV and files are always UTF-8."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _take_config(words: list[str]) -> tuple[list[str], str | None]:
    """Extract `--config FILE` from the words, since every command accepts it."""
    other_words, path = [], None
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        config = (value if equals else next(rest, None)) if name == "--config" else None
        if config is None:
            other_words.append(word)
        elif _is_hub_config(config, words):
            other_words += [HUB_CONFIG, config]
        elif path is None:
            path = config
        else:
            other_words += [word] if equals else [word, config]
    return other_words, path


def _is_hub_config(value: str, words: list[str]) -> bool:
    """Whether `--config VALUE` names a config of a Hub dataset: the input is on the Hub, and VALUE is no file."""
    has_hub_input = any(word.startswith(HUB) or f"={HUB}" in word for word in words)
    return (
        has_hub_input
        and not value.endswith((".toml", ".yaml", ".yml", ".json"))
        and not os.path.exists(value)  # noqa: PTH110  (pathlib would be loaded for it)
    )


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
