"""`rollforge merge`: a run of shards as the classic single file."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rollforge.cli.converters import Flag
from rollforge.cli.render.console import print_json, say
from rollforge.errors import Exit

EXAMPLE = "rollforge merge runs/first"


def merge(
    run: str, /, *, out: Annotated[str | None, Parameter(name=["--out", "-o"])] = None, json: Flag = False
) -> Exit:
    """Merge the shards of a run into one rollouts file, ordered by task and sample.

    Names what is missing and what is doubled; exit code 3 when rollouts are missing. The shards stay, and stay the run.

    Parameters
    ----------
    run
        The run: the folder that was collected with --shard, --workers or --on.
    out
        File to write; by default rollouts.jsonl in the run.
    json
        Print one JSON object on stdout and nothing else.
    """
    from rollforge.steps.merge import merge_run
    from rollforge.store import RunFiles

    files = RunFiles(run)
    if out is None and not files.is_sharded and files.rollouts.is_file():
        if json:
            print_json({"run": run, "out": str(files.rollouts), "shards": 0, "exit_code": Exit.DONE})
        else:
            say(f"nothing to merge: {files.rollouts} is one file already")
        return Exit.DONE
    result = merge_run(run, out)
    if json:
        print_json(result)
    else:
        from rollforge.cli.render.merge import print_merge

        print_merge(result)
    return result.exit_code
