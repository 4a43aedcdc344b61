"""Collects the shards that a process owns: one client, limit and judge, an engine per shard.

The next shard begins when the previous one has no fresh work left, so that its last rollouts do not delay other shards. Limiter,
judge and counters are shared by all engines of the process; files belong to the epoch of each shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from rollforge.agents.base import Agent
from rollforge.checks.building_blocks.stream import Watch
from rollforge.errors import Failure, RollforgeError
from rollforge.runtime.logged_once import LoggedOnce
from rollforge.steps.collect.collect_options import Allowance, CollectOptions
from rollforge.steps.collect.cost_meter import CostMeter
from rollforge.steps.collect.engine import CollectEngine
from rollforge.steps.collect.live import Live
from rollforge.steps.collect.machinery import Tools, open_tools
from rollforge.steps.collect.shards.opened_run import ShardedRun, failed_of_shard, plan_of_shard
from rollforge.steps.collect.stop_reason import Reason
from rollforge.store import DurableFile
from rollforge.store.shards import BEAT_EVERY_S, Beat, EpochEnd, Lease, read_epochs, take
from rollforge.verifiers.running.ready_verifier import RunningJudge

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""Interval at which an owner checks whether its shard was taken over."""

Outcome = Literal["complete", "released", "busy", "taken over"]


class ShardOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the work on one shard."""

    shard: int
    outcome: Outcome
    """`busy`: another process owns the shard; `taken over`: another process took it from this one."""
    expected: int = 0
    finished: int = 0
    given_up: int = 0
    unjudged: int = 0
    """Unjudged rollouts among those finished before this process took the shard."""
    failed: dict[str, int] = {}


class ShardRunner:
    """The collection engines of one process."""

    def __init__(
        self,
        run: ShardedRun,
        options: CollectOptions,
        tools: Tools,
        *,
        agent: Agent,
        judge: RunningJudge | None,
        is_judged: bool,
        live: Live,
        watch: Watch,
        allowance: Allowance | None = None,
    ) -> None:
        self.tools = tools
        self.live = live
        self.watch = watch
        self.judge = judge
        self.meter = CostMeter(options)
        self.reason: Reason = ""
        self.error: RollforgeError | Failure | None = None
        self.last_verdict_failure = ""
        self._run = run
        self._options = options
        self._agent = agent
        self._is_judged = is_judged
        self._allowance = allowance
        self._verify_slots = asyncio.Semaphore(options.verify_concurrency)
        self._engines: dict[int, CollectEngine] = {}

    def stop(self, reason: Reason, error: RollforgeError | Failure | None = None) -> None:
        """Take no new work; the first reason is kept."""
        if not self.reason:
            self.reason, self.error = reason, error
        if reason == "interrupted":
            self.tools.client.is_draining = True
        for engine in self._engines.values():
            engine.stop(self.reason, self.error)

    @property
    def shards(self) -> list[int]:
        """Shards in progress."""
        return [*self._engines]

    @property
    def verifying(self) -> int:
        """Number of rollouts being judged, over all engines."""
        return sum(engine.verifying for engine in self._engines.values())

    def ages(self) -> list[float]:
        """Current duration of each rollout in flight, longest first."""
        return sorted((age for engine in self._engines.values() for age in engine.ages()), reverse=True)

    def is_dry(self) -> bool:
        """Whether no shard has fresh work left."""
        return all(engine.is_dry.is_set() for engine in self._engines.values())

    async def wait_until_dry(self) -> None:
        """Return when no shard has fresh work left."""
        await asyncio.gather(*(engine.is_dry.wait() for engine in list(self._engines.values())))

    async def collect(self, shard: int, *, is_lost: bool = False) -> ShardOutcome:
        """Own a shard and collect what is owed of it.

        Args:
            is_lost: Whether its previous owner is known to have ended.
        """
        epochs = await asyncio.to_thread(read_epochs, self._run.storage, shard)
        expected = self._run.plan.expected(shard)
        if epochs and epochs[-1].end is not None and epochs[-1].end.finished == expected:
            return self._already(shard, expected, epochs[-1].end)
        lease = await asyncio.to_thread(take, self._run.storage, self._run.plan, shard, is_lost=is_lost)
        if lease is None:
            return ShardOutcome(shard=shard, outcome="busy")
        plan = await asyncio.to_thread(plan_of_shard, self._run, lease, self._options)
        ledger = plan.ledger
        rollouts, failures = lease.rows("rollouts"), lease.rows("failures")
        engine = CollectEngine(
            plan,
            self._options,
            agent=self._agent,
            judge=self.judge,
            limiter=self.tools.limiter,
            budget=self.tools.client.budget,
            large=self.tools.client.large,
            rollouts=rollouts,
            failures=failures,
            live=self.live,
            meter=self.meter,
            probes=self.tools.probes,
            watch=self.watch,
            allowance=self._allowance,
            verify_slots=self._verify_slots,
        )
        self.live.expected += ledger.expected
        self.live.finished += ledger.finished
        self.live.given_up += ledger.given_up(self._options.attempts)
        unjudged = ledger.unjudged if self._is_judged else 0
        if ledger.owed(self._options.attempts):
            async with self._owning(lease, engine, rollouts, failures):
                await engine.run()
        self._keep_reason(engine)
        owed = ledger.owed(self._options.attempts)
        failed = await asyncio.to_thread(failed_of_shard, lease, ledger)
        given_up = ledger.given_up(self._options.attempts)
        end = await asyncio.to_thread(
            lease.end,
            "released" if owed else "complete",
            finished=ledger.finished,
            given_up=given_up,
            unjudged=ledger.unjudged + ledger.fresh_unjudged,
            facts={"requests": msgspec.to_builtins(self.tools.client.budget.facts())},
        )
        return ShardOutcome(
            shard=shard,
            outcome=end.state,
            expected=ledger.expected,
            finished=ledger.finished,
            given_up=given_up,
            unjudged=unjudged,
            failed=failed,
        )

    def _already(self, shard: int, expected: int, end: EpochEnd) -> ShardOutcome:
        """Result for a shard that is already complete, which needs no new epoch."""
        self.live.expected += expected
        self.live.finished += expected
        unjudged = end.unjudged if self._is_judged else 0
        return ShardOutcome(
            shard=shard, outcome="complete", expected=expected, finished=expected, unjudged=unjudged
        )

    @asynccontextmanager
    async def _owning(
        self, lease: Lease, engine: CollectEngine, rollouts: DurableFile, failures: DurableFile
    ) -> AsyncIterator[None]:
        """Hold a shard: its files are open and its heartbeat runs."""
        self._engines[lease.shard] = engine
        if self.reason:
            engine.stop(self.reason, self.error)
        heart = asyncio.create_task(self._beat(lease, engine))
        try:
            for file in (rollouts, failures):
                await file.start()
            yield
        finally:
            heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heart
            engine.is_dry.set()
            del self._engines[lease.shard]
            for file in (rollouts, failures):
                try:
                    await file.close()
                except RollforgeError as error:
                    engine.stop("disk", error)

    async def _beat(self, lease: Lease, engine: CollectEngine) -> None:
        """Write heartbeats; stop if another process has taken the shard over."""
        last_beat = -BEAT_EVERY_S
        # The rollouts' own file says whether the disk can still be written.
        logged = LoggedOnce(logger, f"cannot write the heartbeat of shard {lease.shard}")
        while True:
            with logged:
                if await asyncio.to_thread(lease.is_taken_over):
                    logger.warning("shard %d was taken over by another process", lease.shard)
                    engine.stop("taken over")
                    return
                if time.monotonic() - last_beat >= BEAT_EVERY_S:
                    last_beat = time.monotonic()
                    rate, _ = self.live.rates()
                    beat = Beat(
                        finished=engine.ledger.finished,
                        in_flight=len(engine.ages()),
                        rate=rate,
                        failed=dict(self.live.failures),
                    )
                    await asyncio.to_thread(lease.beat, beat)
            await asyncio.sleep(LOOK_EVERY_S)

    def _keep_reason(self, engine: CollectEngine) -> None:
        """Stop the whole process for an engine's stop reason, except for the loss of its shard."""
        self.last_verdict_failure = engine.last_verdict_failure or self.last_verdict_failure
        if engine.reason and engine.reason != "taken over":
            self.stop(engine.reason, engine.error)


@asynccontextmanager
async def open_runner(
    run: ShardedRun,
    options: CollectOptions,
    *,
    agent: Agent,
    judge: RunningJudge | None,
    is_judged: bool,
    notes: list[str],
    watch: Watch | None = None,
    allowance: Allowance | None = None,
    sharers: int = 1,
) -> AsyncIterator[ShardRunner]:
    """Open a runner with everything it needs; closed at the end."""
    tools = open_tools(options, agent=agent, judge=judge, notes=notes, tasks=run.plan.tasks, sharers=sharers)
    async with tools as opened:
        yield ShardRunner(
            run,
            options,
            opened,
            agent=agent,
            judge=judge,
            is_judged=is_judged,
            live=Live(expected=0, finished=0),
            watch=watch or Watch(),
            allowance=allowance,
        )
