"""`rollforge import`: other tools' logs as a run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from rollforge.cli.converters import Flag
from rollforge.cli.render.console import print_json, say
from rollforge.errors import Exit
from rollforge.statistics.counts import count_of

EXAMPLE = "rollforge import inspect logs/math.eval -o runs/math"


def import_(
    kind: str,
    path: str,
    /,
    *,
    out: Annotated[str, Parameter(name=["--out", "-o"])],
    reward: str | None = None,
    json: Flag = False,
) -> Exit:
    """Make a run of another tool's log: inspect, verifiers or harbor. Missing rewards stay missing.

    Parameters
    ----------
    kind
        Whose log: `inspect` (a .eval or .json file), `verifiers` (traces.jsonl or results.jsonl), `harbor` (a folder of trials).
    path
        The log.
    out
        The run to make: a folder, or a rollouts file.
    reward
        Which score is the reward, where a log has several.
    json
        Print one JSON object on stdout.
    """
    from rollforge.steps.import_run import import_run

    result = import_run(kind, path, out, reward=reward)
    if json:
        print_json(result)
        return Exit.DONE
    say(
        f"imported {count_of(result.rollouts, 'rollout')} of {count_of(result.tasks, 'task')}: {result.judged:,} judged, "
        f"{result.unjudged:,} unjudged, {result.failed:,} failed"
    )
    for note in result.notes:
        say(f"  note: {note}")
    say(f"  next: rollforge check {result.run}")
    return Exit.DONE
