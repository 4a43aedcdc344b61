"""Output of `merge`: counts, missing and duplicate rollouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollforge.cli.render.console import say
from rollforge.cli.render.table import put

if TYPE_CHECKING:
    from rollforge.steps.merge import MergeResult, RolloutOfShard

SHOWN = 5


def print_merge(result: MergeResult) -> None:
    """Print the counts, then gaps and duplicates with their locations."""
    put(f"{result.written:,} of {result.expected:,} rollouts of {result.shards:,} shards → {result.out}")
    if result.missing:
        put(f"  missing   {result.missing:,} rollouts: {_named(result.gaps, result.missing)}")
    if result.doubled:
        put(
            f"  doubled   {result.doubled:,} rows left out, the later one counts: {_named(result.doubles, result.doubled)}"
        )
    if result.unreadable_lines:
        put(f"  damaged   {result.unreadable_lines:,} lines are no rollouts")
    if result.owed_shards:
        say(f"collect these shards again, then merge: {result.owed_shards}")


def _named(rollouts: list[RolloutOfShard], count: int) -> str:
    shown = ", ".join(f"task {one.task} sample {one.rollout} (shard {one.shard})" for one in rollouts[:SHOWN])
    return f"{shown}, …" if count > SHOWN else shown
