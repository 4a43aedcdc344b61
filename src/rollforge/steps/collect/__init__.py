"""Collect: tasks in, a run on disk. `run` is the step; the modules beside it are its parts.

plan      what is owed: tasks as sent, fingerprint, ledger
engine    pulls work lazily, runs agent and verifier, writes
live      counters that cost nothing per rollout and answer the display
forecast  what a pilot says about the whole run, and what the bottleneck is
"""

from rollforge.steps.collect.observer import Observer
from rollforge.steps.collect.options import CollectOptions
from rollforge.steps.collect.plan import BadLine, BadTasks, Plan
from rollforge.steps.collect.step import Collection, CollectResult, Ending

__all__ = [
    "BadLine",
    "BadTasks",
    "CollectOptions",
    "CollectResult",
    "Collection",
    "Ending",
    "Observer",
    "Plan",
]
