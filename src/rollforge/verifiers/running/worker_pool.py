"""A pool of long-lived worker processes: distributes calls, kills workers that hang, replaces workers that die.

A call that kills its worker does not affect others: calls queued behind it go to the next worker. A call whose worker was killed
from outside is retried once. Every background task is supervised: an unexpected error in one fails all waiting calls with its
message. The pool is independent of files, caches and runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec

from rollforge.errors import RollforgeError, UsageError
from rollforge.records import Response, Task, Verdict
from rollforge.runtime.on_error import OnErrorAwait
from rollforge.verifiers.base import Verifier
from rollforge.verifiers.building_blocks.answer_limit import TIMED_OUT
from rollforge.verifiers.running.calling import (
    LATE,
    EngineState,
    Stopped,
    failure_message,
    verifier_failure,
)
from rollforge.verifiers.running.cores import idle_cores, usable_cores
from rollforge.verifiers.running.spawner import START_SECONDS, Spawner, TemplateLost
from rollforge.verifiers.running.worker import DUMP_SIGNAL, HEADER, kill_group
from rollforge.verifiers.running.worker_line import CallOutcome, Job, WorkerLine

TICK = 0.1
"""Interval of timeout checks: how far a call may exceed its timeout."""
DEEPEST_QUEUE = 16
QUEUED_SECONDS = 0.004
"""Amount of work in a worker's own queue: enough not to wait for the parent, too little to starve other workers."""
MAX_EARLY_DEATHS = 3
AUTO_PER_CORE = 4
"""Upper bound of workers per core with `auto`: several, for verifiers that wait (for a network, a subprocess)."""
ANSWER_GRACE = 1.0
"""CPU seconds beyond an answer's own limit after which its worker is killed for not reacting to the limit."""

STOPPED = "verification was stopped"

_encode = msgspec.json.Encoder().encode


class WorkerPool:
    """Runs one verifier in worker processes."""

    def __init__(
        self,
        verifier: Verifier,
        *,
        workers: int | str,
        timeout: float,
        memory_mb: int,
        output: str | Path | None = None,
    ) -> None:
        self._verifier = verifier
        self._timeout = timeout
        self._memory_mb = memory_mb
        self._is_auto = workers == "auto"
        self._wanted = 1 if self._is_auto else int(workers)
        self._most = usable_cores() * AUTO_PER_CORE if self._is_auto else int(workers)
        self._output = _open_output(output)
        self._spawner = Spawner(verifier, memory_mb, self._output)
        self._workers: list[WorkerLine] = []
        self._starting = 0
        self._queue: deque[Job] = deque()
        self._background: set[asyncio.Task[None]] = set()
        self._burying: set[WorkerLine] = set()
        self._early_deaths = 0
        self._depth = 1
        self._mean_seconds: float | None = None
        self._is_closing = False
        self._broken: str | None = None
        self._restarting = asyncio.Lock()
        self.replaced = 0

    @property
    def size(self) -> int:
        """Number of live workers."""
        return len(self._workers)

    def state(self) -> EngineState:
        """Current queue and worker counts."""
        return EngineState(
            queued=len(self._queue) + sum(max(0, len(worker.jobs) - 1) for worker in self._workers),
            busy=sum(bool(worker.jobs) for worker in self._workers),
            workers=len(self._workers),
            replaced=self.replaced,
            is_forked=self._spawner.is_forked,
        )

    async def start(self) -> None:
        """Start the first workers; raises `UsageError`, and leaves none, if the verifier does not load or its set-up fails."""
        async with OnErrorAwait(lambda _: self.close()):
            await self._spawner.start()
            await self._add()
        for _ in range(self._wanted - 1):
            self._grow()
        self._supervise(self._watch())

    async def run(self, task: Task, responses: list[Response]) -> CallOutcome:
        """Run one call and return its outcome; raises `Failure` if there is none."""
        try:
            payload = _encode([task, task.index, [response.encoded for response in responses]])
        except (TypeError, ValueError, OverflowError) as error:
            raise verifier_failure(f"the task or response cannot be sent to a worker: {error}") from error
        if self._broken is not None:
            raise verifier_failure(self._broken)
        job = Job(HEADER.pack(len(payload)) + payload, asyncio.get_running_loop().create_future())
        worker = self._freest()
        if worker is None:
            self._queue.append(job)
        else:
            worker.send(job, time.monotonic())
        return await job.future

    def _freest(self) -> WorkerLine | None:
        best, fewest = None, self._depth
        if self._queue:
            return None
        for worker in self._workers:
            if worker.is_ready and len(worker.jobs) < fewest:
                best, fewest = worker, len(worker.jobs)
        return best

    def feed(self, worker: WorkerLine) -> None:
        """Send queued calls to a worker until it has enough."""
        now = time.monotonic()
        while self._queue and worker.is_ready and not worker.is_ended and len(worker.jobs) < self._depth:
            job = self._queue.popleft()
            if not job.future.done():
                worker.send(job, now)

    def settle(self, job: Job, seconds: float, message: str | None, verdicts: list[Verdict] | None) -> None:
        """Process one answer of a worker."""
        self._early_deaths = 0
        mean = self._mean_seconds
        self._mean_seconds = seconds if mean is None else 0.9 * mean + 0.1 * seconds
        self._depth = max(1, min(DEEPEST_QUEUE, int(QUEUED_SECONDS / max(self._mean_seconds, 1e-6))))
        if job.future.done():
            return
        if message is not None or verdicts is None:
            job.future.set_exception(verifier_failure(message or "no verdict"))
        else:
            job.future.set_result((seconds, verdicts))

    def lost(self, worker: WorkerLine) -> None:
        """Replace a worker that ended: its current call fails, and the calls behind it go to others."""
        if worker in self._workers:
            self._workers.remove(worker)
        self._burying.add(worker)
        self._supervise(self._bury(worker))

    async def _bury(self, worker: WorkerLine) -> None:
        pid = worker.handle.pid
        kill_group(pid)  # also the processes it started
        try:
            code = await worker.handle.bury()
        except (RollforgeError, OSError):
            code = None
        reason = worker.end_reason or _describe_end(code, worker.handle.last_frame())
        culprit = worker.take_culprit()
        worker.handle.release()
        self._queue.extendleft(reversed(worker.jobs))
        worker.jobs.clear()
        self._burying.discard(worker)
        if not worker.ready.done():
            worker.ready.set_exception(
                UsageError(
                    f"the verifier {self._verifier.name} could not start: {reason}",
                    hint="mend the cause and run the same command again",
                )
            )
            worker.ready.exception()  # it is not awaited when the pool closes
        if culprit is not None:
            self._end_culprit(culprit, worker, code, reason)
        if culprit is None and not worker.is_leaving and code is not None:  # None: it died with its template
            self._early_deaths += 1
        if self._early_deaths >= MAX_EARLY_DEATHS and not self._workers:
            self._fail_all(f"workers end before they judge anything: {reason}")
        elif not self._is_closing:
            self.replaced += 1
            self._grow()

    def _end_culprit(self, job: Job, worker: WorkerLine, code: int | None, reason: str) -> None:
        """Conclude the call that killed its worker: a verdict for a hanging answer, a retry after a kill from outside, else a
        failure.
        """
        if job.future.done():
            return
        if worker.timed_out_s is not None:
            job.future.set_result(
                (worker.timed_out_s, [Verdict.from_value({"reward": 0.0, TIMED_OUT: True})])
            )
        elif (
            worker.end_reason is None
            and not (job.is_retry or self._is_closing or self._broken)
            and code in _KILLED_FROM_OUTSIDE
        ):
            job.is_retry = True
            self._queue.appendleft(job)
        else:
            job.future.set_exception(verifier_failure(reason))

    def _fail_all(self, reason: str) -> None:
        """Fail all waiting and later calls."""
        self._broken = self._broken or reason
        self._fail_waiting(self._broken)

    def _fail_waiting(self, reason: str) -> None:
        while self._queue:
            job = self._queue.popleft()
            if not job.future.done():
                job.future.set_exception(verifier_failure(reason))

    def drop_waiting(self) -> None:
        """Cancel calls that no worker has started."""
        while self._queue:
            job = self._queue.popleft()
            if not job.future.done():
                job.future.set_exception(Stopped())

    def _grow(self) -> None:
        self._supervise(self._add_quietly())

    async def _add_quietly(self) -> None:
        try:
            await self._add()
        except TemplateLost as lost:
            try:
                await self._restart(lost.spawner)
                await self._add()
            except UsageError as error:
                self._fail_all(str(error))
        except UsageError:
            pass  # `_bury` counts workers that cannot start

    async def _restart(self, lost: Spawner) -> None:
        """Replace a template that was killed or hangs; concurrent callers share one replacement."""
        async with self._restarting:
            if self._is_closing or self._spawner is not lost:
                return
            await lost.close()
            fresh = Spawner(self._verifier, self._memory_mb, self._output)
            async with OnErrorAwait(lambda _: fresh.close()):
                await fresh.start()
            self._spawner = fresh  # only now: nobody may ask it for a worker before it has said hello

    async def _add(self) -> None:
        self._starting += 1
        try:
            handle = await self._spawner.spawn()
            worker = WorkerLine(self, handle)
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: worker, sock=handle.sock)
            await asyncio.wait([worker.ready], timeout=START_SECONDS)
            if not worker.ready.done():
                worker.end(f"it did not start within {START_SECONDS:g} s")
            await worker.ready
        finally:
            self._starting -= 1
        if worker.is_ended:
            return
        self._workers.append(worker)
        self.feed(worker)

    def _supervise(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task; an unexpected error fails all calls, so that none waits for ever."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        reason = f"running the verifier failed unexpectedly: {failure_message(error)}"
        self._fail_jobs_of([*self._workers, *self._burying], reason)
        self._fail_all(reason)

    def _fail_jobs_of(self, workers: list[WorkerLine], reason: str) -> None:
        for worker in workers:
            for job in worker.jobs:
                if not job.future.done():
                    job.future.set_exception(verifier_failure(reason))

    async def _watch(self) -> None:
        """Kill workers that take too long; with `auto`, add workers while calls wait and cores are idle."""
        idle = idle_cores()
        since_look = 0
        while not self._is_closing:
            await asyncio.sleep(min(TICK, self._timeout / 4))
            now = time.monotonic()
            for worker in list(self._workers):
                self._check_time(worker, now)
            since_look += 1
            if self._is_auto and since_look * TICK >= 0.3:
                since_look = 0
                has_room = next(idle) >= 0.5
                if has_room and self._queue and self.size + self._starting < self._most:
                    self._grow()

    def _check_time(self, worker: WorkerLine, now: float) -> None:
        if not worker.jobs:
            return
        elapsed = now - worker.head_since
        if elapsed > ANSWER_GRACE and worker.handle.is_past_answer_limit(ANSWER_GRACE):
            worker.timed_out_s = elapsed
            worker.end("the answer did not end within its time limit")
            return
        if elapsed < self._timeout:
            return
        if worker.asked_where_at is None:
            worker.asked_where_at = now
            with contextlib.suppress(ProcessLookupError):
                # It writes where it hangs into its report; a late answer still counts.
                os.kill(worker.handle.pid, DUMP_SIGNAL)
            return
        position = worker.handle.last_frame()
        worker.end(f"{LATE} {self._timeout:g} s" + (f"; it was at {position}" if position else ""))

    async def close(self) -> None:
        """End every worker; each has three seconds for its teardown."""
        self._is_closing = True
        self._fail_waiting(STOPPED)
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.hang_up()
        await asyncio.gather(*(self._await_end(worker) for worker in workers))
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._fail_jobs_of(list(self._burying), STOPPED)
        self._fail_waiting(STOPPED)
        await self._spawner.close()
        if self._output is not None:
            os.close(self._output)
            self._output = None

    async def _await_end(self, worker: WorkerLine) -> None:
        self._fail_jobs_of([worker], STOPPED)
        burial = asyncio.ensure_future(worker.handle.bury())
        done, _ = await asyncio.wait([burial], timeout=3)
        if not done:
            kill_group(worker.handle.pid)
        with contextlib.suppress(RollforgeError, OSError):
            await burial
        worker.handle.release()


def _open_output(path: str | Path | None) -> int | None:
    if path is None:
        return None
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="--verifier-output names a file for what the verifier prints"
        ) from error


_KILLED_FROM_OUTSIDE = (None, -signal.SIGKILL, -signal.SIGTERM)
"""Exit codes for which the call is not to blame: the worker was killed by a user, for lack of memory, or with the template."""


def _describe_end(code: int | None, source: str) -> str:
    at = f" at {source}" if source else ""
    if code is None:
        return f"the worker process was lost{at}"
    if code == -signal.SIGKILL:
        return f"the worker process was killed (out of memory?) or closed its line{at}"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"the worker process was ended by {signal.Signals(-code).name}{at}"
    return f"the worker process exited with code {code}{at}"
