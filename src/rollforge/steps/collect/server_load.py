"""Polls the model server's load metrics, if it has any, and passes them to the concurrency limiter.

Without metrics, throughput and 429s alone determine the limit.
"""

from __future__ import annotations

import asyncio
import logging
import time

from rollforge.endpoint import Client, Limiter
from rollforge.endpoint.server_metrics import ServerLoad, joined, read_load
from rollforge.errors import Failure
from rollforge.runtime.logged_once import LoggedOnce
from rollforge.runtime.on_error import OnError

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
FIRST_LOOKS_S = (0.0, 5.0, 20.0)
"""Times of the first polls; a server may still be starting."""


async def follow_server(client: Client, limiter: Limiter) -> None:
    """Poll the server's load once a second until cancelled; returns at once if it has no metrics.

    A failure of this task costs the run nothing: the limiter goes on without the server's load.
    """
    with LoggedOnce(logger, "the server's load is no longer read"), OnError(limiter.forget_server):
        await _follow(client, limiter)


async def _follow(client: Client, limiter: Limiter) -> None:
    for pause_s in FIRST_LOOKS_S:
        await asyncio.sleep(pause_s)
        try:
            load = await look(client)
        except Failure as failure:
            if failure.status is not None:
                return  # it answers, and has none
            continue
        if load is None:
            return
        limiter.observe_server(load, time.monotonic())
        break
    else:
        return
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            load = await look(client)
        except Failure:
            limiter.forget_server()
            continue
        if load is not None:
            limiter.observe_server(load, time.monotonic())


async def look(client: Client) -> ServerLoad | None:
    """Combined load of all servers; None if one of them has other metrics. Raises `Failure`."""
    loads = [read_load(page) for page in await client.metrics_pages()]
    reported_loads = [load for load in loads if load is not None]
    return joined(reported_loads) if reported_loads and len(reported_loads) == len(loads) else None


def deciding_signal(limiter: Limiter) -> str | None:
    """A note on the last limit change caused by the server's load; None without one."""
    changes = [change for change in limiter.history if change.reason.startswith("server: ")]
    if not changes:
        return None
    return f"-c auto follows the metrics of the server; {changes[-1].limit} in flight at last ({changes[-1].reason})"
