"""The worker of a sharded collection: receives orders and reports counters. Rollouts are only written to the shard's files."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import msgspec

from rollforge import __version__
from rollforge.checks.building_blocks.stream import Watch
from rollforge.errors import Failure, RollforgeError
from rollforge.executors.base import Introduction, Message
from rollforge.executors.foreman import Assignment
from rollforge.runtime.typed_decoding import decode_msgpack
from rollforge.steps.collect.chosen_verifier import chosen_verifier
from rollforge.steps.collect.collect_options import Allowance, CollectOptions
from rollforge.steps.collect.machinery import judge_for, prepared_agent
from rollforge.steps.collect.shards.opened_run import PlanInputs, ShardedRun, open_run
from rollforge.steps.collect.shards.runner import ShardOutcome, ShardRunner, open_runner
from rollforge.steps.collect.stop_reason import Reason
from rollforge.store.bucket import input_copy, run_copy
from rollforge.store.manifest import EndpointFacts, LimitChange, RequestFacts
from rollforge.text_safety.redaction import SECRETS
from rollforge.verifiers.running.sources import SentFile, enter

ANSWER_EVERY_S = 0.5
"""A worker without news answers after this time."""
MOST_SEEN = 20_000
"""Most verdicts in one report; the rest follow in the next one."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker: the run, and the number of its workers."""

    options: CollectOptions
    folder: str
    """Working directory of the driver, so that relative paths have the same meaning."""
    workers: int
    sent_files: list[SentFile] = []
    key_variable: str
    bucket: str | None = None
    """Bucket address of the run, if any; every worker has a separate working copy."""
    bucket_input: str | None = None
    """Bucket address of the task file, if any."""
    is_local: bool = False
    """Whether the worker runs in the driver's process, which has already validated everything."""


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Current orders of the driver."""

    shards: list[Assignment] = []
    limit: int | None = None
    """Limit on this worker's requests in flight; None keeps the current limit."""
    tokens_elsewhere: int = 0
    """Tokens and dollars used by other workers."""
    dollars_elsewhere: float = 0.0
    stop: Reason = ""
    is_abort: bool = False
    is_last: bool = False


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """One verdict for the driver's detectors of broken verification."""

    task: int
    reward: float | None
    answer_hash: int | None
    is_empty: bool
    verify_seconds: float | None
    has_failure: bool
    at: float
    looks_right: bool | None


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of one worker since its start."""

    expected: int = 0
    """Rollouts of the shards that it took."""
    earlier: int = 0
    """Rollouts among these that were already finished."""
    fresh: int = 0
    judged: int = 0
    unjudged: int = 0
    given_up: int = 0
    tokens: int = 0
    truncated: int = 0
    empty: int = 0
    redrawn_after_timeout: int = 0
    failures: dict[str, int] = {}
    verifier_failures: dict[str, int] = {}
    retry_causes: dict[str, int] = {}
    model_s: float = 0.0
    verify_s: float = 0.0
    verify_wait_s: float = 0.0
    timeout_s: float = 0.0
    cpu_s: float = 0.0
    dollars: float = 0.0
    requests: RequestFacts = RequestFacts()
    rate_limited: int = 0


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's report to the driver."""

    outcomes: list[ShardOutcome] = []
    is_hungry: bool = False
    has_ended: bool = False
    reason: Reason = ""
    error: str = ""
    failure: tuple[str, str, int | None] | None = None
    """Boundary, class and status of a failure that ends the run."""
    totals: Totals = Totals()
    in_flight: int = 0
    limit: int = 0
    verifying: int = 0
    slowest_s: float = 0.0
    stragglers: int = 0
    seen: list[Seen] = []
    settled: list[int] = []
    notes: list[str] = []
    endpoints: list[EndpointFacts] = []
    model_names: list[str] = []
    api: str | None = None
    oddities: dict[str, int] = {}
    last_verdict_failure: str = ""
    limits: list[LimitChange] = []


class CollectWorker:
    """Collects the shards that the driver assigns."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._runner: ShardRunner | None = None
        self._watch = _ReportingWatch()
        self._notes: list[str] = []
        self._tasks: dict[asyncio.Task[ShardOutcome], int] = {}
        self._outcomes: list[ShardOutcome] = []
        self._changed = asyncio.Event()
        self._dry: asyncio.Task[None] | None = None
        self._rate_limited = 0
        self._crash: BaseException | None = None
        self._cpu_at_start = time.process_time()

    async def handle(self, message: Message) -> Message:
        if self._runner is None:
            return msgspec.msgpack.encode(await self._open(decode_msgpack(message, Opening)))
        return msgspec.msgpack.encode(await self._obey(decode_msgpack(message, Orders)))

    async def close(self) -> None:
        """Stop, finish writing, and release the shards."""
        if self._runner is not None:
            self._runner.stop("interrupted")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def _open(self, opening: Opening) -> Introduction:
        options = opening.options
        SECRETS.learn_environment(*options.key_envs)
        SECRETS.learn_from(options.to_config())
        if not opening.is_local:
            enter(opening.folder, opening.sent_files)
            options = await asyncio.to_thread(self._with_copies, opening)
        verifier = chosen_verifier(options)
        introduction = Introduction.of_this_process(
            verifier=verifier.fingerprint if verifier else None, key_variable=opening.key_variable
        )
        agent, prepared = await self._stack.enter_async_context(prepared_agent(options))
        is_judged_later = verifier is not None and verifier.is_group
        inputs = PlanInputs(
            needs=verifier.needs if verifier else (),
            verifier_fingerprint=verifier.fingerprint if verifier else None,
            version=__version__,
            command=[],
            agent=prepared,
        )
        run: ShardedRun = await asyncio.to_thread(open_run, options, inputs, None)
        self._stack.callback(run.tasks.close)
        judge = judge_for(verifier, options) if verifier is not None and not is_judged_later else None
        runner = open_runner(
            run,
            options,
            agent=agent,
            judge=judge,
            is_judged=judge is not None or prepared.judges,
            notes=self._notes,
            watch=self._watch,
            allowance=Allowance(share=1.0),  # the asker counts the failures of all workers
            sharers=opening.workers,
        )
        self._runner = await self._stack.enter_async_context(runner)
        self._runner.tools.client.budget.divide(opening.workers)
        self._runner.tools.limiter.on_rate_limit = self._count_rate_limit
        return introduction

    def _with_copies(self, opening: Opening) -> CollectOptions:
        """The options with this machine's working copies instead of the driver's."""
        options = opening.options
        if opening.bucket is not None:
            out = self._stack.enter_context(run_copy(opening.bucket, writes=True, locks=False, whole=False))
            options = replace(options, out=str(out))
        if opening.bucket_input is not None:
            tasks = self._stack.enter_context(input_copy(opening.bucket_input))
            options = replace(options, input=str(tasks))
        return options

    def _count_rate_limit(self) -> None:
        self._rate_limited += 1

    async def _obey(self, orders: Orders) -> WorkerReport:
        runner = self._runner
        assert runner is not None
        if orders.limit is not None:
            runner.tools.limiter.allot(orders.limit, time.monotonic())
        runner.live.tokens_elsewhere = orders.tokens_elsewhere
        runner.meter.elsewhere = orders.dollars_elsewhere
        if orders.stop:
            runner.stop(orders.stop)
        if orders.is_abort:
            for task in self._tasks:
                task.cancel()
        for shard in orders.shards:
            self._begin(shard, runner)
        if not orders.is_last and not orders.shards:
            await self._wait()
        if self._crash is not None:
            raise self._crash
        report = self._report(runner, has_ended=orders.is_last)
        if orders.is_last:
            await self._stack.aclose()
        return report

    async def _wait(self) -> None:
        """Wait for news, for a short time at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_EVERY_S):
                await self._changed.wait()
        self._changed.clear()

    def _begin(self, shard: Assignment, runner: ShardRunner) -> None:
        task = asyncio.create_task(runner.collect(shard.unit, is_lost=shard.is_lost))
        self._tasks[task] = shard.unit
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[ShardOutcome]) -> None:
        shard = self._tasks.pop(task)
        self._changed.set()
        if task.cancelled():
            self._outcomes.append(ShardOutcome(shard=shard, outcome="released"))
        elif (error := task.exception()) is not None:
            self._crash = self._crash or error
        else:
            self._outcomes.append(task.result())

    def _report(self, runner: ShardRunner, *, has_ended: bool) -> WorkerReport:
        outcomes, self._outcomes = self._outcomes, []
        seen, settled = self._watch.take(MOST_SEEN)
        ages, client, model = runner.ages(), runner.tools.client, runner.tools.model
        failure = runner.error if isinstance(runner.error, Failure) else None
        return WorkerReport(
            outcomes=outcomes,
            is_hungry=not runner.reason and self._is_dry(runner),
            has_ended=has_ended,
            reason=runner.reason,
            error=_text(runner.error),
            failure=(failure.boundary, failure.kind, failure.status) if failure is not None else None,
            totals=self._totals(runner),
            in_flight=runner.tools.limiter.in_flight,
            limit=runner.tools.limiter.limit,
            verifying=runner.verifying,
            slowest_s=ages[0] if ages else 0.0,
            stragglers=sum(age > 60 for age in ages),
            seen=seen,
            settled=settled,
            notes=self._notes,
            endpoints=[endpoint.facts() for endpoint in client.endpoints],
            model_names=sorted(model.names_seen),
            api=None if model.api == "auto" else model.api,
            oddities=dict(model.oddities),
            last_verdict_failure=runner.last_verdict_failure,
        )

    def _is_dry(self, runner: ShardRunner) -> bool:
        """Whether no shard has fresh work left; wakes the pending answer when that happens."""
        if len(self._tasks) > len(runner.shards):
            return False  # one is being opened
        if runner.is_dry():
            return True
        if self._dry is None or self._dry.done():
            self._dry = asyncio.create_task(runner.wait_until_dry())
            self._dry.add_done_callback(lambda _: self._changed.set())
        return False

    def _totals(self, runner: ShardRunner) -> Totals:
        live = runner.live
        return Totals(
            expected=live.expected,
            earlier=live.finished - live.fresh,
            fresh=live.fresh,
            judged=live.judged,
            unjudged=live.unjudged,
            given_up=live.given_up,
            tokens=live.tokens,
            truncated=live.truncated,
            empty=live.empty,
            redrawn_after_timeout=live.redrawn_after_timeout,
            failures=dict(live.failures),
            verifier_failures=dict(live.verifier_failures),
            retry_causes=dict(runner.tools.client.retry_causes),
            model_s=live.model_s,
            verify_s=live.verify_s,
            verify_wait_s=live.verify_wait_s,
            timeout_s=live.timeout_s,
            cpu_s=time.process_time() - self._cpu_at_start,
            dollars=runner.meter.spent_on_tokens,
            requests=runner.tools.client.budget.facts(),
            rate_limited=self._rate_limited,
        )


class _ReportingWatch(Watch):
    """Detectors of one worker that also report every verdict to the driver, whose detectors see all workers."""

    __slots__ = ("_seen", "_settled")

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[Seen] = []
        self._settled: list[int] = []

    def observe(
        self,
        task: int,
        reward: float | None,
        *,
        answer_hash: int | None = None,
        is_empty: bool = False,
        verify_seconds: float | None = None,
        has_failure: bool = False,
        at: float = 0.0,
        is_draining: bool = False,
        looks_right: Callable[[], bool | None] | None = None,
    ) -> None:
        looks: list[bool | None] = [None]

        def look() -> bool | None:
            looks[0] = looks_right() if looks_right is not None else None
            return looks[0]

        super().observe(
            task, reward, answer_hash=answer_hash, is_empty=is_empty, verify_seconds=verify_seconds,
            has_failure=has_failure, at=at, is_draining=is_draining, looks_right=look,
        )  # fmt: skip
        self._seen.append(
            Seen(task, reward, answer_hash, is_empty, verify_seconds, has_failure, at, looks[0])
        )

    def settle(self, task: int) -> None:
        super().settle(task)
        self._settled.append(task)

    def take(self, most: int) -> tuple[list[Seen], list[int]]:
        """Return the verdicts since the last call; tasks are settled after their last verdict."""
        seen, self._seen = self._seen[:most], self._seen[most:]
        settled, self._settled = ([], self._settled) if self._seen else (self._settled, [])
        return seen, settled


def _text(error: RollforgeError | Failure | None) -> str:
    if error is None:
        return ""
    return error.message if isinstance(error, Failure) else str(error)


def _sum(counters: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counters:
        total.update(one)
    return dict(total)


def combined(totals: list[Totals]) -> Totals:
    """Sum of the counters of several workers."""
    made: dict[str, Any] = {}
    for name in Totals.__struct_fields__:
        values = [getattr(one, name) for one in totals]
        if name == "requests":
            fields = RequestFacts.__struct_fields__
            made[name] = RequestFacts(
                **{field: sum(getattr(one, field) for one in values) for field in fields}
            )
        else:
            made[name] = _sum(values) if isinstance(getattr(Totals(), name), dict) else sum(values)
    return Totals(**made)


def shares(limit: int, workers: int) -> list[int]:
    """Divide an integer among workers as evenly as possible, with at least one each."""
    return [max(1, limit // workers + (number < limit % workers)) for number in range(workers)]


__all__ = ["CollectWorker", "Opening", "Orders", "Totals", "WorkerReport", "combined", "shares"]
