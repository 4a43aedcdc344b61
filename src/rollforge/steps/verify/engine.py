"""This module is the loop of verification: read rollouts, judge them, append verdicts.

Memory is bounded by what is in flight, not by the run. Nothing a verdict does can end the verification; what ends it early is a
user's interrupt or a disk that cannot be written, and then the same command resumes with what is on disk.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import msgspec

from rollforge.errors import Failure, RollforgeError, UsageError
from rollforge.records import Verdict
from rollforge.rollouts import GrowingLines, Rollout, RolloutReader, TaskFields
from rollforge.steps.verify.choice import Chooser, grouped
from rollforge.steps.verify.options import VerifyOptions
from rollforge.steps.verify.tally import ClusterMean, Summary
from rollforge.steps.verify.verdicts import FailureFile, failure_line, verdict_line
from rollforge.store import DurableFile, RunFiles, RunLock, is_alive, read_manifest
from rollforge.store.lock import is_held
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.cache import VerdictCache
from rollforge.verifiers.calling import Stopped
from rollforge.verifiers.runner import JudgeCounters, RunningJudge, make_judge

LANES = 128
"""Rollouts held at once: enough to keep every worker and a slow async judge busy."""
POLL_SECONDS = 0.2
APPEAR_SECONDS = 120.0
"""How long `--follow` waits for a run that does not exist yet."""


class Snapshot(msgspec.Struct, frozen=True):
    """What the display shows at one moment."""

    done: int
    already: int
    failed: int
    unjudged: int
    rate: float
    mean: float | None
    counters: JudgeCounters
    is_waiting: bool
    """Everything collected so far is judged; the collecting process is at work."""


class Verification:
    """Judges a run with one verifier."""

    def __init__(self, options: VerifyOptions) -> None:
        self.options = options
        self.files = RunFiles(options.run)
        self.judge = self._make_judge()
        self.is_waiting = False
        self._is_stopping = False
        self._lanes: list[asyncio.Task[None]] = []
        self._reader = RolloutReader(self.files.rollouts)
        self._rewards = ClusterMean()
        self._judged = self._unjudged = self._failed = self._asked = self._begun = 0
        self._failures: Counter[str] = Counter()
        self._busy_share: list[float] = []
        self._started = time.monotonic()
        self._chooser = Chooser(options, self.files, self.judge)
        self._notes: list[str] = []
        self._workers = 0
        self._error: RollforgeError | None = None

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
        )

    def stop(self) -> None:
        """Take no new rollouts; what is being judged is finished and written."""
        self._is_stopping = True
        self.judge.drain()

    def abort(self) -> None:
        """Do not wait for what is being judged either."""
        self._is_stopping = True
        for lane in self._lanes:
            lane.cancel()

    def snapshot(self) -> Snapshot:
        """The state of things now."""
        counters = self.judge.counters
        if counters.workers:
            self._busy_share.append(counters.busy / counters.workers)
        done = self._judged + self._unjudged + self._failed
        elapsed = max(time.monotonic() - self._started, 1e-3)
        return Snapshot(
            done=done,
            already=self._chooser.already,
            failed=self._failed,
            unjudged=self._unjudged,
            rate=done / elapsed,
            mean=self._rewards.mean,
            counters=counters,
            is_waiting=self.is_waiting,
        )

    async def run(self) -> Summary:
        """Judge what is owed and say how it went."""
        await self._await_file()
        with RunLock(self.files.verdicts_lock):
            self._chooser.read(self._rewards)
            tasks = TaskFields(self.files, self.options.tasks)
            self._started = time.monotonic()
            verdicts = DurableFile(self.files.verdicts)
            failures = FailureFile(self.files)
            try:
                await self.judge.start()
                if self.judge.note:
                    self._notes.append(self.judge.note)
                await verdicts.start()
                await self._judge_all(tasks, verdicts, failures)
            finally:
                failures.flush()
                self._workers = self.judge.counters.workers
                await self.judge.close()
                await verdicts.close()
        if self._error:
            raise self._error
        return self._summary()

    async def _await_file(self) -> None:
        """With `--follow`, the run may be about to begin."""
        deadline = time.monotonic() + (APPEAR_SECONDS if self.options.is_following else 0)
        while not self.files.rollouts.exists():
            if time.monotonic() >= deadline or self._is_stopping:
                raise UsageError(
                    f"{self.files.rollouts}: no such run", hint="collect one first: rollforge collect --help"
                )
            self.is_waiting = True
            await asyncio.sleep(POLL_SECONDS)

    async def _judge_all(self, tasks: TaskFields, verdicts: DurableFile, failures: FailureFile) -> None:
        queue: asyncio.Queue[list[Rollout] | None] = asyncio.Queue(LANES)
        self._lanes = [
            asyncio.create_task(self._lane(queue, tasks, verdicts, failures)) for _ in range(LANES)
        ]
        try:
            async for group in self._owed():
                self._check_fields(tasks, group[0])
                await verdicts.room()
                await queue.put(group)
                if self._is_stopping or self._error:
                    break
        finally:
            for _ in self._lanes:
                if self._is_stopping and queue.full():
                    queue.get_nowait()
                await queue.put(None)
            await asyncio.gather(*self._lanes, return_exceptions=True)

    def _check_fields(self, tasks: TaskFields, rollout: Rollout) -> None:
        """Refuse a run whose tasks lack what the verifier reads, before the first verdict rather than in each."""
        if self._begun:
            return
        self._begun += 1
        task = tasks.of(rollout)
        missing = [field for field in self.judge.verifier.needs if field.partition(".")[0] not in task]
        if missing:
            place = tasks.path or self.files.rollouts
            raise UsageError(
                f"{place}: the tasks have no field {missing[0]!r}, which {self.judge.name} needs",
                hint="give the task file that has it: --tasks FILE",
            )

    async def _owed(self) -> AsyncIterator[list[Rollout]]:
        """Groups of rollouts to judge: single ones, or all samples of a task for a group verifier."""
        if self.judge.is_group:
            async for _ in self._new_rollouts(None):
                pass  # a group is whole when the collecting process has ended
            for group in grouped(self.files.rollouts):
                wanted = [rollout for rollout in group if self._chooser.is_wanted(rollout)]
                if wanted:
                    self._asked += len(wanted)
                    yield group
            return
        async for rollout in self._new_rollouts(self._reader):
            if self._chooser.is_wanted(rollout):
                self._asked += 1
                yield [rollout]

    async def _new_rollouts(self, reader: RolloutReader | None) -> AsyncIterator[Rollout]:
        """Rollouts as they are, or with `--follow` as they come, until the run has ended."""
        if not self.options.is_following:
            for whole in reader or ():
                yield whole
            return
        lines = GrowingLines(self.files.rollouts)
        try:
            has_ended = False
            while not self._is_stopping:
                was_ended, has_new = has_ended, False
                for number, line in lines.read() if reader else ():
                    has_new = True
                    rollout = reader.parse(number, line) if reader else None
                    if rollout is not None:
                        yield rollout
                if was_ended and not has_new:
                    return
                has_ended = not self._is_collecting()
                self.is_waiting = not has_new
                if not has_new and not has_ended:
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            self.is_waiting = False
            lines.close()

    def _is_collecting(self) -> bool:
        try:
            manifest = read_manifest(self.files)
        except RollforgeError:
            manifest = None
        if manifest is None:
            return is_held(self.files.lock)
        return manifest.state == "running" and is_alive(self.files, manifest)

    async def _lane(
        self,
        queue: asyncio.Queue[list[Rollout] | None],
        tasks: TaskFields,
        verdicts: DurableFile,
        failures: FailureFile,
    ) -> None:
        while True:
            group = await queue.get()
            if group is None:
                return
            if self._is_stopping:
                continue
            try:
                await self._judge_group(group, tasks, verdicts.append, failures.add)
            except Stopped:
                continue  # it stays owed
            except RollforgeError as error:
                self._error = self._error or error
                self._is_stopping = True

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
                    (verdict, 0.0, 1)
                    for verdict in await self.judge.judge_group(task, [r.response for r in group])
                ]
            else:
                ruling = await self.judge.rule(task, group[0].response)
                rulings = [(ruling.verdict, ruling.seconds, ruling.shared)]
        except Failure as failure:
            seconds = time.perf_counter() - started
            for rollout in group:
                line = verdict_line(
                    rollout, self.judge, Verdict(), seconds=seconds, shared=1, error=failure.message
                )
                append(line)
                add_failure(failure_line(rollout, self.judge, failure, seconds))
            self._failed += len(group)
            self._failures[failure.message] += len(group)
            return
        for rollout, (verdict, seconds, shared) in zip(group, rulings, strict=True):
            append(verdict_line(rollout, self.judge, verdict, seconds=seconds, shared=shared))
            if verdict.reward is None:
                self._unjudged += 1
            else:
                self._judged += 1
                self._rewards.add(rollout.task, verdict.reward)

    def _summary(self) -> Summary:
        chooser, counters = self._chooser, self.judge.counters
        judged = self._judged + chooser.already_judged
        unjudged = self._unjudged + chooser.already_unjudged
        rollouts = self._asked + chooser.already
        owed = self._asked - self._judged - self._unjudged - self._failed
        is_done = not (owed or self._failed or unjudged or self._reader.bad_count)
        return Summary(
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
            reward=self._rewards.estimate(),
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
            bad_lines=self._reader.bad,
            notes=self._notes,
        )

    def _bottleneck(self, counters: JudgeCounters) -> str:
        elapsed = max(time.monotonic() - self._started, 1e-3)
        if not self._workers:
            share = counters.seconds / elapsed
            return (
                f"the verifier: {share:.0%} of the time inside it" if share > 0.5 else "reading and writing"
            )
        busy = (
            sum(self._busy_share) / len(self._busy_share) if self._busy_share else counters.seconds / elapsed
        )
        if busy > 0.7:
            many = f"{self._workers} worker{'s' if self._workers > 1 else ''}"
            return f"the verifier: {many} {min(busy, 1):.0%} busy; more --verify-workers may help"
        return f"reading, or collection: workers {min(busy, 1):.0%} busy"
