"""`rollforge status`: progress of a run, from another shell."""

from __future__ import annotations

from rollforge.cli.converters import Flag
from rollforge.cli.render.console import print_json
from rollforge.errors import Exit

EXAMPLE = "rollforge status runs/first"


def status(run: str, /, *, owed: Flag = False, json: Flag = False) -> Exit:
    """Tell how far a run is: progress, rate, time left, failures by class.

    Parameters
    ----------
    run
        The run: a folder, or a rollouts file.
    owed
        Print only the shards to submit again, as Slurm writes an array (0-3,17); nothing when there are none.
    json
        Print one JSON object on stdout and nothing else.
    """
    from rollforge.steps.status import owed_shards, read_status

    if owed:
        shards = owed_shards(run)
        if json:
            print_json(
                {"array": shards.array, "stale": shards.stale, "owed": shards.owed, "shards": shards.count}
            )
        elif shards.array:
            print(shards.array)
        return Exit.DONE
    state = read_status(run)
    if json:
        print_json(state)
    else:
        from rollforge.cli.render.status import print_status

        print_status(state)
    return Exit.DONE
