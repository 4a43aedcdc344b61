"""Signals: the first Ctrl-C drains, the second aborts; SIGTERM drains within a grace period, then ends the process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Never

from rollforge.cli.render.console import say
from rollforge.errors import Exit

TERM_GRACE_S = 30.0
"""Grace period for work in flight after SIGTERM."""
ABORT_GRACE_S = 5.0
"""Time to abort after the grace period; then the process exits, even if threads still run."""


def end_on_term() -> None:
    """Let SIGTERM end any command like Ctrl-C: close files, end child processes, exit at the latest after the grace period."""

    def terminate(*_: object) -> Never:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _end_after(TERM_GRACE_S)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminate)


def wire_signals(*, drain: Callable[[], None], abort: Callable[[], None], what: str = "in flight") -> None:
    """Handle signals in the running event loop."""
    import asyncio  # with ssl it costs most commands a tenth of their start; they never get here

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

    def drain_in_time() -> None:
        say(f"stopping: what is {what} has {TERM_GRACE_S:.0f} s to finish")
        drain()
        loop.call_later(TERM_GRACE_S, abort)

    def terminate(*_: object) -> None:
        _end_after(TERM_GRACE_S + ABORT_GRACE_S)  # not by the loop, which a verifier's own code may block
        loop.call_soon_threadsafe(drain_in_time)

    loop.add_signal_handler(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, terminate)


async def until_stopped(server: Coroutine[object, object, None]) -> None:
    """Run a server until Ctrl-C or SIGTERM; either stops it between event-loop steps, never inside a request."""
    import asyncio

    loop = asyncio.get_running_loop()
    serving = asyncio.ensure_future(server)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        _end_after(TERM_GRACE_S)
        raise KeyboardInterrupt from None


def _end_after(seconds: float) -> None:
    """Exit the process after the delay if it still runs: a hung library must not outlive the grace period."""
    timer = threading.Timer(seconds, os._exit, [int(Exit.INTERRUPTED)])
    timer.daemon = True
    timer.start()


def resume_command(*, is_after_pilot: bool = False) -> list[str]:
    """Return the command line that resumes the work: the typed words without --fresh, and after a pilot without --pilot."""
    words = [word for word in sys.argv[1:] if word != "--fresh"]
    if is_after_pilot:
        words = [
            word
            for before, word in zip(["", *words], words, strict=False)
            if "--pilot" not in (before, word) and not word.startswith("--pilot=")
        ]
    return ["rollforge", *words]
