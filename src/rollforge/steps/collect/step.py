"""This module is the collect step: it opens what a run needs, lets the engine work, and says how it ended.

It does not print, parse flags or handle signals; whoever runs it calls `drain` and `abort`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

import msgspec

from rollforge import __version__
from rollforge.agents.base import Agent, Preparation, make_agent
from rollforge.endpoint import Client, ClientOptions, ConcurrencyRange, Limiter, Model, ModelOptions
from rollforge.errors import Exit, Failure, RollforgeError, UsageError
from rollforge.records import JsonObject
from rollforge.steps.collect.engine import Engine, Reason
from rollforge.steps.collect.forecast import Forecast, bottleneck, forecast
from rollforge.steps.collect.live import Live, Snapshot, reward_facts
from rollforge.steps.collect.observer import Observer
from rollforge.steps.collect.options import CollectOptions, parse_share
from rollforge.steps.collect.plan import Plan, make_plan
from rollforge.store import DurableFile, RunFiles, RunLock
from rollforge.store.manifest import State
from rollforge.verifiers.base import Verifier, load_verifier
from rollforge.verifiers.cache import VerdictCache
from rollforge.verifiers.probes import ProbeReport, SprinkledProbes
from rollforge.verifiers.runner import RunningJudge, make_judge, parse_workers

logger = logging.getLogger(__name__)

MANIFEST_EVERY_S = 2.0
SPARE_FILES = 128
"""File descriptors kept for everything that is no connection."""

Ending = Literal[
    "done",
    "incomplete",
    "interrupted",
    "deadline",
    "tokens",
    "pilot",
    "failures",
    "outage",
    "broken",
    "fatal",
    "disk",
]


class CollectResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a collection ended."""

    run: str
    ending: Ending
    exit_code: Exit
    message: str
    expected: int
    finished: int
    fresh: int
    owed: int
    unjudged: int
    failed: dict[str, int]
    elapsed_s: float
    rollouts_per_s: float | None
    tokens_per_s: float | None
    bottleneck: str
    forecast: Forecast | None = None
    bad_lines: int = 0
    notes: list[str] = []
    suspect: JsonObject | None = None
    """The window of rollouts whose rewards the detectors of broken verification do not trust; they are kept."""
    probe: ProbeReport | None = None
    """What the verifier answered to questions it must know; exit code 5 when that shows it broken."""


class Collection:
    """One call of `collect`."""

    def __init__(
        self,
        options: CollectOptions,
        *,
        command: list[str] | None = None,
        on_start: Callable[[Collection], None] | None = None,
        observer: Observer | None = None,
    ) -> None:
        options.check()
        self.options = options
        self.plan: Plan | None = None
        self.notes: list[str] = []
        self._command = command or []
        self._on_start = on_start
        self._observer = observer
        self._engine: Engine | None = None
        self._limiter: Limiter | None = None
        self._client: Client | None = None
        self._model: Model | None = None
        self._work: asyncio.Task[None] | None = None
        self._lag_s = 0.0
        self._disk: DurableFile | None = None
        self._cpu_at_start = 0.0
        self._is_draining = False
        self.is_judged_later = False
        """A group verifier needs all samples of a task: what is collected is judged by the verify step afterwards."""
        self._is_judged = False
        self._probes: SprinkledProbes | None = None
        self._probe_report: ProbeReport | None = None

    # -- for the shell ------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no new work; what is in flight finishes."""
        self._is_draining = True
        if self._client is not None:
            self._client.is_draining = True
        if self._engine is not None:
            self._engine.stop("interrupted")

    def abort(self) -> None:
        """Drop what is in flight. Everything acknowledged is on disk."""
        self.drain()
        if self._work is not None:
            self._work.cancel()

    def snapshot(self) -> Snapshot | None:
        """Where the run is now; None before it has begun."""
        if self._engine is None or self._limiter is None or self._client is None:
            return None
        ages = self._engine.ages()
        return self._engine.live.snapshot(
            in_flight=self._limiter.in_flight,
            limit=self._limiter.limit,
            verifying=self._engine.verifying,
            slowest_s=ages[0] if ages else 0.0,
            stragglers=sum(age > 60 for age in ages),
            retries=self._client.budget.spent,
            notice=self._notice(),
            light=self._engine.watch.light,
        )

    def _notice(self) -> str:
        assert self._client is not None
        down = [point for point in self._client.endpoints if point.breaker.state != "closed"]
        if down:
            return (
                f"waiting for {down[0].url}"
                if len(down) == len(self._client.endpoints)
                else f"{len(down)} endpoints down"
            )
        if self._engine is not None and self._engine.watch.signals:
            return "; ".join(list(self._engine.watch.signals.values()))
        return "draining" if self._is_draining else ""

    # -- the step -----------------------------------------------------------------------------------------------------

    async def run(self) -> CollectResult:
        """Collect what is owed."""
        options = self.options
        files = RunFiles(options.out)
        verifier = (
            load_verifier(options.verifier, options.verifier_options, options.verify_mode)
            if options.verifier is not None
            else None
        )
        with RunLock(files.lock):
            async with prepared_agent(options) as (agent, prepared):
                return await self._run(agent, prepared, verifier)

    async def _run(self, agent: Agent, prepared: Preparation, verifier: Verifier | None) -> CollectResult:
        options = self.options
        self.is_judged_later = verifier is not None and verifier.is_group
        self._is_judged = (verifier is not None and not self.is_judged_later) or prepared.judges
        self.plan = plan = make_plan(
            options,
            needs=verifier.needs if verifier else (),
            verifier_fingerprint=verifier.fingerprint if verifier else None,
            version=__version__,
            command=self._command,
            agent=prepared,
        )
        judge = None
        if verifier is not None and not self.is_judged_later:
            judge = make_judge(
                verifier,
                workers=parse_workers(options.verify_workers),
                timeout=options.verify_timeout_s,
                cache=VerdictCache(options.verify_cache) if options.verify_cache else None,
                # One answer per task has no equals, but for those of earlier runs.
                sharing="auto" if options.samples > 1 or options.verify_cache else "never",
            )
        try:
            async with self._opened(plan, agent, judge) as engine:
                self._cpu_at_start = time.process_time()
                if self._on_start is not None:
                    self._on_start(self)
                if self._is_draining:
                    engine.stop("interrupted")
                await self._work_with_ticker(engine, plan)
                if self._probes is not None:
                    self._probe_report = await self._probes.finish()
        finally:
            plan.tasks.close()
        return self._finish(engine, plan)

    @asynccontextmanager
    async def _opened(self, plan: Plan, agent: Agent, judge: RunningJudge | None) -> AsyncIterator[Engine]:
        """Everything the engine needs, opened in order and always closed."""
        options = self.options
        async with contextlib.AsyncExitStack() as stack:
            limiter = self._limiter = Limiter(self._affordable(options.concurrency), now=time.monotonic())
            client = self._client = await stack.enter_async_context(await self._make_client(stack, limiter))
            model = self._model = Model(
                client,
                ModelOptions(
                    name=options.model,
                    api=options.api,
                    logprobs=options.logprobs,
                    names_samples=options.model == "simulated",
                ),
            )
            await agent.start(model)
            if judge is not None:
                await judge.start()
                stack.push_async_callback(judge.close)
                note = getattr(judge, "note", None)
                if note:
                    self.notes.append(note)
            rollouts, failures = DurableFile(plan.files.rollouts), DurableFile(plan.files.failures)
            self._disk = rollouts
            for file in (rollouts, failures):
                await file.start()
                stack.push_async_callback(self._close_quietly, file)
            live = Live(expected=plan.ledger.expected, finished=plan.ledger.finished)
            live.given_up = plan.ledger.given_up(options.attempts)
            if self._observer is not None:
                self._tell_what_is_owed(self._observer, plan)
                stack.push_async_callback(self._observer.close)
            if judge is not None and options.probe is not None:
                self._probes = SprinkledProbes(judge, parse_share(options.probe))
            self._engine = Engine(
                plan,
                options,
                agent=agent,
                judge=judge,
                limiter=limiter,
                budget=client.budget,
                rollouts=rollouts,
                failures=failures,
                live=live,
                observer=self._observer,
                probes=self._probes,
            )
            yield self._engine

    def _tell_what_is_owed(self, observer: Observer, plan: Plan) -> None:
        owed, given_up = plan.ledger.counts_by_task(self.options.attempts)
        observer.begin(plan.ledger.task_ids[plan.order], owed[plan.order], given_up[plan.order])

    async def _close_quietly(self, file: DurableFile) -> None:
        """A disk error has already stopped the run; closing must not hide how it ended."""
        try:
            await file.close()
        except RollforgeError as error:
            if self._engine is not None:
                self._engine.stop("disk", error)

    async def _make_client(self, stack: contextlib.AsyncExitStack, limiter: Limiter) -> Client:
        options = self.options
        urls = options.base_urls
        if not urls and options.asks_model:
            from rollforge.simulate import SimulatedProcess, SimulateOptions

            server = stack.enter_context(SimulatedProcess(SimulateOptions(seed=options.seed)))
            urls = (server.base_url,)
            self.notes.append(f"the answers are simulated by the embedded model at {server.base_url}")
        key = os.environ.get(options.api_key_env)
        return Client(
            ClientOptions(
                base_urls=urls,
                request_timeout_s=options.request_timeout_s,
                retries=options.retries,
                retry_budget=options.retry_budget,
                outage_patience_s=options.outage_patience_s,
            ),
            headers={"Authorization": f"Bearer {key}"} if key else None,
            limiter=limiter,
        )

    def _affordable(self, wanted: str) -> ConcurrencyRange:
        """The range asked for, cut to the connections this process may open; said aloud when it is cut."""
        limits = ConcurrencyRange.parse(wanted)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
                soft = hard
        most = max(1, soft - SPARE_FILES) if soft != resource.RLIM_INFINITY else limits.high
        if limits.high > most:
            if wanted != "auto":
                self.notes.append(
                    f"concurrency is capped at {most} by the limit of open files (ulimit -n {soft})"
                )
            return ConcurrencyRange(min(limits.low, most), most)
        return limits

    async def _work_with_ticker(self, engine: Engine, plan: Plan) -> None:
        self._work = asyncio.create_task(engine.run())
        ticker = asyncio.create_task(self._tick(engine, plan))
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
        finally:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker

    async def _tick(self, engine: Engine, plan: Plan) -> None:
        """Twice a second: rates and loop lag; every other second or so: the manifest, for `status`."""
        loop = asyncio.get_running_loop()
        written = 0.0
        while True:
            engine.live.tick()
            if time.monotonic() - written > MANIFEST_EVERY_S:
                written = time.monotonic()
                self._update_manifest(engine, plan, "running")
                try:
                    await loop.run_in_executor(None, plan.manifest.write, plan.files)
                except OSError as error:
                    logger.warning("cannot write %s: %s", plan.files.manifest, error)
            before = time.monotonic()
            await asyncio.sleep(0.5)
            self._lag_s = 0.8 * self._lag_s + 0.2 * (time.monotonic() - before - 0.5)

    def _update_manifest(self, engine: Engine, plan: Plan, state: State) -> None:
        manifest, live = plan.manifest, engine.live
        snapshot = self.snapshot()
        assert (
            snapshot is not None
            and self._limiter is not None
            and self._client is not None
            and self._model is not None
        )
        manifest.state, manifest.updated = state, time.time()
        manifest.pid, manifest.host = os.getpid(), socket.gethostname()
        manifest.finished = plan.ledger.finished
        manifest.unjudged = self._unjudged(plan, live)
        manifest.judged = manifest.finished - manifest.unjudged if self._is_judged else 0
        manifest.reward = reward_facts(live)
        manifest.rate, manifest.tokens_per_s, manifest.eta_s = (
            snapshot.rate,
            snapshot.tokens_per_s,
            snapshot.eta_s,
        )
        manifest.in_flight = snapshot.in_flight if state == "running" else 0
        manifest.slowest_s = snapshot.slowest_s if state == "running" else None
        manifest.api = None if self._model.api == "auto" else self._model.api
        manifest.model_names = sorted({*manifest.model_names, *self._model.names_seen})
        manifest.concurrency = {
            "limit": self._limiter.limit,
            "peak": self._limiter.peak,
            "history": [
                {"at": round(change.at - live.started, 3), "limit": change.limit, "reason": change.reason}
                for change in self._limiter.history
            ],
        }
        manifest.endpoints = [endpoint.facts() for endpoint in self._client.endpoints]
        budget = self._client.budget
        manifest.requests = {"fresh": budget.fresh, "retries": budget.spent, "retries_denied": budget.denied}
        manifest.failed = (
            dict(live.failures) if state == "running" else plan.ledger.failed_by_class(plan.files.failures)
        )
        manifest.notes = self.notes
        if engine.watch.tripped:
            manifest.extra["suspect"] = engine.watch.window()

    def _unjudged(self, plan: Plan, live: Live) -> int:
        """Rollouts that a verifier should have judged and did not."""
        return plan.ledger.unjudged + live.unjudged if self._is_judged else 0

    def _finish(self, engine: Engine, plan: Plan) -> CollectResult:
        """Write the last manifest and say how it ended."""
        options, live = self.options, engine.live
        owed = plan.ledger.owed(options.attempts)
        unfinished = plan.ledger.expected - plan.ledger.finished
        unjudged = self._unjudged(plan, live)
        ending, code = _ending(engine.reason, unfinished=unfinished, unjudged=unjudged)
        if self._probe_report is not None and self._probe_report.is_broken:
            code = Exit.BROKEN_VERIFICATION
        state: State = (
            "done" if ending == "done" else "incomplete" if ending == "incomplete" else "interrupted"
        )
        self._update_manifest(engine, plan, state)
        with contextlib.suppress(OSError):
            plan.manifest.write(plan.files)
        if engine.reason == "fatal":
            _raise_fatal(engine.error, options)
        if engine.reason == "disk" and isinstance(engine.error, RollforgeError):
            raise engine.error
        elapsed = time.monotonic() - live.started
        return CollectResult(
            run=options.out,
            ending=ending,
            exit_code=code,
            message=_message(ending, engine),
            expected=plan.ledger.expected,
            finished=plan.ledger.finished,
            fresh=live.fresh,
            owed=owed,
            unjudged=unjudged,
            failed=plan.manifest.failed,
            elapsed_s=elapsed,
            rollouts_per_s=live.fresh / elapsed if elapsed > 0 else None,
            tokens_per_s=live.tokens / elapsed if elapsed > 0 else None,
            bottleneck=self._bottleneck(engine, elapsed),
            forecast=forecast(live, owed=owed, elapsed_s=elapsed) if options.pilot is not None else None,
            bad_lines=plan.manifest.input.get("bad_lines", 0),
            notes=self.notes,
            suspect=engine.watch.window() if engine.watch.tripped else None,
            probe=self._probe_report,
        )

    def _bottleneck(self, engine: Engine, elapsed_s: float) -> str:
        return bottleneck(
            engine.live,
            elapsed_s=elapsed_s,
            cpu_s=time.process_time() - self._cpu_at_start,
            lag_s=self._lag_s,
            commit_s=self._disk.commit_s if self._disk else 0.0,
            verify_slots=self.options.verify_concurrency,
        )


@asynccontextmanager
async def prepared_agent(options: CollectOptions) -> AsyncIterator[tuple[Agent, Preparation]]:
    """The agent the options ask for, with its tools and servers found; always closed."""
    agent = make_agent(options.agent, options.to_agent_options())
    try:
        found = await agent.prepare()
        yield agent, msgspec.structs.replace(found, fingerprint={"agent": agent.name, **found.fingerprint})
    finally:
        await agent.close()


async def rehearse_agent(options: CollectOptions) -> Preparation:
    """What the agent would need and offer; nothing stays open."""
    async with prepared_agent(options) as (_, prepared):
        return prepared


def _ending(reason: Reason, *, unfinished: int, unjudged: int) -> tuple[Ending, Exit]:
    """What the reason to stop, or its absence, means for the exit code."""
    if reason == "broken":
        return reason, Exit.BROKEN_VERIFICATION
    if not unfinished and reason not in ("fatal", "disk"):
        return ("incomplete", Exit.INCOMPLETE) if unjudged else ("done", Exit.DONE)
    match reason:
        case "":
            return "incomplete", Exit.INCOMPLETE
        case "interrupted":
            return reason, Exit.INTERRUPTED
        case "deadline" | "tokens":
            return reason, Exit.BUDGET_REACHED
        case "pilot":
            return reason, Exit.DONE
        case "failures" | "outage":
            return reason, Exit.INCOMPLETE
        case _:
            return reason, Exit.USAGE


def _message(ending: Ending, engine: Engine) -> str:
    match ending:
        case "outage":
            return f"stopped: {engine.error}"
        case "failures":
            return f"stopped: too many failures ({engine.live.given_up:,}); see --max-failures"
        case "broken":
            return f"stopped: verification looks broken: {engine.watch.reason}"
        case "deadline":
            return "stopped at the deadline, between groups"
        case "tokens":
            return f"stopped at the token budget ({engine.live.tokens:,} used), between groups"
        case "interrupted":
            return "interrupted; everything finished is on disk"
        case "pilot":
            return "the pilot is done; its rollouts count towards the run"
        case "incomplete":
            return "finished, but some rollouts failed or could not be judged"
        case _:
            return "done"


def _raise_fatal(error: RollforgeError | Failure | None, options: CollectOptions) -> None:
    """One clear message for what every rollout would meet."""
    if isinstance(error, RollforgeError):
        raise error
    assert error is not None
    if error.boundary == "agent":
        raise UsageError(f"the agent cannot run: {error.message}", hint="check the server's URL and its kind")
    if error.kind == "auth":
        is_set = bool(os.environ.get(options.api_key_env))
        raise UsageError(
            f"the server refuses the key: {error.message}",
            hint=f"${options.api_key_env} is {'set, but not accepted' if is_set else 'not set'}; name another with --api-key-env",
        )
    raise UsageError(
        f"the server does not know the model or the path: {error.message}",
        hint=f"check -m {options.model} and --base-url (it usually ends in /v1)",
    )
