"""A model server with a KV cache: continuous batching, a queue, preemption, and `/metrics` as vLLM or SGLang writes them.

The cache holds the prompt and generated tokens of every running request. Requests share the machine's speed, which grows with
their number and levels off. When the cache overflows, the newest request is preempted and restarted. The caller passes the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec


class KvOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Size of the simulated machine."""

    tokens: int = 100_000
    """Capacity of the cache in tokens."""
    most_running: int = 256
    """Requests that run at once; others queue."""
    tokens_per_second: float = 4000.0
    """Limit of the total generation speed with very many requests."""
    half: float = 24.0
    """Number of running requests that reach half of that speed."""


@dataclass(slots=True, eq=False)
class KvRequest:
    """One request: its lengths and progress."""

    prompt: float
    output: float
    done: float = 0.0
    is_finished: bool = False

    @property
    def held(self) -> float:
        """Tokens that it occupies in the cache."""
        return self.prompt + self.done


class KvServer:
    """A cache with running and queued requests."""

    def __init__(self, options: KvOptions) -> None:
        self.options = options
        self.running: list[KvRequest] = []
        self.waiting: deque[KvRequest] = deque()
        self.preemptions = 0
        self.generated = 0.0
        self.others = 0.0
        """Tokens of the cache occupied by other clients."""
        self._used = 0.0
        self._now: float | None = None

    @property
    def usage(self) -> float:
        """Share of the cache in use."""
        return max(0.0, min(1.0, (self._used + self.others) / self.options.tokens))

    def add(self, request: KvRequest) -> None:
        """Queue a request."""
        self.waiting.append(request)
        self._admit()

    def drop(self, request: KvRequest) -> None:
        """Remove a request whose client left."""
        if request in self.running:
            self.running.remove(request)
            self._used -= request.held
        elif request in self.waiting:
            self.waiting.remove(request)

    def advance_to(self, now: float, step_s: float = 0.05) -> None:
        """Advance the simulation to time `now`."""
        if self._now is None:
            self._now = now
        while now - self._now > 1e-9:
            seconds = min(step_s, now - self._now)
            self._now += seconds
            self.step(seconds)

    def step(self, seconds: float) -> list[KvRequest]:
        """Advance by a short time; returns the requests that finished."""
        self._admit()
        count = len(self.running)
        if not count:
            return []
        each = self.options.tokens_per_second * seconds / (count + self.options.half)
        finished = []
        for request in self.running:
            more = min(each, request.output - request.done)
            request.done += more
            self._used += more
            self.generated += more
            if request.done >= request.output - 1e-9:
                request.is_finished = True
                finished.append(request)
        for request in finished:
            self.running.remove(request)
            self._used -= request.held
        self._preempt()
        self._admit()
        return finished

    def _preempt(self) -> None:
        while self._used + self.others > self.options.tokens and len(self.running) > 1:
            victim = self.running.pop()
            self._used -= victim.held
            self.generated -= victim.done  # it has to generate them again
            victim.done = 0.0
            self.waiting.appendleft(victim)
            self.preemptions += 1

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.options.most_running:
            prompt = self.waiting[0].prompt
            if self.running and self._used + self.others + prompt > self.options.tokens:
                return
            request = self.waiting.popleft()
            self._used += request.held
            self.running.append(request)


def make_kv(tokens: int, requests: int, speed: float) -> KvServer | None:
    """A server with a cache of this number of tokens; None for 0."""
    if not tokens:
        return None
    return KvServer(KvOptions(tokens=tokens, most_running=max(1, requests), tokens_per_second=speed))


def metrics_page(server: KvServer, style: str) -> bytes:
    """The server's metrics in Prometheus format, with names of `vllm` or `sglang`."""
    names = {
        "vllm": (
            "num_requests_running",
            "num_requests_waiting",
            "kv_cache_usage_perc",
            "num_preemptions_total",
        ),
        "sglang": (
            "num_running_reqs",
            "num_queue_reqs",
            "token_usage",
            "num_retracted_requests_total",
        ),
    }[style]
    values = (len(server.running), len(server.waiting), server.usage, server.preemptions)
    lines = []
    for name, value in zip(names, values, strict=True):
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(
            f'# TYPE {style}:{name} {kind}\n{style}:{name}{{model_name="simulated"}} {float(value)}\n'
        )
    return "".join(lines).encode()
