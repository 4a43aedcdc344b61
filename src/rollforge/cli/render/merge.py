"""Output of `merge`: counts, missing and duplicate rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollforge.cli.render.console import say
from rollforge.cli.render.table import put
from rollforge.statistics.counts import count_of

if TYPE_CHECKING:
    from rollforge.steps.merge import MergeResult, RolloutOfShard

SHOWN = 5


def print_merge(result: MergeResult) -> None:
    """Print the counts, then gaps and doubles with their places."""
    put(
        f"{result.written:,} of {count_of(result.expected, 'rollout')} of {count_of(result.shards, 'shard')} → {result.out}"
    )
    if result.missing:
        put(f"  missing   {count_of(result.missing, 'rollout')}: {_named(result.gaps, result.missing)}")
    if result.doubled:
        put(
            f"  doubled   {count_of(result.doubled, 'row')} left out, the later one counts: {_named(result.doubles, result.doubled)}"
        )
    if result.unreadable_lines:
        put(f"  damaged   {result.unreadable_lines:,} lines are no rollouts")
    for path in result.short_parts[:SHOWN]:
        put(f"  short     {path} has fewer bytes than its end record counts")
    if result.short_parts:
        say("copy these files here again, or remove the folders of their shards and collect them again")
    if result.owed_shards:
        say(f"collect these shards again, then merge: {result.owed_shards}")


def _named(rollouts: list[RolloutOfShard], count: int) -> str:
    shown = ", ".join(f"task {one.task} sample {one.rollout} (shard {one.shard})" for one in rollouts[:SHOWN])
    return f"{shown}, …" if count > SHOWN else shown
