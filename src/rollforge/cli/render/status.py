"""Progress of a run in a few lines."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rollforge.cli.render.console import say
from rollforge.cli.render.progress import duration, number
from rollforge.cli.render.table import put
from rollforge.store.verifier_failures import failures_text

if TYPE_CHECKING:
    from rollforge.steps.status import Status


def print_status(status: Status) -> None:
    """Print state, speed, reward and failures; text from files is escaped."""
    for line in _lines(status):
        put(line)


def _lines(status: Status) -> list[str]:
    share = status.finished / max(status.expected, 1)
    lines = [f"{status.state}: {status.finished:,} of {status.expected:,} rollouts ({share:.1%})"]
    if status.state == "running":
        lines.append(
            f"  speed     {number(status.rate)} rollouts/s, {number(status.tokens_per_s)} tokens/s, eta {duration(status.eta_s)}"
        )
        lines.append(
            f"  requests  {status.in_flight} in flight, limit {status.limit}, oldest {duration(status.slowest_s)}"
        )
    if status.reward:
        interval = status.reward.ci
        width = f" ± {(interval[1] - interval[0]) / 2:.3f}" if interval else ""
        since = "" if status.reward.is_whole else " since the last start"
        lines.append(f"  reward    {status.reward.mean:.3f}{width} over {status.reward.n:,} judged{since}")
    if status.unjudged:
        lines.append(f"  unjudged  {status.unjudged:,}")
    if status.failed:
        lines.append(
            "  failed    " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(status.failed.items()))
        )
    if status.verifier_failures:
        lines.append(f"  verifier  {failures_text(list(status.verifier_failures.items()))}")
    if status.is_stale:
        say(f"warning: the process has not reported for {duration(status.updated_s_ago)}; it may be stuck")
    if status.state == "interrupted" and status.command:
        lines.append(f"  resume    {shlex.join(status.command)}")
    return lines
