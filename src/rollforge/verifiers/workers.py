"""This module is a pool of long-lived worker processes: it hands out verdicts, ends those that hang, replaces those that die.

One verdict can take down its own worker, never another verdict: whatever was queued behind it is handed to the next worker.
The pool knows nothing about files, caches or runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque

import msgspec

from rollforge.errors import RollforgeError, UsageError
from rollforge.records import Response, Task, Verdict
from rollforge.verifiers.base import Verifier
from rollforge.verifiers.calling import LATE, Stopped, verifier_failure
from rollforge.verifiers.cores import idle_cores, usable_cores
from rollforge.verifiers.line import Job, Outcome, WorkerLine
from rollforge.verifiers.process import DUMP_SIGNAL, HEADER, kill_group
from rollforge.verifiers.spawner import Spawner, TemplateLost

TICK = 0.1
"""Seconds between looks at the clock: how far beyond its timeout a verdict may run."""
DEEPEST_QUEUE = 16
QUEUED_SECONDS = 0.004
"""A worker holds about this much work in advance: enough never to wait for the parent, too little to keep from others."""
MAX_EARLY_DEATHS = 3
AUTO_PER_CORE = 4
"""`auto` adds workers while cores are idle: several per core when the verifier waits (for a network, a subprocess)."""

_encode = msgspec.json.Encoder().encode


class WorkerPool:
    """Runs one verifier in processes."""

    def __init__(self, verifier: Verifier, *, workers: int | str, timeout: float, memory_mb: int) -> None:
        self._verifier = verifier
        self._timeout = timeout
        self._memory_mb = memory_mb
        self._is_auto = workers == "auto"
        self._wanted = 1 if self._is_auto else int(workers)
        self._most = usable_cores() * AUTO_PER_CORE if self._is_auto else int(workers)
        self._spawner = Spawner(verifier, memory_mb)
        self._workers: list[WorkerLine] = []
        self._starting = 0
        self._queue: deque[Job] = deque()
        self._background: set[asyncio.Task[None]] = set()
        self._early_deaths = 0
        self._depth = 1
        self._mean_seconds: float | None = None
        self._is_closing = False
        self._broken: str | None = None
        self._restarting = asyncio.Lock()
        self.replaced = 0

    @property
    def queued(self) -> int:
        """Verdicts that wait for a worker."""
        return len(self._queue) + sum(max(0, len(worker.jobs) - 1) for worker in self._workers)

    @property
    def busy(self) -> int:
        """Workers that judge right now."""
        return sum(bool(worker.jobs) for worker in self._workers)

    @property
    def size(self) -> int:
        """Workers alive."""
        return len(self._workers)

    @property
    def is_forked(self) -> bool:
        """Workers are copies of this process, because the verifier cannot be imported by another."""
        return self._spawner.is_forked

    async def start(self) -> None:
        """Start the first workers; raises `UsageError` when the verifier does not load or its set-up fails."""
        await self._spawner.start()
        await self._add()
        for _ in range(self._wanted - 1):
            self._grow()
        self._run(self._watch())

    async def run(self, task: Task, responses: list[Response]) -> Outcome:
        """The outcome of one call; raises `Failure` when there is none."""
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
        """Fill a worker up from the queue."""
        now = time.monotonic()
        while self._queue and worker.is_ready and not worker.is_ended and len(worker.jobs) < self._depth:
            job = self._queue.popleft()
            if not job.future.done():
                worker.send(job, now)

    def settle(self, job: Job, seconds: float, message: str | None, verdicts: list[Verdict] | None) -> None:
        """One verdict has come."""
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
        """A worker ended: the verdict it was at fails, the ones behind it move on, another worker takes its place."""
        if worker in self._workers:
            self._workers.remove(worker)
        self._run(self._bury(worker))

    async def _bury(self, worker: WorkerLine) -> None:
        pid = worker.handle.pid
        kill_group(pid)  # also what it started itself
        try:
            code = await worker.handle.bury()
        except (RollforgeError, OSError):
            code = None
        reason = worker.end_reason or _describe_end(code, worker.handle.last_place())
        culprit = worker.take_culprit()
        worker.handle.release()
        self._queue.extendleft(reversed(worker.jobs))
        worker.jobs.clear()
        if not worker.ready.done():
            worker.ready.set_exception(
                UsageError(f"the verifier {self._verifier.name} could not start: {reason}")
            )
            worker.ready.exception()  # in a pool that closes nobody asks for it
        if culprit is not None and not culprit.future.done():
            culprit.future.set_exception(verifier_failure(reason))
        if culprit is None and not worker.is_leaving and code is not None:  # None: it went with its template
            self._early_deaths += 1
        if self._early_deaths >= MAX_EARLY_DEATHS and not self._workers:
            self._broken = f"workers end before they judge anything: {reason}"
            self._give_up(self._broken)
        elif not self._is_closing:
            self.replaced += 1
            self._grow()

    def _give_up(self, reason: str) -> None:
        while self._queue:
            job = self._queue.popleft()
            if not job.future.done():
                job.future.set_exception(verifier_failure(reason))

    def drop_waiting(self) -> None:
        """Take back what no worker has been given yet."""
        while self._queue:
            job = self._queue.popleft()
            if not job.future.done():
                job.future.set_exception(Stopped())

    def _grow(self) -> None:
        self._run(self._add_quietly())

    async def _add_quietly(self) -> None:
        try:
            await self._add()
        except TemplateLost as lost:
            try:
                await self._restart(lost.spawner)
                await self._add()
            except UsageError as error:
                self._broken = str(error)
                self._give_up(self._broken)
        except UsageError:
            pass  # a worker that cannot start is counted where it is buried

    async def _restart(self, lost: Spawner) -> None:
        """A new template takes the place of one that was killed, once for all who noticed."""
        async with self._restarting:
            if self._is_closing or self._spawner is not lost:
                return
            await lost.close()
            fresh = Spawner(self._verifier, self._memory_mb)
            try:
                await fresh.start()
            except BaseException:
                await fresh.close()
                raise
            self._spawner = fresh  # nobody may ask it for a worker before it has said hello

    async def _add(self) -> None:
        self._starting += 1
        try:
            handle = await self._spawner.spawn()
            worker = WorkerLine(self, handle)
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: worker, sock=handle.sock)
            await worker.ready
        finally:
            self._starting -= 1
        if worker.is_ended:
            return
        self._workers.append(worker)
        self.feed(worker)

    def _run(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _watch(self) -> None:
        """End what takes too long; with `auto`, add workers while verdicts wait and cores idle."""
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
        if not worker.jobs or now - worker.head_since < self._timeout:
            return
        if worker.asked_where_at is None:
            worker.asked_where_at = now
            with contextlib.suppress(ProcessLookupError):
                os.kill(
                    worker.handle.pid, DUMP_SIGNAL
                )  # it writes where it hangs; a late answer still counts
            return
        place = worker.handle.last_place()
        worker.end(f"{LATE} {self._timeout:g} s" + (f"; it was at {place}" if place else ""))

    async def close(self) -> None:
        """End every worker; those that tear down get three seconds."""
        self._is_closing = True
        self._give_up("verification was stopped")
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.hang_up()
        await asyncio.gather(*(self._await_end(worker) for worker in workers))
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._spawner.close()

    async def _await_end(self, worker: WorkerLine) -> None:
        for job in worker.jobs:
            if not job.future.done():
                job.future.set_exception(verifier_failure("verification was stopped"))
        burial = asyncio.ensure_future(worker.handle.bury())
        done, _ = await asyncio.wait([burial], timeout=3)
        if not done:
            kill_group(worker.handle.pid)
        with contextlib.suppress(RollforgeError, OSError):
            await burial
        worker.handle.release()


def _describe_end(code: int | None, place: str) -> str:
    at = f" at {place}" if place else ""
    if code is None:
        return f"the worker process was lost{at}"
    if code == -signal.SIGKILL:
        return f"the worker process was killed (out of memory?) or closed its line{at}"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"the worker process was ended by {signal.Signals(-code).name}{at}"
    return f"the worker process exited with code {code}{at}"
