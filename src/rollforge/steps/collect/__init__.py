"""Collect: tasks in, a run on disk. `Collection` is the step; the modules beside it are its parts.

plan       what is owed: tasks as sent, fingerprint, ledger
engine     pulls work lazily, runs agent and verifier, writes
live       counters that cost nothing per rollout and answer the display
machinery  everything the engine needs, opened and closed
forecast   what a pilot says about the whole run
bottleneck what to change to go faster
goal/      collect until enough groups, pairs or examples are usable
batch/     the same by batches at a provider
shards/    the same over shards and workers
ending     why it stopped, and what that means for the exit code
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollforge.steps.collect.collect_options import CollectOptions

if TYPE_CHECKING:
    from rollforge.steps.collect.ending import CollectResult
    from rollforge.steps.collect.observer import Observer
    from rollforge.steps.collect.plan import CollectPlan
    from rollforge.steps.collect.shards.scale_options import ScaleOptions
    from rollforge.steps.collect.shards.sharded import ShardedCollection
    from rollforge.steps.collect.step import Collection
    from rollforge.steps.collect.stop_reason import Ending
    from rollforge.steps.collect.task_writer import BadTaskLine, BadTasks

__all__ = [
    "BadTaskLine",
    "BadTasks",
    "CollectOptions",
    "CollectPlan",
    "CollectResult",
    "Collection",
    "Ending",
    "Observer",
    "ScaleOptions",
    "ShardedCollection",
]

_MODULE_OF = {
    "BadTaskLine": "task_writer", "BadTasks": "task_writer", "CollectResult": "ending", "Collection": "step", "Ending": "stop_reason",
    "Observer": "observer", "CollectPlan": "plan", "ScaleOptions": "shards.scale_options", "ShardedCollection": "shards.sharded",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import the engine on first use, since `collect --help` needs only the options."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rollforge.steps.collect.{_MODULE_OF[name]}"), name)
