"""Collect: tasks in, a run on disk. `Collection` is the step; the modules beside it are its parts.

plan       what is owed: tasks as sent, fingerprint, ledger
engine     pulls work lazily, runs agent and verifier, writes
live       counters that cost nothing per rollout and answer the display
machinery  everything the engine needs, opened and closed
forecast   what a pilot says about the whole run, and what the bottleneck is
ending     why it stopped, and what that means for the exit code
"""

from rollforge.steps.collect.ending import CollectResult, Ending
from rollforge.steps.collect.observer import Observer
from rollforge.steps.collect.options import CollectOptions
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
