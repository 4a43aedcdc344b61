"""`python -m rollforge.simulate`: child process of `SimulatedProcess`. Users run `rollforge simulate` instead."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading

import msgspec

from rollforge.records import to_json
from rollforge.simulate.simulate_options import SimulateOptions
from rollforge.simulate.simulated_server import SimulatedServer, run_quickly

_PARENT_CHECK_SECONDS = 2.0


async def _serve(options: SimulateOptions) -> None:
    async with SimulatedServer(options) as server:
        record = {"simulated": True, "base_url": server.base_url, "pid": os.getpid()}
        sys.stdout.buffer.write(to_json(record) + b"\n")
        sys.stdout.buffer.flush()
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        # A thread, because standard input may be a file or a terminal, which event loops cannot watch.
        threading.Thread(target=_wait_for_parent, args=(loop, ended), daemon=True).start()
        parent = os.getppid()
        while not ended.is_set() and os.getppid() == parent:
            # A fork of the parent may hold the other end of standard input open after the parent has gone.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _PARENT_CHECK_SECONDS)


def _wait_for_parent(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    try:
        while sys.stdin.buffer.read(4096):
            pass
    finally:  # also when reading fails: without a parent to watch, the child must end
        loop.call_soon_threadsafe(ended.set)


if __name__ == "__main__":
    run_quickly(_serve(msgspec.json.decode(sys.stdin.buffer.readline(), type=SimulateOptions)))
