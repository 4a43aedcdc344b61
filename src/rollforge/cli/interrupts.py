"""This module wires signals: the first Ctrl-C drains, the second aborts; SIGTERM drains within a grace period."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from rollforge.cli.render.console import say

TERM_GRACE_S = 30.0
"""After SIGTERM, what is in flight may take this long to finish."""


def wire_signals(*, drain: Callable[[], None], abort: Callable[[], None], what: str = "in flight") -> None:
    """Handle signals in the running event loop from now on."""
    loop = asyncio.get_running_loop()
    presses = 0

    def interrupt() -> None:
        nonlocal presses
        presses += 1
        if presses == 1:
            say(f"stopping: what is {what} finishes; press Ctrl-C again to drop it")
            drain()
        else:
            abort()

    def terminate() -> None:
        say(f"stopping: what is {what} has {TERM_GRACE_S:.0f} s to finish")
        drain()
        loop.call_later(TERM_GRACE_S, abort)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, terminate)


def resume_command(*, is_after_pilot: bool = False) -> list[str]:
    """The words that were typed, without --fresh: they resume the work. A pilot that is done is not asked for again."""
    words = [word for word in sys.argv[1:] if word != "--fresh"]
    if is_after_pilot:
        words = [
            word
            for before, word in zip(["", *words], words, strict=False)
            if "--pilot" not in (before, word) and not word.startswith("--pilot=")
        ]
    return ["rollforge", *words]
