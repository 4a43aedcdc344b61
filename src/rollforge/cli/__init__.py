"""The shell: the only layer that prints or exits. `main` turns errors into messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    from rollforge.cli.app import build_app
    from rollforge.cli.output import report_error
    from rollforge.errors import Exit, RollforgeError

    try:
        words = list(sys.argv[1:] if argv is None else argv)
        code = build_app(words[0] if words else None)(words, result_action="return_value")
    except RollforgeError as error:
        report_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output has gone; there is no one to tell
        sys.exit(Exit.DONE)
    sys.exit(int(code) if isinstance(code, int) else Exit.DONE)
