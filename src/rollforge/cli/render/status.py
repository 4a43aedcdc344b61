"""Progress of a run in a few lines."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from rollforge.cli.render.console import say
from rollforge.cli.render.progress import duration, goal_parts, number
from rollforge.cli.render.table import put
from rollforge.statistics.counts import count_of
from rollforge.store.costs import cost_text
from rollforge.store.failure_reasons import cause_text, failures_by_verifier
from rollforge.store.files import RunFiles

if TYPE_CHECKING:
    from rollforge.steps.status import OpenBatch, ShardCounts, Status
    from rollforge.store.shards import ShardState

MOST_SHOWN = 20
"""Most shards that are listed."""


def print_status(status: Status) -> None:
    """Print state, speed, reward and failures; text from files is escaped."""
    for line in _lines(status):
        put(line)


def _lines(status: Status) -> list[str]:
    share = status.finished / max(status.expected, 1)
    lines = [f"{status.state}: {status.finished:,} of {count_of(status.expected, 'rollout')} ({share:.1%})"]
    if status.state == "running":
        lines.append(
            f"  speed     {number(status.rate)} rollouts/s, {number(status.tokens_per_s)} tokens/s, eta {duration(status.eta_s)}"
        )
        limit = "?" if status.limit is None else status.limit  # a run of shards that is asked from outside
        lines.append(
            f"  requests  {status.in_flight} in flight, limit {limit}, oldest {duration(status.slowest_s)}"
        )
    if status.goal is not None:
        parts = goal_parts(status.goal, status.tokens_per_s)
        lines.append(f"  goal      {' · '.join(parts)}")
    if status.reward:
        interval = status.reward.ci
        width = f" ± {(interval[1] - interval[0]) / 2:.3f}" if interval else ""
        since = "" if status.reward.is_whole else " since the last start"
        lines.append(f"  reward    {status.reward.mean:.3f}{width} over {_judged_text(status)}{since}")
    if status.unjudged:
        lines.append(f"  unjudged  {status.unjudged:,}")
    if status.failed:
        lines.append(
            "  failed    " + ", ".join(f"{count:,} {kind}" for kind, count in sorted(status.failed.items()))
        )
    if status.failed and status.causes:
        lines.append(f"  cause     {cause_text(list(status.causes.items()))}")
    if status.shards is not None:
        lines += _shard_lines(status.shards)
    lines += _batch_lines(status.batches)
    if status.cost is not None:
        lines.append(f"  cost      {cost_text(status.cost)}")
    if status.verifier_failures:
        lines.append(f"  verifier  {failures_by_verifier([RunFiles(status.run)])}")
    if status.suspect is not None:
        count = count_of(status.suspect.rollouts, "rollout")
        lines.append(f"  suspect   {count}: {status.suspect.reason}")
        lines.append(
            "            mend the verifier and judge them again; until then these verdicts stay suspect"
        )
    if status.is_stale and status.shards is None:
        say(f"warning: the process has not reported for {duration(status.updated_s_ago)}; it may be stuck")
    if status.state in ("interrupted", "idle") and status.command:
        lines.append(f"  resume    {shlex.join(_resume_words(status))}")
    return lines


def _resume_words(status: Status) -> list[str]:
    """The command that resumes the run; in a run of shards, for the first owed shard instead of the last one started."""
    words = list(status.command)
    owed = re.match(r"\d+", status.shards.array) if status.shards is not None else None
    for position, word in enumerate(words[1:], 1):
        if owed and words[position - 1] == "--shard" and "/" in word:
            words[position] = f"{owed.group()}/{word.partition('/')[2]}"
    return words


def _judged_text(status: Status) -> str:
    """Describe the rollouts behind the running reward; in an adaptive run, the first stage."""
    assert status.reward is not None
    return f"{status.reward.n:,} judged" if status.goal is None else "the first stage of an adaptive run"


def _batch_lines(batches: list[OpenBatch]) -> list[str]:
    if not batches:
        return []
    requests = sum(one.requests for one in batches)
    lines = [f"  batches   {len(batches):,} open, {count_of(requests, 'request')}"]
    lines += [
        f"            {one.id or one.name}  {one.state:<9} {count_of(one.requests, 'request')}, sent {duration(one.age_s)} ago"
        for one in batches[:MOST_SHOWN]
    ]
    if len(batches) > MOST_SHOWN:
        lines.append(f"            … and {len(batches) - MOST_SHOWN:,} more (--json lists them all)")
    return lines


def _shard_lines(shards: ShardCounts) -> list[str]:
    counts = {"finished": shards.finished, "open": shards.open, "stale": shards.stale}
    counts |= {"owed": shards.owed, "incomplete": shards.incomplete}
    states = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    lines = [f"  shards    {shards.count:,}: {states}"]
    begun = [one for one in shards.listed if one.epochs]
    lines += [f"            {_shard_line(one)}" for one in begun[:MOST_SHOWN]]
    if len(begun) > MOST_SHOWN:
        lines.append(f"            … and {len(begun) - MOST_SHOWN:,} more (--json lists them all)")
    if shards.array:
        lines.append(f"  again     {shards.array}")
    return lines


def _shard_line(one: ShardState) -> str:
    line = f"{one.shard:05d}  {one.state:<10} {one.finished:,} of {one.expected:,}"
    if one.state in ("open", "stale") and one.owner is not None:
        heard = "" if one.heard_s_ago is None else f", heard {duration(one.heard_s_ago)} ago"
        line += f", process {one.owner.pid} on {one.owner.host}{heard}"
    if one.given_up:
        line += f", {one.given_up:,} given up"
    return line
