"""Follows the metrics of the model server, where it has some, and lets the limit of requests in flight know.

A server without metrics, or one that stops telling, changes nothing: throughput and 429s decide as ever.
"""

from __future__ import annotations

import asyncio
import time

from rollforge.endpoint import Client, Limiter
from rollforge.endpoint.server_metrics import ServerLoad, joined, read_load
from rollforge.errors import Failure

LOOK_EVERY_S = 1.0
FIRST_LOOKS_S = (0.0, 5.0, 20.0)
"""When to look first: a server may still be starting."""


async def follow_server(client: Client, limiter: Limiter) -> None:
    """Look at the server's load once a second, until cancelled; ends at once when it has no metrics."""
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
    """The load of all servers together; None when one of them has other metrics. Raises `Failure`."""
    loads = [read_load(page) for page in await client.metrics_pages()]
    reported_loads = [load for load in loads if load is not None]
    return joined(reported_loads) if reported_loads and len(reported_loads) == len(loads) else None


def deciding_signal(limiter: Limiter) -> str | None:
    """A note on the last change by the server's own load; None when it never decided."""
    changes = [change for change in limiter.history if change.reason.startswith("server: ")]
    if not changes:
        return None
    return f"-c auto follows the metrics of the server; {changes[-1].limit} in flight at last ({changes[-1].reason})"
