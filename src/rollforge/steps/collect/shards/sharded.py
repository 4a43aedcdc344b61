"""A collection in shards: one shard in this process, or all of them over the workers of an executor.

This process (the driver) plans, assigns shards and limits, runs the detectors, sums counters and writes the manifest. It never
handles a rollout. Concurrency, retry budget, failure limit, token and time budgets and the detectors of broken verification apply
to the whole run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

import msgspec

from rollforge import __version__
from rollforge.checks.building_blocks.stream import SuspectWindow, Watch
from rollforge.endpoint.model import LOGPROBS_ABSENT, other_names
from rollforge.errors import Exit, Failure, RollforgeError, UsageError
from rollforge.executors.base import Introduction, Message, make_executor
from rollforge.executors.foreman import Assignment, Foreman, Progress
from rollforge.runtime.logged_once import LoggedOnce
from rollforge.runtime.typed_decoding import decode_msgpack
from rollforge.steps.collect.bottleneck import Load, bottleneck
from rollforge.steps.collect.chosen_verifier import chosen_verifier
from rollforge.steps.collect.collect_options import Allowance, CollectOptions
from rollforge.steps.collect.cost_meter import CostMeter
from rollforge.steps.collect.ending import CollectResult, ending_of, message_of, raise_fatal, server_notes
from rollforge.steps.collect.live import Live, LiveSnapshot, reward_facts
from rollforge.steps.collect.machinery import only_model, prepared_agent
from rollforge.steps.collect.shards.allotment import Allotment
from rollforge.steps.collect.shards.opened_run import PlanInputs, ShardedRun, open_run
from rollforge.steps.collect.shards.runner import ShardOutcome
from rollforge.steps.collect.shards.scale_options import ScaleOptions
from rollforge.steps.collect.shards.shard_worker import (
    Opening,
    Orders,
    Totals,
    WorkerReport,
    combined,
)
from rollforge.steps.collect.step import MANIFEST_EVERY_S
from rollforge.steps.collect.stop_reason import Reason
from rollforge.steps.collect.suspect_verdicts import SuspectVerdicts
from rollforge.store.costs import read_costs
from rollforge.store.failure_reasons import most_frequent
from rollforge.store.files import RunFiles
from rollforge.store.manifest import ConcurrencyFacts, State
from rollforge.store.shard_plan import ShardChoice
from rollforge.store.shards import STALE_S, read_beat, read_epochs, refuse_other_plans, shard_name
from rollforge.store.shipping import address_of, copy_of
from rollforge.text_safety.redaction import SECRETS
from rollforge.verifiers.running.sources import sent_files

logger = logging.getLogger(__name__)

TARGET = "rollforge.steps.collect.shards.shard_worker:CollectWorker"


class ShardedCollection:
    """One `collect` call on a sharded run."""

    def __init__(
        self,
        options: CollectOptions,
        scale: ScaleOptions,
        *,
        command: list[str] | None = None,
        on_start: Callable[[ShardedCollection], None] | None = None,
    ) -> None:
        options.check()
        scale.check(options)
        SECRETS.learn_environment(*options.key_envs)
        SECRETS.learn_from(options.to_config())
        SECRETS.learn_words(command or [])
        self.options = options
        self.scale = scale
        self.choice = ShardChoice.parse(scale.shard) if scale.shard is not None else None
        self.notes: list[str] = []
        self.is_judged_later = False
        self.run_of_shards: ShardedRun | None = None
        self.foreman: Foreman | None = None
        self.reason: Reason = ""
        self.error: RollforgeError | Failure | None = None
        self.live = Live(expected=0, finished=0)
        self.watch = Watch()
        self.meter = CostMeter(options, notes=self.notes)
        self.last_verdict_failure = ""
        self._command = command or []
        self._on_start = on_start
        self._is_judged = False
        self._is_aborting = False
        self._reports: dict[str, WorkerReport] = {}
        self._outcomes: dict[int, ShardOutcome] = {}
        self._earlier_totals: list[Totals] = []
        self._allowance = Allowance.parse(options.max_failures)
        self._allot = Allotment(options.concurrency)
        self._busy_ages: dict[int, float] = {}
        self._mine: Introduction | None = None
        self._shards: list[int] = []

    # -- for the shell ------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no new work; rollouts in flight finish."""
        self._stop("interrupted")

    def abort(self) -> None:
        """Drop rollouts in flight. Everything acknowledged is on disk."""
        self.drain()
        self._is_aborting = True

    def snapshot(self) -> LiveSnapshot | None:
        """Current counters of the run; None before it has begun."""
        if self.foreman is None:
            return None
        reports = list(self._reports.values())
        self.live.tick()
        return self.live.snapshot(
            in_flight=sum(one.in_flight for one in reports),
            limit=sum(one.limit for one in reports),
            verifying=sum(one.verifying for one in reports),
            slowest_s=max((one.slowest_s for one in reports), default=0.0),
            stragglers=sum(one.stragglers for one in reports),
            retries=self._totals().requests.retries,
            retry_causes=self._totals().retry_causes,
            model=self.options.model,
            server=", ".join(self.options.base_urls),
            served=self._served(),
            notice=self._notice(),
            light=self.watch.light,
            cost=self.meter.facts(),
        )

    def _notice(self) -> str:
        if self.watch.signals:
            return "; ".join(self.watch.signals.values())
        if self._busy_ages:
            return f"{len(self._busy_ages)} shards belong to other processes; waiting for them"
        return "draining" if self.reason else ""

    # -- the step -----------------------------------------------------------------------------------------------------

    async def run(self) -> CollectResult:
        """Collect what is owed."""
        if self.options.model == "auto":
            name = await only_model(self.options)
            self.notes.append(f"-m auto: the server's model is {name}")
            self.options = replace(self.options, model=name)
        await self._open()
        run = self.run_of_shards
        assert run is not None and self._mine is not None
        try:
            executor = make_executor(self.scale.on or "local", self.scale.workers)
            self._shards = (
                [self.choice.number_in(run.plan)] if self.choice is not None else [*range(len(run.plan))]
            )
            self._count_expected(run)
            if self.options.asks_price and run.is_resumed:
                await asyncio.to_thread(_refresh, run.files)
                self.meter = CostMeter(self.options, before=await asyncio.to_thread(read_costs, run.files))
            self.foreman = Foreman(executor, TARGET, self._skip_finished(run), self, self._mine)
            if self._on_start is not None:
                self._on_start(self)
            if self.reason:
                self.foreman.stop()
            ticker = asyncio.create_task(self._tick(run))
            try:
                await self.foreman.run()
            finally:
                ticker.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ticker
        finally:
            run.tasks.close()
        return self._finish(run)

    async def _open(self) -> None:
        options = self.options
        verifier = chosen_verifier(options)
        fingerprint = verifier.fingerprint if verifier else None
        self._mine = Introduction.of_this_process(verifier=fingerprint, key_variable=options.api_key_env)
        async with prepared_agent(options) as (_, prepared):
            self.is_judged_later = verifier is not None and verifier.is_group
            self._is_judged = (verifier is not None and not self.is_judged_later) or prepared.judges
            inputs = PlanInputs(
                needs=verifier.needs if verifier else (),
                verifier_fingerprint=fingerprint,
                version=__version__,
                command=self._command,
                agent=prepared,
            )
            self.run_of_shards = await asyncio.to_thread(open_run, options, inputs, self.choice)
        self.options = replace(options, fresh=False)
        self._suspects = SuspectVerdicts(self.run_of_shards.manifest, self.run_of_shards.files)
        self.notes += self.run_of_shards.notes
        if verifier is not None and verifier.reward_range is not None:
            self.run_of_shards.manifest.extra["reward_range"] = list(verifier.reward_range)

    def _count_expected(self, run: ShardedRun) -> None:
        self.live.expected = sum(run.plan.expected(shard) for shard in self._shards)

    def _skip_finished(self, run: ShardedRun) -> list[int]:
        """Shards that may owe rollouts; of the others only the counts are kept."""
        owed, earlier = [], 0
        for shard in self._shards:
            epochs, expected = read_epochs(run.storage, shard), run.plan.expected(shard)
            refuse_other_plans(run.plan, shard, epochs)
            end = epochs[-1].end if epochs else None
            if end is None or end.finished < expected:
                owed.append(shard)
                continue
            unjudged = end.unjudged if self._is_judged else 0
            self._outcomes[shard] = ShardOutcome(
                shard=shard, outcome="complete", expected=expected, finished=expected, unjudged=unjudged
            )
            earlier += expected
        self._earlier_totals.append(Totals(earlier=earlier))
        return owed

    # -- what the foreman asks ----------------------------------------------------------------------------------------

    def opening(self, workers: int) -> Message:
        self._allot.workers = workers
        options = self.options
        if options.verify_workers == "auto" and workers > 1 and not (self.scale.on or "").startswith("ray"):
            options = replace(options, verify_workers=str(max(1, (os.cpu_count() or 1) // workers)))
        return msgspec.msgpack.encode(
            Opening(
                options=options,
                folder=os.getcwd(),  # noqa: PTH109  (a text)
                workers=workers,
                sent_files=sent_files(options.verifier, options.agent, *options.tools),
                key_variable=options.api_key_env,
                bucket=address_of(options.out),
                bucket_input=address_of(options.input) if options.input else None,
                is_local=self.scale.workers is None and self.scale.on in (None, "local"),
            )
        )

    def orders(self, name: str, units: list[Assignment], *, is_last: bool) -> Message:
        own = self._reports[name].totals if name in self._reports else Totals()
        return msgspec.msgpack.encode(
            Orders(
                shards=units,
                limit=self._allot.share(name, self._reports, time.monotonic()),
                tokens_elsewhere=self.live.tokens - own.tokens,
                dollars_elsewhere=max(0.0, self.meter.spent - own.dollars)
                if self.options.max_cost is not None
                else 0.0,
                stop=self.reason,
                is_abort=self._is_aborting,
                is_last=is_last,
            )
        )

    def report(self, name: str, answer: Message) -> Progress:
        report = decode_msgpack(answer, WorkerReport)
        before = self._reports.get(name)
        self._reports[name] = report
        if report.totals.rate_limited > (before.totals.rate_limited if before else 0):
            self._allot.rate_limited(time.monotonic())
        self._observe(report)
        self._sum_up()
        if report.reason and report.reason != self.reason:
            self._stop(report.reason, _error_of(report))
        self._spend()
        self.last_verdict_failure = report.last_verdict_failure or self.last_verdict_failure
        return self._settle(report)

    def lost(self, name: str, units: list[int], reason: str) -> None:
        self._allot.lost(name)
        last = self._reports.pop(name, None)
        if last is not None:
            self._earlier_totals.append(last.totals)
        shards = ", ".join(map(str, units)) or "none"
        self.notes.append(f"{reason}; its shards are taken over: {shards}")

    def _settle(self, report: WorkerReport) -> Progress:
        done, again = [], []
        for outcome in report.outcomes:
            self._outcomes[outcome.shard] = outcome
            is_elsewhere = outcome.outcome in ("busy", "taken over")
            if is_elsewhere and not self.reason and self._may_wait(outcome):
                again.append(outcome.shard)
            else:
                self._busy_ages.pop(outcome.shard, None)
                done.append(outcome.shard)
        return Progress(done=done, again=again, is_hungry=report.is_hungry, has_ended=report.has_ended)

    def _may_wait(self, outcome: ShardOutcome) -> bool:
        """Whether to wait for the owner of a shard: always in a run of many shards; a single shard waits only for a silent owner."""
        if self.choice is None:
            self._busy_ages[outcome.shard] = 0.0
            return True
        assert self.run_of_shards is not None
        storage, shard = self.run_of_shards.storage, outcome.shard
        epochs = read_epochs(storage, shard)
        if outcome.outcome == "taken over" or not epochs or epochs[-1].end is not None:
            return outcome.outcome != "taken over"
        owner = epochs[-1].owner
        _, age = read_beat(storage, shard, epochs[-1].number)
        before, self._busy_ages[shard] = self._busy_ages.get(shard), age or 0.0
        if before is None:
            self.notes.append(
                f"shard {shard} belongs to process {owner.pid} on {owner.host}, heard {age or 0:.0f} s ago: "
                f"waiting until it speaks, or has been silent for {STALE_S:.0f} s"
            )
        if before is not None and age is not None and age < before:
            raise UsageError(
                f"another process collects shard {shard} (process {owner.pid} on {owner.host})",
                hint=f"wait for it, or watch it: rollforge status {self.options.out}",
            )
        return True

    # -- what all workers share ---------------------------------------------------------------------------------------

    def _stop(self, reason: Reason, error: RollforgeError | Failure | None = None) -> None:
        if not self.reason:
            self.reason, self.error = reason, error
        if self.foreman is not None:
            self.foreman.stop()

    def _observe(self, report: WorkerReport) -> None:
        """Pass verdicts of all workers to the detectors and the running mean."""
        for seen in report.seen:
            self.watch.observe(
                seen.task,
                seen.reward,
                answer_hash=seen.answer_hash,
                is_empty=seen.is_empty,
                verify_seconds=seen.verify_seconds,
                has_failure=seen.has_failure,
                at=seen.at,
                is_draining=self.foreman is None or not self.foreman.has_waiting,
                looks_right=lambda looks=seen.looks_right: looks,  # type: ignore[misc]
            )
            if seen.reward is not None:
                self.live.judged_elsewhere(seen.task, seen.reward)
        for task in report.settled:
            self.live.settle(task)
            self.watch.settle(task)
        if self.watch.tripped and self.options.stop_on == "broken":
            self._stop("broken")

    def _totals(self) -> Totals:
        return combined([*self._earlier_totals, *(one.totals for one in self._reports.values())])

    def _sum_up(self) -> None:
        live, totals = self.live, self._totals()
        for name in ("fresh", "judged", "unjudged", "given_up", "tokens", "truncated", "empty"):
            setattr(live, name, getattr(totals, name))
        for name in ("model_s", "verify_s", "verify_wait_s", "timeout_s", "redrawn_after_timeout"):
            setattr(live, name, getattr(totals, name))
        self.meter.elsewhere = totals.dollars
        live.finished = min(totals.earlier + totals.fresh, live.expected)
        live.failures.clear()
        live.failures.update(totals.failures)
        live.verifier_failures.clear()
        live.verifier_failures.update(totals.verifier_failures)

    def _spend(self) -> None:
        options, live = self.options, self.live
        if options.deadline_s is not None and time.monotonic() - live.started >= options.deadline_s:
            self._stop("deadline")
        elif options.max_total_tokens is not None and live.tokens >= options.max_total_tokens:
            self._stop("tokens")
        elif options.max_cost is not None and self.meter.spent >= options.max_cost:
            self._stop("cost")
        elif self._allowance.is_exceeded(live.given_up, live.fresh + live.given_up):
            self._stop("failures")

    # -- the manifest -------------------------------------------------------------------------------------------------

    async def _tick(self, run: ShardedRun) -> None:
        """Update the manifest for `status`; errors do not affect rollouts. With a single shard, `status` reads the shards itself."""
        logged = LoggedOnce(logger, f"cannot write {run.files.manifest}")
        while True:
            if self.choice is None:
                with logged:
                    self._update_manifest(run, "running")
                    await asyncio.to_thread(run.manifest.write, run.files)
            await asyncio.sleep(MANIFEST_EVERY_S)

    def _update_manifest(self, run: ShardedRun, state: State) -> None:
        manifest, reports = run.manifest, list(self._reports.values())
        snapshot = self.snapshot()
        manifest.state, manifest.updated = state, time.time()
        manifest.pid, manifest.host = os.getpid(), socket.gethostname()
        manifest.extra["shards"] = len(run.plan)
        manifest.finished, manifest.unjudged = self.live.finished, self._unjudged()
        manifest.judged = manifest.finished - manifest.unjudged if self._is_judged else 0
        manifest.failed = self._failed() if state != "running" else dict(self.live.failures)
        manifest.reward = reward_facts(self.live) or manifest.reward
        if snapshot is not None:
            manifest.rate, manifest.tokens_per_s, manifest.eta_s = (
                snapshot.rate,
                snapshot.tokens_per_s,
                snapshot.eta_s,
            )
            manifest.in_flight = snapshot.in_flight if state == "running" else 0
            manifest.slowest_s = snapshot.slowest_s if state == "running" else None
            manifest.concurrency = ConcurrencyFacts(
                limit=snapshot.limit, peak=max(manifest.concurrency.peak, snapshot.in_flight)
            )
        manifest.api = next((one.api for one in reports if one.api), manifest.api)
        manifest.model_names = sorted(
            {*manifest.model_names, *(name for one in reports for name in one.model_names)}
        )
        manifest.endpoints = [point for one in reports for point in one.endpoints]
        manifest.requests = self._totals().requests
        manifest.notes = self._all_notes()
        manifest.cost = self.meter.facts() or manifest.cost
        self._record_oddities(run)
        if self.watch.tripped:
            self._suspects.record(self.watch.window())

    def _record_oddities(self, run: ShardedRun) -> None:
        absent = sum(one.oddities.get(LOGPROBS_ABSENT, 0) for one in self._reports.values())
        observed = {"logprobs_absent": absent, "redrawn_after_timeout": self.live.redrawn_after_timeout}
        if any(observed.values()):
            run.manifest.extra["observed"] = {name: count for name, count in observed.items() if count}

    def _all_notes(self) -> list[str]:
        notes = [note for one in self._reports.values() for note in one.notes]
        return list(dict.fromkeys([*self.notes, *self._server_notes(), *notes]))

    def _server_notes(self) -> list[str]:
        oddities: Counter[str] = Counter()
        for one in self._reports.values():
            oddities.update(one.oddities)
        return server_notes(self._served(), oddities)

    def _served(self) -> str:
        return other_names(
            self.options.model, (name for one in list(self._reports.values()) for name in one.model_names)
        )

    def _unjudged(self) -> int:
        before = sum(one.unjudged for one in self._outcomes.values())
        return before + self.live.unjudged if self._is_judged else 0

    def _failed(self) -> dict[str, int]:
        count_by_kind: dict[str, int] = {}
        for outcome in self._outcomes.values():
            for kind, count in outcome.failed.items():
                count_by_kind[kind] = count_by_kind.get(kind, 0) + count
        return count_by_kind

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, run: ShardedRun) -> CollectResult:
        live = self.live
        outcomes = [self._outcomes.get(shard) for shard in self._shards]
        finished = sum(one.finished for one in outcomes if one is not None and one.outcome != "busy")
        given_up = sum(one.given_up for one in outcomes if one is not None)
        live.finished = finished
        lost = [one.shard for one in outcomes if one is not None and one.outcome in ("busy", "taken over")]
        reason: Reason = self.reason or ("taken over" if lost else "")
        unjudged = self._unjudged()
        ending, code = ending_of(reason, unfinished=live.expected - finished, unjudged=unjudged)
        suspect = self._suspect_window(unjudged)
        is_still_suspect = suspect is not None and not self.watch.tripped
        if is_still_suspect:
            code = Exit.BROKEN_VERIFICATION
        if self.choice is None or self.options.asks_price:
            _refresh(run.files)
        self.meter.elsewhere = 0.0  # from now on the files say it
        if self.options.asks_price:
            self.meter.tally = read_costs(run.files)
        self.meter.close(run.files)
        if self.choice is None:
            self._update_manifest(
                run, cast(State, ending) if ending in ("done", "incomplete") else "interrupted"
            )
            with contextlib.suppress(OSError):
                run.manifest.write(run.files)
        if reason == "fatal":
            raise_fatal(self.error, self.options)
        if reason == "disk" and isinstance(self.error, RollforgeError):
            raise self.error
        elapsed = time.monotonic() - live.started
        totals = self._totals()
        return CollectResult(
            run=self.options.out,
            ending=ending,
            exit_code=Exit.INCOMPLETE if reason == "taken over" else code,
            message=self._message(
                ending, lost, is_still_suspect=suspect is not None and not self.watch.tripped
            ),
            expected=live.expected,
            finished=finished,
            fresh=live.fresh,
            owed=live.expected - finished - given_up,
            unjudged=unjudged,
            failed=self._failed(),
            elapsed_s=elapsed,
            rollouts_per_s=live.fresh / elapsed if elapsed > 0 else None,
            tokens_per_s=live.tokens / elapsed if elapsed > 0 else None,
            bottleneck=bottleneck(
                live,
                Load(
                    elapsed_s=elapsed,
                    cpu_s=totals.cpu_s / max(len(self._reports), 1),
                    lag_s=0.0,
                    commit_s=0.0,
                    model_slots=sum(one.limit for one in self._reports.values()),
                    verify_slots=self.options.verify_concurrency * max(len(self._reports), 1),
                ),
            ),
            bad_lines=run.manifest.input.bad_lines,
            notes=self._all_notes(),
            server_notes=self._server_notes(),
            suspect=suspect,
            verifier_failures=dict(most_frequent(live.verifier_failures, 3)),
            cost=self.meter.facts(),
            shard=shard_name(self._shards[0]) if self.choice is not None else None,
        )

    def _suspect_window(self, unjudged: int) -> SuspectWindow | None:
        if self.watch.tripped:
            return self._suspects.record(self.watch.window())
        if not self._is_judged or self.options.stop_on == "never":
            return None
        return self._suspects.left(fresh=self.live.fresh, unjudged=unjudged)

    def _message(self, ending: str, lost: list[int], *, is_still_suspect: bool) -> str:
        if ending == "taken over":
            return f"shard {', '.join(map(str, lost[:5]))}: another process took it over; what it counts is kept there"
        suspicion = self._suspects.message() if is_still_suspect else ""
        return message_of(cast("Literal['done']", ending), self, suspicion=suspicion)


def _refresh(files: RunFiles) -> None:
    """Update this machine's copy of a bucket run with the workers' files."""
    if (copy := copy_of(files.manifest)) is not None:
        copy.refresh()


def _error_of(report: WorkerReport) -> RollforgeError | Failure | None:
    if report.failure is not None:
        boundary, kind, status = report.failure
        return Failure(boundary, kind, report.error, status=status)  # type: ignore[arg-type]
    return RollforgeError(report.error) if report.error else None
