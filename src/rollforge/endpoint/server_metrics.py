"""Load of a model server, read from Prometheus metrics of vLLM, SGLang or llama.cpp."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_LINE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{[^}]*\})?\s+([-+0-9.eEinfNa]+)", re.MULTILINE)

_NAMES = {
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred"),
    "kv": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
    ),
    "preemptions": (
        "vllm:num_preemptions_total",
        "vllm:num_preemptions",
        "sglang:num_retracted_requests_total",
        "sglang:num_retracted_reqs",  # of the last batch only
    ),
}


_MOST = 1e15
"""Upper bound of plausible counts."""


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The load of one server, or of several together."""

    running: float
    waiting: float
    kv: float | None = None
    """Share of the KV cache in use, 0 to 1, of the fullest server; None if no server reports it."""
    preemptions: float = 0.0
    """Requests preempted because the cache was full, since the server started."""


def read_load(text: str) -> ServerLoad | None:
    """The load in a metrics page; None if it has neither running nor waiting requests."""
    values: dict[str, list[float]] = {}
    for name, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if 0 <= number < _MOST:  # neither NaN nor infinite nor negative
            values.setdefault(name, []).append(number)
    samples = {
        field: next((values[name] for name in names if name in values), None)
        for field, names in _NAMES.items()
    }
    running, waiting, kv = samples["running"], samples["waiting"], samples["kv"]
    if running is None or waiting is None:
        return None
    return ServerLoad(
        running=sum(running),
        waiting=sum(waiting),
        kv=max(kv) if kv else None,
        preemptions=sum(samples["preemptions"] or []),
    )


def joined(loads: Iterable[ServerLoad]) -> ServerLoad:
    """Combined load of several servers: sums of requests, and the fullest cache."""
    every = list(loads)
    caches = [load.kv for load in every if load.kv is not None]
    return ServerLoad(
        running=sum(load.running for load in every),
        waiting=sum(load.waiting for load in every),
        kv=max(caches) if caches else None,
        preemptions=sum(load.preemptions for load in every),
    )
