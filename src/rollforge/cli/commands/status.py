"""`rollforge status`: how far a run is, from another shell."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from rollforge.cli.render.console import print_json, say
from rollforge.cli.render.progress import duration, number
from rollforge.errors import Exit

if TYPE_CHECKING:
    from rollforge.steps.status import Status

EXAMPLE = "rollforge status runs/first"


def status(run: str, /, *, json: Annotated[bool, Parameter(negative=())] = False) -> Exit:
    """Tell how far a run is: progress, rate, time left, failures by class.

    Parameters
    ----------
    run
        The run: a directory, or a rollouts file.
    json
        Print one JSON object on stdout and nothing else.
    """
    from rollforge.steps.status import read_status

    found = read_status(run)
    if json:
        print_json(found)
    else:
        for line in _lines(found):
            print(line)
    return Exit.DONE


def _lines(found: Status) -> list[str]:
    share = found.finished / max(found.expected, 1)
    lines = [f"{found.state}: {found.finished:,} of {found.expected:,} rollouts ({share:.1%})"]
    if found.state == "running":
        lines.append(
            f"  speed     {number(found.rate)} rollouts/s, {number(found.tokens_per_s)} tokens/s, eta {duration(found.eta_s)}"
        )
        lines.append(
            f"  requests  {found.in_flight} in flight, limit {found.limit}, oldest {duration(found.slowest_s)}"
        )
    if found.reward:
        interval = found.reward.ci
        width = f" ± {(interval[1] - interval[0]) / 2:.3f}" if interval else ""
        since = "" if found.reward.is_whole else " since the last start"
        lines.append(f"  reward    {found.reward.mean:.3f}{width} over {found.reward.n:,} judged{since}")
    if found.unjudged:
        lines.append(f"  unjudged  {found.unjudged:,}")
    if found.failed:
        lines.append(
            "  failed    " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.failed.items()))
        )
    if found.is_stale:
        say(f"warning: the process has not reported for {duration(found.updated_s_ago)}; it may be stuck")
    if found.state == "interrupted" and found.command:
        lines.append(f"  resume    {shlex.join(found.command)}")
    return lines
