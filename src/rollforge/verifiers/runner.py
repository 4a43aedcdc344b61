"""This module makes a verifier ready to run: in the event loop, or in worker processes, with equal answers judged once.

Async verifiers and those that declare themselves cheap run in the event loop, but for tasks of which `is_cheap_for` says no; every
other one in long-lived worker processes with a hard timeout and a memory limit. Equal answers to the same task share one judgement,
also while it is still running.
"""

from __future__ import annotations

import asyncio
from typing import Literal, Protocol

import msgspec

from rollforge.errors import Failure, UsageError
from rollforge.records import Response, Task, Verdict
from rollforge.verifiers.base import Mode, Verifier
from rollforge.verifiers.calling import Stopped, verifier_failure
from rollforge.verifiers.inline import LoopEngine
from rollforge.verifiers.keys import Keys

Workers = int | Literal["auto"]
Sharing = Literal["auto", "always", "never"]
REMEMBERED = 200_000
"""Verdicts kept in memory for equal answers; older ones are judged again, or found in the cache on disk."""


class VerdictStore(Protocol):
    """Where verdicts outlive a run."""

    def get(self, key: bytes) -> Verdict | None:
        """The verdict under the key."""

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Keep a verdict."""

    def close(self) -> None:
        """Write what is still held."""


class Ruling(msgspec.Struct, frozen=True):
    """A verdict and how it came about."""

    verdict: Verdict
    seconds: float
    """Inside the verifier; 0 when an equal answer had been judged before."""
    shared: int
    """How many rollouts this judgement has served so far, this one included."""
    is_cached: bool = False
    """It came from the cache on disk."""


class JudgeCounters(msgspec.Struct):
    """What the live display and the summary read; counts are since the start."""

    judged: int = 0
    """Calls of the verifier that gave a verdict."""
    failed: int = 0
    shared: int = 0
    """Rollouts served by the judgement of an equal answer."""
    cache_hits: int = 0
    lookups: int = 0
    """Rollouts that asked whether an equal answer was judged already; 0 for a verifier that is not deterministic."""
    seconds: float = 0.0
    """Inside the verifier, summed over calls that gave a verdict."""
    queued: int = 0
    busy: int = 0
    workers: int = 0
    """0 when the verifier runs in the event loop."""
    replaced: int = 0
    """Workers that died or were ended, and were replaced."""

    @property
    def seconds_per_verdict(self) -> float | None:
        return self.seconds / self.judged if self.judged else None

    @property
    def hit_rate(self) -> float | None:
        """The share of rollouts that cost no call; None when nothing was looked up."""
        return (self.shared + self.cache_hits) / self.lookups if self.lookups else None


class Engine(Protocol):
    """Where calls run."""

    async def start(self) -> None: ...

    async def run(self, task: Task, responses: list[Response]) -> tuple[float, list[Verdict]]: ...

    async def close(self) -> None: ...


class RunningJudge:
    """A `Judge` with everything around the call: sharing, cache, counters."""

    def __init__(
        self, verifier: Verifier, engine: Engine, cache: VerdictStore | None, *, sharing: Sharing = "auto"
    ) -> None:
        self.verifier = verifier
        self._engine = engine
        # For a cheap verifier, finding out that an answer was seen before costs as much as judging it again.
        is_worth_it = sharing == "always" or (
            sharing == "auto" and (not verifier.is_cheap or cache is not None)
        )
        self._is_sharing = verifier.is_deterministic and not verifier.is_group and is_worth_it
        self._cache = cache if self._is_sharing else None
        if cache is not None and self._cache is None:
            cache.close()  # nothing is to be kept
        self._keys = Keys(verifier.fingerprint)
        self._known: dict[bytes, tuple[Verdict, int]] = {}
        self._running: dict[bytes, asyncio.Future[None] | None] = {}
        self._counters = JudgeCounters()
        self._is_draining = False

    @property
    def name(self) -> str:
        return self.verifier.name

    @property
    def fingerprint(self) -> str:
        return self.verifier.fingerprint

    @property
    def mode(self) -> Mode | None:
        """Which way it judges, when it offers two."""
        return self.verifier.mode

    @property
    def is_group(self) -> bool:
        """It judges the responses to one task together: use `judge_group`."""
        return self.verifier.is_group

    @property
    def counters(self) -> JudgeCounters:
        """The state of things now."""
        counters, engine = self._counters, self._engine
        counters.queued = getattr(engine, "queued", 0)
        counters.busy = getattr(engine, "busy", getattr(engine, "running", 0))
        counters.workers = getattr(engine, "size", 0)
        counters.replaced = getattr(engine, "replaced", 0)
        return counters

    @property
    def note(self) -> str | None:
        """What a user should know about how this verifier runs."""
        if getattr(self._engine, "is_forked", False):
            return (
                f"{self.name} cannot be imported by another process (a lambda, a closure or a function of the running script): "
                "its workers are copies of this process. Put it into a file of its own for clean ones."
            )
        own = getattr(self.verifier.function, "note_for", None)
        text: str | None = own(self.verifier.options) if callable(own) else None
        return text

    async def start(self) -> None:
        """Start workers or the verifier's own set-up; raises `UsageError` when that fails."""
        await self._engine.start()

    async def judge(self, task: Task, response: Response) -> Verdict:
        """The verdict; raises `Failure("verifier", "verifier", …)` when there is none."""
        if self._is_sharing or self.verifier.is_group:
            return (await self.rule(task, response)).verdict
        (verdict,), _ = await self._called(task, [response])
        return verdict

    async def rule(self, task: Task, response: Response) -> Ruling:
        """The verdict with its cost and how many rollouts it has served."""
        if self.verifier.is_group:
            raise verifier_failure(
                f"{self.name} scores the samples of a task together: collect with --no-verify, then run rollforge verify"
            )
        if not self._is_sharing:
            (verdict,), seconds = await self._called(task, [response])
            return Ruling(verdict, seconds, 1)
        key = self._keys.key(task, response)
        self._counters.lookups += 1
        while key in self._running and key not in self._known:
            # When the first one fails, whoever waited asks again: the failure is that call's own.
            await self._first_one(key)
        found = self._known.get(key)
        if found is not None:
            self._counters.shared += 1
            self._known[key] = (found[0], found[1] + 1)
            return Ruling(found[0], 0.0, found[1] + 1)
        if self._cache is not None:
            cached = self._cache.get(key)
            if cached is not None:
                self._counters.cache_hits += 1
                self._remember(key, cached)
                return Ruling(cached, 0.0, 1, is_cached=True)
        return await self._judged_first(key, task, response)

    async def _first_one(self, key: bytes) -> None:
        """Wait until the running judgement of an equal answer has ended, well or not."""
        future = self._running[key]
        if future is None:
            future = self._running[key] = asyncio.get_running_loop().create_future()
        await asyncio.wait([future])

    async def _judged_first(self, key: bytes, task: Task, response: Response) -> Ruling:
        self._running[key] = None
        try:
            (verdict,), seconds = await self._called(task, [response])
            self._remember(key, verdict)
        finally:
            waited_for = self._running.pop(key)
            if waited_for is not None:
                waited_for.set_result(None)
        if self._cache is not None:
            self._cache.put(key, verdict)
        return Ruling(verdict, seconds, 1)

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = (verdict, 1)

    def drain(self) -> None:
        """Begin no more calls; those that wait raise `Stopped`, those that run come to their end."""
        self._is_draining = True
        drop = getattr(self._engine, "drop_waiting", None)
        if drop is not None:
            drop()

    async def call_once(self, task: Task, response: Response) -> Verdict:
        """The verdict of a call of its own, whatever equal answers were told; raises `Failure` when there is none."""
        _, (verdict,) = await self._engine.run(task, [response])
        return verdict

    async def judge_group(self, task: Task, responses: list[Response]) -> list[Verdict]:
        """The verdicts of a group verifier, one for each response in their order."""
        verdicts, _ = await self._called(task, responses)
        return verdicts

    async def _called(self, task: Task, responses: list[Response]) -> tuple[list[Verdict], float]:
        if self._is_draining:
            raise Stopped
        try:
            seconds, verdicts = await self._engine.run(task, responses)
        except Failure:
            self._counters.failed += 1
            raise
        self._counters.judged += 1
        self._counters.seconds += seconds
        return verdicts, seconds

    async def close(self) -> None:
        """Release workers, the verifier's own resources and the cache."""
        await self._engine.close()
        if self._cache is not None:
            self._cache.close()


def parse_workers(text: str) -> Workers:
    """What `--verify-workers` said."""
    if text == "auto":
        return "auto"
    if not text.isdigit():
        raise UsageError(
            f"--verify-workers {text!r} is not understood", hint="write auto, a number, or 0 for no isolation"
        )
    return int(text)


def make_judge(
    verifier: Verifier,
    *,
    workers: Workers = "auto",
    timeout: float = 60,
    memory_mb: int = 4096,
    cache: VerdictStore | None = None,
    sharing: Sharing = "auto",
) -> RunningJudge:
    """The verifier ready to run where it belongs.

    Args:
        workers: Processes for a sync verifier; `auto` adds them while cores are idle; 0 calls it in this process, unprotected.
        timeout: Seconds one verdict may take.
        memory_mb: What one worker may take on top of what the loaded verifier needs; 0 sets no limit.
        cache: Verdicts of earlier runs; not used for a verifier that is not deterministic.
        sharing: Whether equal answers to one task are judged once; `auto` does so where finding the equal one is cheaper.
    """
    if memory_mb < 0:
        raise UsageError(f"{memory_mb} MB are no memory for a worker", hint="0 sets no limit")
    loop = LoopEngine(verifier, timeout)
    engine: Engine = loop
    is_cheap_for = getattr(verifier.function, "is_cheap_for", None) if verifier.is_cheap else None
    is_inline = verifier.is_async or (verifier.is_cheap and is_cheap_for is None)
    if workers != 0 and not is_inline:
        from rollforge.verifiers.on_demand import MixedEngine
        from rollforge.verifiers.workers import WorkerPool

        pool = WorkerPool(verifier, workers=workers, timeout=timeout, memory_mb=memory_mb)
        engine = pool if is_cheap_for is None else MixedEngine(loop, pool, is_cheap_for)
    return RunningJudge(verifier, engine, cache, sharing=sharing)


class InlineJudge(RunningJudge):
    """Runs the verifier in the event loop's own thread, one call per rollout: for small jobs and tests."""

    def __init__(self, verifier: Verifier, timeout: float = 60) -> None:
        super().__init__(verifier, LoopEngine(verifier, timeout), None)
