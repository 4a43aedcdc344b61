"""Collect: tasks in, a run on disk. `Collection` is the step; the modules beside it are its parts.

plan       what is owed: tasks as sent, fingerprint, ledger
engine     pulls work lazily, runs agent and verifier, writes
live       counters that cost nothing per rollout and answer the display
machinery  everything the engine needs, opened and closed
forecast   what a pilot says about the whole run, and what the bottleneck is
ending     why it stopped, and what that means for the exit code
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rollforge.steps.collect.options import CollectOptions

if TYPE_CHECKING:
    from rollforge.steps.collect.ending import CollectResult, Ending
    from rollforge.steps.collect.observer import Observer
    from rollforge.steps.collect.plan import BadTaskLine, BadTasks, CollectPlan
    from rollforge.steps.collect.step import Collection

__all__ = [
    "BadTaskLine",
    "BadTasks",
    "CollectOptions",
    "CollectPlan",
    "CollectResult",
    "Collection",
    "Ending",
    "Observer",
]

_HOME = {
    "BadTaskLine": "plan", "BadTasks": "plan", "CollectResult": "ending", "Collection": "step", "Ending": "ending",
    "Observer": "observer", "CollectPlan": "plan",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load the engine on use: `collect --help` needs the options only."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"rollforge.steps.collect.{_HOME[name]}"), name)
