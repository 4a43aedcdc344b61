"""The shell: the only layer that prints or exits. `main` turns errors into messages and exit codes."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence

RUN_OTHERS_CODE = frozenset({"collect", "verify", "eval", "bench", "serve-verifier", "check", "demo"})
"""Commands that run a user's functions, whose process is left as it was found."""

NOT_WRITABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOSPC}
)
"""What the system says when files cannot be written where they should be."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    from rollforge.cli.output import report_error
    from rollforge.errors import Exit, RollforgeError

    try:
        code = run(list(sys.argv[1:] if argv is None else argv))
    except RollforgeError as error:
        report_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is no one to tell
        sys.exit(Exit.DONE)
    except OSError as error:
        if error.errno not in NOT_WRITABLE or error.filename is None:
            raise
        report_error(RollforgeError(f"{error.filename}: {error.strerror}", hint="write elsewhere: --out"))
        sys.exit(Exit.USAGE)
    sys.exit(int(code) if isinstance(code, int) else Exit.DONE)


def run(words: list[str]) -> object:
    """What the command returns: flags over environment over config file over defaults."""
    from cyclopts.config import Dict, Env

    from rollforge.cli.app import build_app
    from rollforge.cli.output import say

    words, config_path = _take_config(words)
    if any(word.startswith("+") for word in words):
        from rollforge.config import translate_gym_words

        words, notes = translate_gym_words(words)
        for note in notes:
            say(f"note: {note}")
    if words and words[0] not in RUN_OTHERS_CODE:
        _travel_light()
    app = build_app(words[0] if words else None)
    sources: list[object] = [Env("ROLLFORGE_", command=True, show=False)]
    if config_path is not None:
        from rollforge.config import read_config

        sources.append(Dict(read_config(config_path), source=config_path))
    app.config = sources
    return app(words, result_action="return_value")


def _travel_light() -> None:
    """Spare a short command what libraries do for long ones; whatever the user has chosen stays."""
    # Threads for matrices that are never large: they spin while they wait, from the moment numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Arrow's own pool keeps more memory than the columns of most runs take.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    gc.set_threshold(200_000, 20, 20)


def _take_config(words: list[str]) -> tuple[list[str], str | None]:
    """`--config FILE` belongs to every command, so it is taken off before the command sees its words."""
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            return words[:place] + words[place + 2 :], words[place + 1]
        if word.startswith("--config="):
            return words[:place] + words[place + 1 :], word.partition("=")[2]
    return words, None
