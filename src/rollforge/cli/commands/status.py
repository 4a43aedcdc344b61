"""`rollforge status`: progress of a run, from another shell."""

from __future__ import annotations

from rollforge.cli.render.console import print_json
from rollforge.cli.values import Flag
from rollforge.errors import Exit

EXAMPLE = "rollforge status runs/first"


def status(run: str, /, *, json: Flag = False) -> Exit:
    """Tell how far a run is: progress, rate, time left, failures by class.

    Parameters
    ----------
    run
        The run: a directory, or a rollouts file.
    json
        Print one JSON object on stdout and nothing else.
    """
    from rollforge.steps.status import read_status

    state = read_status(run)
    if json:
        print_json(state)
    else:
        from rollforge.cli.render.status import print_status

        print_status(state)
    return Exit.DONE
