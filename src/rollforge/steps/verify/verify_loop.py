"""The loop of `verify`: read rollouts, judge them, append verdicts.

Memory is bounded by the rollouts in flight, not by the run. A failed verdict does not end the verification. Only an interrupt or
an unwritable disk ends it early, and the same command then resumes from the files.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from rollforge.errors import Failure, UsageError
from rollforge.records import Verdict, has_field
from rollforge.rollouts import Rollout, RolloutReader, TaskFields
from rollforge.steps.verify.choice import Chooser, grouped
from rollforge.steps.verify.judge_cost import JudgeMeter, note_costs
from rollforge.steps.verify.rollout_source import RolloutSource
from rollforge.steps.verify.tally import VerifySummary, estimate_of, rewards_of
from rollforge.steps.verify.verdicts import FailureFile, add_note, failure_line, verdict_line, whose_count
from rollforge.steps.verify.verify_options import VerifyOptions
from rollforge.store import DurableFile, RunFiles, RunLock
from rollforge.store.find import refuse_devices
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.running.calling import Stopped
from rollforge.verifiers.running.ready_verifier import JudgeCounters, RunningJudge, make_judge
from rollforge.verifiers.running.verdict_cache import VerdictCache

LANES = 128
"""Rollouts in memory at a time: enough to keep every worker and a slow async judge busy."""


class VerifySnapshot(msgspec.Struct, frozen=True):
    """Progress at one moment, for the display."""

    done: int
    already: int
    failed: int
    unjudged: int
    rate: float
    mean: float | None
    counters: JudgeCounters
    cost: float | None
    """Dollars spent on the judge in this session; None if unknown."""
    is_waiting: bool
    """Whether all rollouts collected so far are judged while the collecting process continues."""


class Verification:
    """Judges a run with one verifier."""

    def __init__(self, options: VerifyOptions) -> None:
        self.options = options
        self.files = RunFiles(options.run)
        refuse_devices(self.files)
        self.meter = JudgeMeter(options)
        self.judge = self._make_judge()
        self._is_stopping = False
        self._lanes: list[asyncio.Task[None]] = []
        self._reader = RolloutReader(self.files.rollouts, self.files)
        self._source = RolloutSource(self.files, is_following=options.is_following)
        self._rewards = rewards_of(self.files)
        self._judged = self._unjudged = self._failed = self._asked = self._begun = 0
        self._failures: Counter[str] = Counter()
        self._busy_looks, self._busy_sum = 0, 0.0
        self._started = time.monotonic()
        self._chooser = Chooser(options, self.files, self.judge)
        self._notes: list[str] = [*self.meter.notes]
        self._workers = 0
        self._starting: asyncio.Task[Any] | None = None
        self._crash: Exception | None = None
        self._has_room = asyncio.Event()
        self._pending = 0
        """Groups that are being judged or queued."""
        self._has_ended = asyncio.Event()

    def _make_judge(self) -> RunningJudge:
        options = self.options
        verifier = load_verifier(options.verifier, options.options, options.mode)
        cache = VerdictCache(options.cache) if options.cache is not None else None
        return make_judge(
            verifier,
            workers=options.workers,
            timeout=options.timeout,
            memory_mb=options.memory_mb,
            cache=cache,
            sharing="always",
            output=options.output,
        )

    def stop(self) -> None:
        """Take no new rollouts; verdicts in progress are finished and written."""
        self._is_stopping = True
        self._source.stop()
        self._has_room.set()
        self._has_ended.set()
        self.judge.drain()
        if self._starting is not None:
            self._starting.cancel()  # nothing is being judged yet

    def abort(self) -> None:
        """Also abandon verdicts in progress."""
        self.stop()
        for lane in self._lanes:
            lane.cancel()

    def snapshot(self) -> VerifySnapshot:
        """Progress so far."""
        counters = self.judge.counters
        if counters.workers:
            self._busy_looks += 1
            self._busy_sum += counters.busy / counters.workers
        done = self._judged + self._unjudged + self._failed
        elapsed = max(time.monotonic() - self._started, 1e-3)
        return VerifySnapshot(
            done=done,
            already=self._chooser.already,
            failed=self._failed,
            unjudged=self._unjudged,
            rate=done / elapsed,
            mean=self._rewards.mean,
            counters=counters,
            cost=self.meter.dollars,
            is_waiting=self._source.is_waiting and not counters.busy,
        )

    async def run(self) -> VerifySummary:
        """Judge what is owed; returns the summary."""
        await self._source.await_file()
        if self.files.is_sharded and self.options.is_following:
            raise UsageError(
                "a run of shards cannot be followed",
                hint="run verify again when more is collected: it judges what is new",
            )
        if self.files.rollouts.suffix != ".jsonl" and (self.judge.is_group or self.options.is_following):
            raise UsageError(
                f"{self.files.rollouts}: an archive can be neither followed nor read group by group",
                hint="unpack it first",
            )
        with RunLock(self.files.verdicts_lock):
            self._chooser.read(self._rewards)
            tasks = TaskFields(self.files, self.options.tasks)
            self.meter.start(self.files)
            self._note_in_manifest()  # so that a killed verification has recorded its price
            self._started = time.monotonic()
            is_new = not self.files.verdicts.exists()
            verdicts = DurableFile(self.files.verdicts)
            failures = FailureFile(self.files.verify_failures, self.files.lock)
            try:
                self._starting = asyncio.current_task()
                await self.judge.start()
                self._starting = None
                if self.judge.note:
                    self._notes.append(self.judge.note)
                await verdicts.start()
                await self._judge_all(self._owed(), tasks, verdicts, failures)
                self._notes += tasks.notes()
            finally:
                failures.flush()
                self._workers = self.judge.counters.workers
                await self.judge.close()
                await verdicts.close()
                tasks.close()
                self._note_in_manifest()
                if is_new and self.files.verdicts.exists() and not self.files.verdicts.stat().st_size:
                    self.files.verdicts.unlink()
        summary = self.summary()
        if summary.rollouts:
            summary.notes += whose_count(
                self.files,
                self.options.run,
                self.judge.name,
                fingerprint=self.judge.fingerprint,
                has_reward=bool(summary.judged),
            )
        return summary

    def _note_in_manifest(self) -> None:
        if self.judge.verifier.warning:
            add_note(self.files, self.judge.verifier.warning)
        if self.meter.is_asked:
            note_costs(self.files, self.meter.price.text if self.meter.price is not None else None)

    async def _judge_all(
        self,
        owed: AsyncIterator[list[Rollout]],
        tasks: TaskFields,
        verdicts: DurableFile,
        failures: FailureFile,
    ) -> None:
        queue: asyncio.Queue[list[Rollout] | None] = asyncio.Queue(LANES)
        lanes = [asyncio.create_task(self._lane(queue, tasks, verdicts, failures)) for _ in range(LANES)]
        self._lanes += lanes
        try:
            async for group in owed:
                if self.meter.is_exhausted:
                    continue  # counted as owed
                self._check_fields(tasks, group[0])
                await verdicts.room()
                while queue.full() and not self._is_stopping:
                    self._has_room.clear()
                    await self._has_room.wait()
                while self.meter.may_exceed_budget(self._pending) and self._pending and not self._is_stopping:
                    self._has_ended.clear()
                    await self._has_ended.wait()
                if self._is_stopping:
                    break
                if self.meter.may_exceed_budget(self._pending):
                    self.meter.is_exhausted = True
                    continue
                self._pending += 1
                queue.put_nowait(group)
        finally:
            for _ in lanes:
                while queue.full() and self._is_stopping:
                    queue.get_nowait()
                await queue.put(None)
            await asyncio.gather(*lanes, return_exceptions=True)
            self._lanes = [lane for lane in self._lanes if lane not in lanes]
        if self._crash is not None:
            raise self._crash

    def _check_fields(self, tasks: TaskFields, rollout: Rollout) -> None:
        """Refuse a run whose tasks lack fields that the verifier reads, before any verdict."""
        if self._begun:
            return
        self._begun += 1
        task = tasks.of(rollout)
        missing = [need for need in self.judge.verifier.needs if not has_field(task, need)]
        if missing and rollout.task in tasks.without_task:
            raise UsageError(
                f"{self.files.rollouts}: the first rollout has no _ng_task_index, and {tasks.path} has no task with its prompt:"
                f" nothing says which {missing[0]!r} is its own",
                hint="give the task file that was collected from (--tasks FILE), or rollouts with _ng_task_index",
            )
        if missing:
            file = tasks.path or self.files.rollouts
            raise UsageError(
                f"{file}: the tasks have no field {missing[0]!r}, which {self.judge.name} needs",
                hint="give the task file that has it: --tasks FILE",
            )

    async def _owed(self) -> AsyncIterator[list[Rollout]]:
        """Rollouts to judge in groups: single ones, or all samples of a task for a group verifier."""
        if self.judge.is_group:
            await self._source.await_end()  # a group is whole when the collecting process has ended
            for group in grouped(self._reader):
                if self._chooser.is_group_wanted(group):
                    self._asked += len(group)
                    yield group
            return
        async for rollout in self._source.rollouts(self._reader):
            if self._chooser.is_wanted(rollout):
                self._asked += 1
                yield [rollout]

    async def _lane(
        self,
        queue: asyncio.Queue[list[Rollout] | None],
        tasks: TaskFields,
        verdicts: DurableFile,
        failures: FailureFile,
    ) -> None:
        while True:
            group = await queue.get()
            self._has_room.set()
            if group is None:
                return
            if self._is_stopping:
                continue
            try:
                await self._judge_group(group, tasks, verdicts.append, failures.add)
            except Stopped:
                continue  # it stays owed
            except Exception as error:  # noqa: BLE001  (one lane's error must end the step, not hang it)
                self._crash = self._crash or error
                self.stop()
            finally:
                self._pending -= 1
                self._has_ended.set()

    async def _judge_group(
        self,
        group: list[Rollout],
        tasks: TaskFields,
        append: Callable[[bytes], object],
        add_failure: Callable[[bytes], None],
    ) -> None:
        task = tasks.of(group[0])
        started = time.perf_counter()
        try:
            if self.judge.is_group:
                rulings = [
                    (verdict, 0.0, 1, True)
                    for verdict in await self.judge.judge_group(task, [r.response for r in group])
                ]
            else:
                ruling = await self.judge.rule(task, group[0].response)
                is_paid = ruling.shared == 1 and not ruling.is_cached
                rulings = [(ruling.verdict, ruling.seconds, ruling.shared, is_paid)]
        except Failure as failure:
            seconds = time.perf_counter() - started
            spent = self.meter.about(failure.usage)
            for rollout in group:
                about = {"seconds": seconds, "shared": 1, "error": failure.message, **spent}
                append(verdict_line(rollout, self.judge, Verdict(), **about))
                spent = {}  # one call for the whole group
                add_failure(failure_line(rollout, self.judge, failure, seconds))
            self._failed += len(group)
            self._failures[failure.message] += len(group)
            return
        for rollout, (verdict, seconds, shared, is_paid) in zip(group, rulings, strict=True):
            spent = self.meter.about(verdict.numbers, is_paid=is_paid)
            append(verdict_line(rollout, self.judge, verdict, seconds=seconds, shared=shared, **spent))
            if verdict.reward is None:
                self._unjudged += 1
            else:
                self._judged += 1
                self._rewards.add_rollout(rollout.key, verdict.reward)

    def summary(self) -> VerifySummary:
        """Summary of the verification so far."""
        chooser, counters = self._chooser, self.judge.counters
        judged = self._judged + chooser.already_judged
        unjudged = self._unjudged + chooser.already_unjudged
        rollouts = self._asked + chooser.already
        owed = self._asked - self._judged - self._unjudged - self._failed
        is_done = not (self.meter.is_exhausted or owed or self._failed or unjudged or self._reader.bad_count)
        return VerifySummary(
            run=str(self.options.run),
            verifier=self.judge.name,
            fingerprint=self.judge.fingerprint,
            mode=self.judge.mode,
            state="interrupted" if self._is_stopping else "done" if is_done else "incomplete",
            rollouts=rollouts,
            judged=judged,
            unjudged=unjudged,
            failed=self._failed,
            owed=owed,
            already=chooser.already,
            rejected_lines=self._reader.bad_count,
            coverage=judged / rollouts if rollouts else None,
            reward=estimate_of(self._rewards),
            calls=counters.judged + counters.failed,
            shared=counters.shared,
            cache_hits=counters.cache_hits,
            lookups=counters.lookups,
            hit_rate=counters.hit_rate,
            seconds=time.monotonic() - self._started,
            seconds_per_verdict=counters.seconds_per_verdict,
            workers=self._workers,
            replaced_workers=counters.replaced,
            bottleneck=self._bottleneck(counters),
            failures=dict(self._failures.most_common(5)),
            cost=self.meter.spending(),
            is_over_budget=self.meter.is_exhausted,
            bad_lines=self._reader.bad,
            notes=[*self._notes, *([self._source.note] if self._source.note else [])],
        )

    def _bottleneck(self, counters: JudgeCounters) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-3)
        if not self._workers:
            share = counters.seconds / elapsed
            if self.judge.verifier.is_async:  # calls overlap: their seconds exceed the clock's
                return f"the verifier: {min(share, LANES):.1f} of at most {LANES} calls were under way on average"
            return (
                f"the verifier: {share:.0%} of the time inside it" if share > 0.5 else "reading and writing"
            )
        busy = (
            self._busy_sum / self._busy_looks
            if self._busy_looks
            else counters.seconds / elapsed / self._workers
        )
        if busy > 0.7:
            many = f"{self._workers} worker{'s' if self._workers > 1 else ''}"
            return f"the verifier: {many} {min(busy, 1):.0%} busy; more --verify-workers may help"
        return f"reading, or collection: workers {min(busy, 1):.0%} busy"
