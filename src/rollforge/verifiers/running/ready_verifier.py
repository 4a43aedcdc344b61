"""Prepares a verifier for running: selects where calls run, and shares calls between equal answers.

Async verifiers and those that declare themselves cheap run in the event loop, except for tasks that `is_cheap_for` rejects. All
others run in long-lived worker processes with a hard timeout and a memory limit. Equal answers to the same task share one call,
also while that call is still running.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from rollforge.errors import Failure, UsageError
from rollforge.records import Response, Task, Verdict
from rollforge.runtime.prints import Prints
from rollforge.verifiers import VERIFIERS
from rollforge.verifiers.base import Mode, Verifier
from rollforge.verifiers.running.answer_keys import AnswerKeys
from rollforge.verifiers.running.calling import EngineState, Stopped, verifier_failure
from rollforge.verifiers.running.in_loop import LoopEngine

logger = logging.getLogger(__name__)

Workers = int | Literal["auto"]
Sharing = Literal["auto", "always", "never"]
REMEMBERED = 200_000
"""Verdicts cached in memory for equal answers; evicted ones are judged again, or read from the disk cache."""
MOST_WORKERS = 1024
"""Upper bound of `--verify-workers`; a larger number is probably a typo."""


class VerdictStore(Protocol):
    """A store of verdicts across runs."""

    def get(self, key: bytes) -> Verdict | None:
        """The verdict stored under the key, or None."""

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Keep a verdict."""

    def close(self) -> None:
        """Write what is still in memory."""


class Ruling(msgspec.Struct, frozen=True):
    """A verdict with its duration and origin."""

    verdict: Verdict
    seconds: float
    """Seconds inside the verifier; 0 if an equal answer was judged before."""
    shared: int
    """Number of rollouts that this call has served so far, including this one."""
    is_cached: bool = False
    """Whether it came from the disk cache."""


class JudgeCounters(msgspec.Struct):
    """Counts since the start, for the live display and the summary."""

    judged: int = 0
    """Calls that gave a verdict."""
    failed: int = 0
    shared: int = 0
    """Rollouts served by another call for an equal answer."""
    cache_hits: int = 0
    lookups: int = 0
    """Rollouts for which a shared verdict was looked up; 0 for a verifier that is not deterministic."""
    seconds: float = 0.0
    """Seconds inside the verifier, summed over calls with a verdict."""
    queued: int = 0
    busy: int = 0
    workers: int = 0
    """Number of workers; 0 if the verifier runs in the event loop."""
    replaced: int = 0
    """Number of workers that died or were killed, and were replaced."""

    @property
    def seconds_per_verdict(self) -> float | None:
        return self.seconds / self.judged if self.judged else None

    @property
    def hit_rate(self) -> float | None:
        """Share of rollouts without a call of their own; None without lookups."""
        return (self.shared + self.cache_hits) / self.lookups if self.lookups else None


class CallEngine(Protocol):
    """Executes calls in the event loop, in worker processes, or both."""

    async def start(self) -> None: ...

    async def run(self, task: Task, responses: list[Response]) -> tuple[float, list[Verdict]]: ...

    def state(self) -> EngineState: ...

    def drop_waiting(self) -> None: ...

    async def close(self) -> None: ...


class RunningJudge:
    """A `Judge` with call sharing, cache and counters."""

    def __init__(
        self, verifier: Verifier, engine: CallEngine, cache: VerdictStore | None, *, sharing: Sharing = "auto"
    ) -> None:
        self.verifier = verifier
        self._engine = engine
        # For a cheap verifier, the lookup of an equal answer costs as much as another call.
        is_worth_it = sharing == "always" or (
            sharing == "auto" and (not verifier.is_cheap or cache is not None)
        )
        self._is_sharing = verifier.is_deterministic and not verifier.is_group and is_worth_it
        self._cache = cache if self._is_sharing else None
        if cache is not None and self._cache is None:
            cache.close()  # this verifier's verdicts are not cached
        self._keys = AnswerKeys(verifier.fingerprint)
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
        """Mode of a verifier with modes."""
        return self.verifier.mode

    @property
    def is_group(self) -> bool:
        """Whether it judges all responses to one task together, with `judge_group`."""
        return self.verifier.is_group

    @property
    def counters(self) -> JudgeCounters:
        """Current counts, with the state of the workers."""
        counters, state = self._counters, self._engine.state()
        counters.queued, counters.busy = state.queued, state.busy
        counters.workers, counters.replaced = state.workers, state.replaced
        return counters

    @property
    def note(self) -> str | None:
        """Note for the user on how this verifier runs."""
        if self._engine.state().is_forked:
            return (
                f"{self.name} cannot be imported by another process (a lambda, a closure or a function of the running script): "
                "its workers are copies of this process. Put it into a file of its own for clean ones."
            )
        return self.verifier.warning

    async def start(self) -> None:
        """Start workers or the verifier's set-up; raises `UsageError` on failure."""
        if self.verifier.warning:
            logger.warning("%s: %s", self.name, self.verifier.warning)  # whatever --progress or --json say
        await self._engine.start()

    async def judge(self, task: Task, response: Response) -> Verdict:
        """Return the verdict; raises `Failure("verifier", "verifier", …)` if there is none."""
        if self._is_sharing or self.verifier.is_group:
            return (await self.rule(task, response)).verdict
        (verdict,), _ = await self._called(task, [response])
        return verdict

    async def rule(self, task: Task, response: Response) -> Ruling:
        """Return the verdict with its duration and origin."""
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
            # If the first call fails, each waiter calls again: a failure belongs to its own call.
            await self._first_call(key)
        earlier_ruling = self._known.get(key)
        if earlier_ruling is not None:
            self._counters.shared += 1
            self._known[key] = (earlier_ruling[0], earlier_ruling[1] + 1)
            return Ruling(earlier_ruling[0], 0.0, earlier_ruling[1] + 1)
        if self._cache is not None:
            cached = self._cache.get(key)
            if cached is not None:
                self._counters.cache_hits += 1
                self._remember(key, cached)
                return Ruling(cached, 0.0, 1, is_cached=True)
        return await self._judged_first(key, task, response)

    async def _first_call(self, key: bytes) -> None:
        """Wait until a running call for an equal answer has ended, successfully or not."""
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
            waiters = self._running.pop(key)
            if waiters is not None:
                waiters.set_result(None)
        if self._cache is not None:
            self._cache.put(key, verdict)
        return Ruling(verdict, seconds, 1)

    def _remember(self, key: bytes, verdict: Verdict) -> None:
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[key] = (verdict, 1)

    def drain(self) -> None:
        """Start no more calls; waiting ones raise `Stopped`, running ones finish."""
        self._is_draining = True
        self._engine.drop_waiting()

    async def call_once(self, task: Task, response: Response) -> Verdict:
        """Verdict of an unshared call; raises `Failure` if there is none."""
        _, (verdict,) = await self._engine.run(task, [response])
        return verdict

    async def judge_group(self, task: Task, responses: list[Response]) -> list[Verdict]:
        """Verdicts of a group verifier, one per response, in order."""
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
    """Parse `--verify-workers`."""
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdigit()):
        raise UsageError(
            f"--verify-workers {text!r} is not understood", hint="write auto, a number, or 0 for no isolation"
        )
    if int(text) > MOST_WORKERS:
        raise UsageError(
            f"--verify-workers {text}: at most {MOST_WORKERS:,}", hint="auto uses the cores that are idle"
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
    output: str | Path | None = None,
) -> RunningJudge:
    """The verifier, ready to run in the event loop or in workers.

    Args:
        workers: Processes for a sync verifier; `auto` adds them while cores are idle; 0 calls it in this process, unprotected.
        timeout: Seconds one verdict may take.
        memory_mb: Memory limit of a worker in addition to that of the loaded verifier; 0 sets no limit.
        cache: Verdicts of earlier runs; not used for a verifier that is not deterministic.
        output: File that gets what the verifier prints; None drops it, or shows it on stderr without workers.
        sharing: Whether equal answers to one task share a call; `auto` shares if the lookup is cheaper than a call.
    """
    if memory_mb < 0:
        raise UsageError(f"{memory_mb} MB are no memory for a worker", hint="0 sets no limit")
    is_inline = workers == 0 or verifier.is_async or (verifier.is_cheap and verifier.is_cheap_for is None)
    may_print = output is not None or not VERIFIERS.is_ours(verifier.function)
    prints = Prints(output, is_shown=workers == 0) if is_inline and may_print else None
    loop = LoopEngine(verifier, timeout, prints)
    engine: CallEngine = loop
    if not is_inline:
        from rollforge.verifiers.running.engines import MixedEngine
        from rollforge.verifiers.running.worker_pool import WorkerPool

        pool = WorkerPool(verifier, workers=workers, timeout=timeout, memory_mb=memory_mb, output=output)
        engine = pool if verifier.is_cheap_for is None else MixedEngine(loop, pool, verifier.is_cheap_for)
    return RunningJudge(verifier, engine, cache, sharing=sharing)
