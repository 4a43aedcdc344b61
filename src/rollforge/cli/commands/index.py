"""`rollforge index`: a run's index, built before the first command needs it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rollforge.cli.commands.reading_flags import exit_of_tasks, index_elsewhere, say_doubt, strict_exit
from rollforge.cli.converters import Flag, within
from rollforge.cli.render.console import print_json
from rollforge.errors import Exit

EXAMPLE = "rollforge index runs/first"


def index(
    run: Annotated[list[str], Parameter(name="run")],
    /,
    *,
    workers: Annotated[int | None, within(1, 1024)] = None,
    on: str | None = None,
    json: Flag = False,
) -> Exit:
    """Build or extend the index of a run now, so that the commands that read it start at once.

    Prints a line per run: whether its index was built, extended or already current, rows, rejected lines, size on disk.

    Parameters
    ----------
    run
        A rollouts file, its folder or a glob; several runs are indexed one by one.
    workers
        Threads that read the text; with --on, processes or actors. Default: one per core for large files.
    on
        Where the text is read: local, processes, or ray (ray:HOST:PORT); --workers says how many.
    json
        Print one JSON object on stdout: `runs`, one entry each.
    """
    from rollforge.cli.render.index import print_update
    from rollforge.index import Index, recorded_states
    from rollforge.store.find import find_runs

    runs = find_runs(run)
    states = [recorded_states(files) for files in runs]
    index_elsewhere(run, on, workers)
    updates, codes = [], []
    for files, before in zip(runs, states, strict=True):
        with Index([files], workers=workers) as opened:
            if opened.doubt() is not None:  # a file of tasks: closing it deletes the index
                say_doubt(opened)
                codes.append(exit_of_tasks(opened))
                continue
            update = opened.update_since(before)
            updates.append(update)
            if not json:
                print_update(update)
            codes.append(strict_exit(opened, is_strict=False))
    if json:
        print_json({"runs": updates})
    return min((code for code in codes if code), default=Exit.DONE)
