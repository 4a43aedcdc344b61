"""The collect step: makes the plan, runs the engine, updates the manifest, reports the ending.

It does not print, parse flags or handle signals; the caller translates signals to `drain` and `abort`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from rollforge import __version__
from rollforge.adaptive.design import DESIGN, PROGRESS, GoalProgress, priced, read_design
from rollforge.agents.base import Agent, Preparation
from rollforge.checks.building_blocks.stream import SuspectWindow
from rollforge.endpoint.model import LOGPROBS_ABSENT
from rollforge.environments.base import Environment, open_environment
from rollforge.errors import Exit, RollforgeError, UsageError
from rollforge.runtime.logged_once import LoggedOnce
from rollforge.steps.collect.batch.answer_loop import BatchEngine
from rollforge.steps.collect.batch.batch_step import collect_batches
from rollforge.steps.collect.batch.results import BatchReport
from rollforge.steps.collect.bottleneck import Load, bottleneck
from rollforge.steps.collect.chosen_verifier import chosen_verifier
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.ending import CollectResult, ending_of, message_of, raise_fatal, server_notes
from rollforge.steps.collect.forecast import forecast
from rollforge.steps.collect.goal.goal_ending import goal_ending, goal_message
from rollforge.steps.collect.goal.goal_schedule import GoalSchedule
from rollforge.steps.collect.goal.setup import count_usable, design_of, make_schedule
from rollforge.steps.collect.live import LiveSnapshot, reward_facts
from rollforge.steps.collect.machinery import (
    Machinery,
    judge_for,
    only_model,
    open_machinery,
    prepared_agent,
    with_verifier_of,
)
from rollforge.steps.collect.observer import GuardedObserver, Observer
from rollforge.steps.collect.plan import CollectPlan, make_plan
from rollforge.steps.collect.resume import VERIFIER_SOURCE
from rollforge.steps.collect.server_load import deciding_signal
from rollforge.steps.collect.suspect_verdicts import SuspectVerdicts
from rollforge.store import RunFiles, RunLock
from rollforge.store.atomic import refuse_links
from rollforge.store.costs import counted_bytes, recounted
from rollforge.store.failure_reasons import most_frequent
from rollforge.store.find import refuse_devices
from rollforge.store.manifest import State
from rollforge.text_safety.redaction import SECRETS
from rollforge.verifiers.base import Verifier
from rollforge.verifiers.probes import ProbeReport

logger = logging.getLogger(__name__)

PROBE = "probe"
"""The manifest's key for the outcome of a probe."""
OVER_BUDGET = "over_budget"
"""The manifest's key for the budget that ended the last session: deadline, tokens or cost."""
MANIFEST_EVERY_S = 2.0


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
        SECRETS.learn_environment(*options.key_envs)
        SECRETS.learn_from(options.to_config())
        SECRETS.learn_words(command or [])
        self.options = options
        self.plan: CollectPlan | None = None
        self.notes: list[str] = []
        self.is_judged_later = False
        """Whether a group verifier judges later in the verify step, because it needs all samples of a task."""
        self._command = command or []
        self._on_start = on_start
        self._observer = GuardedObserver(observer) if observer is not None else None
        self._machinery: Machinery | None = None
        self._work: asyncio.Task[None] | None = None
        self._is_judged = False
        self._is_draining = False
        self._cpu_at_start = 0.0
        self._lag_s = 0.0
        self._manifest_lock = threading.Lock()
        self._is_finished = False
        self._observed_before: dict[str, int] = {}
        self.batch_report: BatchReport | None = None

    # -- for the shell ------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no new work; rollouts in flight finish."""
        self._is_draining = True
        if self._machinery is not None:
            self._machinery.client.is_draining = True
            self._machinery.engine.stop("interrupted")

    def abort(self) -> None:
        """Drop rollouts in flight. Everything acknowledged is on disk."""
        self.drain()
        if self._work is not None:
            self._work.cancel()

    def snapshot(self) -> LiveSnapshot | None:
        """Current counters of the run; None before it has begun."""
        return self._machinery.snapshot() if self._machinery is not None else None

    # -- the step -----------------------------------------------------------------------------------------------------

    async def run(self) -> CollectResult:
        """Collect what is owed."""
        if self.options.model == "auto":
            name = await only_model(self.options)
            self.notes.append(f"-m auto: the server's model is {name}")
            self.options = replace(self.options, model=name)
        environment = open_environment(self.options.env) if self.options.env is not None else None
        self.options = options = with_verifier_of(environment, self.options)
        verifier = chosen_verifier(options)
        files = RunFiles(options.out)
        refuse_devices(files)
        with RunLock(files.lock):
            refuse_links(files.batch_files, files.artifacts)
            async with prepared_agent(options, environment) as (agent, prepared):
                return await self._run(agent, prepared, verifier, environment)

    async def _run(
        self, agent: Agent, prepared: Preparation, verifier: Verifier | None, environment: Environment | None
    ) -> CollectResult:
        self.is_judged_later = verifier is not None and verifier.is_group
        self._is_judged = (verifier is not None and not self.is_judged_later) or prepared.judges
        self.plan = plan = make_plan(
            self.options,
            needs=verifier.needs if verifier else (),
            verifier_fingerprint=verifier.fingerprint if verifier else None,
            version=__version__,
            command=self._command,
            agent=prepared,
            design_of=design_of,
            rows_of=environment.rows if environment is not None else None,
        )
        self._refuse_goal(plan)
        schedule = make_schedule(plan, self.options)
        self.notes += plan.notes
        self._suspects = SuspectVerdicts(plan.manifest, plan.files)
        self._observed_before = dict(plan.manifest.extra.get("observed") or {})
        if verifier is not None and verifier.reward_range is not None:
            plan.manifest.extra["reward_range"] = list(verifier.reward_range)
        judge = judge_for(verifier, self.options) if verifier and not self.is_judged_later else None
        self._write_first_manifest(plan)
        report = None
        try:
            async with open_machinery(
                plan,
                self.options,
                agent=agent,
                judge=judge,
                observer=self._observer,
                notes=self.notes,
                schedule=schedule,
            ) as machinery:
                self._machinery = machinery
                self._cpu_at_start = time.process_time()
                if self._on_start is not None:
                    self._on_start(self)
                if self._is_draining:
                    machinery.engine.stop("interrupted")
                await self._work_with_ticker(machinery, plan)
                if machinery.probes is not None:
                    report = await machinery.probes.finish()
        finally:
            plan.tasks.close()
        return self._finish(machinery, plan, report)

    def _refuse_goal(self, plan: CollectPlan) -> None:
        """Refuse a goal together with later verification, or with reports per step."""
        if plan.design is None:
            return
        if plan.design.recipe is not None and not self._is_judged:
            raise UsageError(
                f"--goal {self.options.goal} counts rewards, but verdicts come only after all samples are there",
                hint="a verifier of whole groups cannot steer sampling: collect without --goal",
            )
        if self._observer is not None:
            raise UsageError(
                "steps cannot be reported while tasks are sampled adaptively",
                hint="leave out --monitor and --buffer, or --goal and --top-up",
            )

    def _write_first_manifest(self, plan: CollectPlan) -> None:
        """Write the manifest durably before the first row, because rows without a manifest cannot be resumed."""
        manifest = plan.manifest
        manifest.state, manifest.updated = "running", time.time()
        manifest.pid, manifest.host = os.getpid(), socket.gethostname()
        manifest.write(plan.files)

    async def _work_with_ticker(self, machinery: Machinery, plan: CollectPlan) -> None:
        self._work = asyncio.create_task(self._make_rollouts(machinery, plan))
        ticker = asyncio.create_task(self._tick(machinery, plan))
        try:
            await self._work
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
        finally:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker

    async def _make_rollouts(self, machinery: Machinery, plan: CollectPlan) -> None:
        """Run the engine on single requests or on batch results."""
        engine = machinery.engine
        if not isinstance(engine, BatchEngine):
            await engine.run()
            return
        self.batch_report = await collect_batches(
            engine, plan, self.options, machinery.client, machinery.model
        )
        self.notes += self.batch_report.notes()

    async def _tick(self, machinery: Machinery, plan: CollectPlan) -> None:
        """Update rates and loop lag twice a second, and the manifest for `status` about every two seconds.

        Errors do not affect rollouts: they are shown once, and the next round retries.
        """
        written = 0.0
        logged = LoggedOnce(logger, f"cannot write {plan.files.manifest}")
        while True:
            with logged:
                machinery.engine.live.tick()
                if time.monotonic() - written > MANIFEST_EVERY_S:
                    written = time.monotonic()
                    await self._write_manifest(machinery, plan)
            before = time.monotonic()
            await asyncio.sleep(0.5)
            self._lag_s = 0.8 * self._lag_s + 0.2 * (time.monotonic() - before - 0.5)

    async def _write_manifest(self, machinery: Machinery, plan: CollectPlan) -> None:
        self._update_manifest(machinery, plan, "running")
        await asyncio.get_running_loop().run_in_executor(None, self._write_running, plan)

    def _write_running(self, plan: CollectPlan) -> None:
        """Write the manifest of a running collection in a thread; a late write must not replace the final manifest."""
        with self._manifest_lock:
            if not self._is_finished:
                plan.manifest.write(plan.files)

    def _update_manifest(self, machinery: Machinery, plan: CollectPlan, state: State) -> None:
        manifest, engine, snapshot = plan.manifest, machinery.engine, machinery.snapshot()
        is_running = state == "running"
        manifest.state, manifest.updated = state, time.time()
        manifest.pid, manifest.host = os.getpid(), socket.gethostname()
        manifest.finished, manifest.expected = plan.ledger.finished, machinery.schedule.expected
        if snapshot.goal is not None:
            manifest.extra[PROGRESS] = msgspec.to_builtins(snapshot.goal)
        manifest.unjudged = self._unjudged(machinery, plan)
        manifest.judged = manifest.finished - manifest.unjudged if self._is_judged else 0
        manifest.failed = (
            dict(engine.live.failures) if is_running else plan.ledger.failed_by_class(plan.files.failures)
        )
        manifest.reward = reward_facts(engine.live) or manifest.reward
        manifest.rate, manifest.tokens_per_s = snapshot.rate, snapshot.tokens_per_s
        manifest.eta_s = snapshot.eta_s
        manifest.in_flight = snapshot.in_flight if is_running else 0
        manifest.slowest_s = snapshot.slowest_s if is_running else None
        manifest.api = None if machinery.model.api == "auto" else machinery.model.api
        manifest.model_names = sorted({*manifest.model_names, *machinery.model.names_seen})
        manifest.concurrency = machinery.limiter.facts(since=engine.live.started)
        manifest.endpoints = [endpoint.facts() for endpoint in machinery.client.endpoints]
        manifest.requests = machinery.client.budget.facts()
        manifest.notes = self._all_notes(machinery)
        manifest.cost = engine.meter.facts() or manifest.cost
        if not is_running and manifest.cost is not None and not self.options.asks_price:
            # Earlier sessions had a price and this one has none, so the cost of its rollouts is unknown.
            manifest.cost = recounted(plan.files, manifest.cost)
        manifest.counted = {}
        self._record_oddities(machinery, plan)
        if engine.watch.tripped:
            self._suspects.record(engine.watch.window())

    def _all_notes(self, machinery: Machinery) -> list[str]:
        """All messages for the user: from the start, and about the server's answers."""
        signal = deciding_signal(machinery.limiter)
        notes = [*self.notes, *server_notes(machinery.model.served, machinery.model.oddities)]
        return [*notes, *machinery.engine.agent_notes(), *([signal] if signal else [])]

    def _record_oddities(self, machinery: Machinery, plan: CollectPlan) -> None:
        """Record facts for checks in the manifest: answers without logprobs, rollouts repeated after a time-out."""
        observed = plan.manifest.extra.setdefault("observed", {})
        absent = machinery.model.oddities[LOGPROBS_ABSENT]
        redrawn = machinery.engine.live.redrawn_after_timeout
        for name, count in (("logprobs_absent", absent), ("redrawn_after_timeout", redrawn)):
            if count:
                observed[name] = self._observed_before.get(name, 0) + count
        if not observed:
            del plan.manifest.extra["observed"]

    def _unjudged(self, machinery: Machinery, plan: CollectPlan) -> int:
        """Number of rollouts without a verdict that the verifier should have judged."""
        return plan.ledger.unjudged + machinery.engine.live.unjudged if self._is_judged else 0

    @property
    def _gaps(self) -> int:
        """Owed rollouts without a result in the files of `--read-batch`."""
        return self.batch_report.gaps if self.batch_report is not None else 0

    def _finish(self, machinery: Machinery, plan: CollectPlan, report: ProbeReport | None) -> CollectResult:
        """Write the final manifest and return the result."""
        options, engine, live = self.options, machinery.engine, machinery.engine.live
        owed, expected = machinery.schedule.owed, machinery.schedule.expected
        unjudged = self._unjudged(machinery, plan)
        unfinished = expected - plan.ledger.finished
        shortfall = self._observer.shortfall() if self._observer is not None else ""
        ending, code = ending_of(engine.reason, unfinished=unfinished, unjudged=unjudged, shortfall=shortfall)
        goal = self._goal_reached(machinery, plan)
        if goal is not None:
            ending, code = goal_ending(engine.reason, ending, code, goal, gaps=self._gaps)
        engine.meter.close(plan.files)
        if report is not None and not report.tasks:
            report = None
            self.notes.append(
                "--probe: no rollout was judged in this session, so the verifier was asked nothing"
            )
        if report is not None and report.supersedes(plan.manifest.extra.get(PROBE)):
            plan.manifest.extra[PROBE] = report.facts()
        suspect = self._suspect_window(machinery, unjudged)
        is_still_suspect = suspect is not None and not engine.watch.tripped
        has_failed_probe = self._has_failed_probe(plan)
        if is_still_suspect or has_failed_probe:
            code = Exit.BROKEN_VERIFICATION
        self._update_manifest(machinery, plan, ending if ending in ("done", "incomplete") else "interrupted")
        if code == Exit.BUDGET_REACHED:
            plan.manifest.extra[OVER_BUDGET] = ending
        else:
            plan.manifest.extra.pop(OVER_BUDGET, None)
        self._settle_design(plan, goal, owed)
        with contextlib.suppress(OSError), self._manifest_lock:
            self._is_finished = True
            plan.manifest.counted = counted_bytes(plan.files)
            plan.manifest.write(plan.files)
        if engine.reason == "fatal":
            raise_fatal(engine.error, options)
        if engine.reason == "disk" and isinstance(engine.error, RollforgeError):
            raise engine.error
        elapsed = time.monotonic() - live.started
        return CollectResult(
            run=options.out,
            ending=ending,
            exit_code=code,
            message=message_of(
                ending,
                engine,
                shortfall,
                suspicion=self._suspects.message() if is_still_suspect else "",
                has_failed_probe=has_failed_probe,
            )
            if goal is None or is_still_suspect or has_failed_probe
            else goal_message(ending, engine, goal, gaps=self._gaps),
            expected=expected,
            finished=plan.ledger.finished,
            fresh=live.fresh,
            owed=owed,
            unjudged=unjudged,
            failed=plan.manifest.failed,
            elapsed_s=elapsed,
            rollouts_per_s=live.fresh / elapsed if elapsed > 0 else None,
            tokens_per_s=live.tokens / elapsed if elapsed > 0 else None,
            bottleneck=self._bottleneck(machinery, elapsed),
            forecast=forecast(live, engine.meter, owed=owed, elapsed_s=elapsed, goal=goal)
            if options.pilot is not None
            else None,
            goal=goal,
            bad_lines=plan.manifest.input.bad_lines,
            notes=self._all_notes(machinery),
            agent_notes=machinery.engine.agent_notes(),
            server_notes=server_notes(machinery.model.served, machinery.model.oddities),
            suspect=suspect,
            verifier_failures=dict(most_frequent(live.verifier_failures, 3)),
            probe=report,
            cost=plan.manifest.cost,
            batch=self.batch_report,
        )

    def _goal_reached(self, machinery: Machinery, plan: CollectPlan) -> GoalProgress | None:
        """Progress of the goal, counted on disk as `prepare` will count it; None without a goal."""
        design, schedule = plan.design, machinery.schedule
        if design is None or not isinstance(schedule, GoalSchedule):
            return None
        usable = count_usable(plan.files, design)
        if usable != schedule.usable and not schedule.owed:
            logger.debug("usable on disk: %d, counted while collecting: %d", usable, schedule.usable)
        cost = machinery.engine.meter.facts()
        return priced(schedule.progress(usable), cost.total if cost is not None else None)

    def _settle_design(self, plan: CollectPlan, goal: GoalProgress | None, owed: int) -> None:
        """Record the exact count; for a run that was later completed uniformly, complete groups become the first stage."""
        extra = plan.manifest.extra
        if goal is not None:
            extra[PROGRESS] = msgspec.to_builtins(goal)
        design = read_design(extra)
        if design is not None and plan.design is None and not owed:
            whole = max(design.first, self.options.samples)
            extra[DESIGN] = msgspec.to_builtins(msgspec.structs.replace(design, first=whole))

    def _suspect_window(self, machinery: Machinery, unjudged: int) -> SuspectWindow | None:
        """What this session and earlier ones left suspect; None where nothing is, or nobody asked."""
        watch, live = machinery.engine.watch, machinery.engine.live
        if watch.tripped:
            return self._suspects.record(watch.window())
        if not self._is_judged or self.options.stop_on == "never":
            return None
        return self._suspects.left(fresh=live.fresh, unjudged=unjudged)

    def _has_failed_probe(self, plan: CollectPlan) -> bool:
        """Whether a probe found this version of the verifier broken, now or in an earlier session, and nothing was judged again."""
        probe, verdicts = plan.manifest.extra.get(PROBE), plan.files.verdicts
        return (
            self._is_judged
            and isinstance(probe, dict)
            and probe.get("is_broken") is True
            and probe.get("fingerprint") == plan.manifest.fingerprint.get(VERIFIER_SOURCE)
            and not (verdicts.exists() and verdicts.stat().st_size)
        )

    def _bottleneck(self, machinery: Machinery, elapsed_s: float) -> str:
        if self.options.read_batch:
            return "none: the answers were there before"
        if self.options.batch:
            return "batch: answers come when the provider has them"
        load = Load(
            elapsed_s=elapsed_s,
            cpu_s=time.process_time() - self._cpu_at_start,
            rate_wait_s=dict(machinery.client.rate_wait_s),
            lag_s=self._lag_s,
            commit_s=machinery.rollouts.commit_s,
            model_slots=machinery.limiter.limit,
            verify_slots=self.options.verify_concurrency,
            seconds_per_verdict=machinery.judge.counters.seconds_per_verdict if machinery.judge else None,
        )
        return bottleneck(machinery.engine.live, load)
