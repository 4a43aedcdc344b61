"""Probes in the background of a running collection, on a share of its tasks, without delaying it.

A share of a small run would be too few tasks for a result, so at least `FEWEST_TASKS` tasks are probed if the run has them. With
no wrong answer on 60 tasks, the true rate is below 6 % (Wilson, 95 %); a verifier that is wrong on 30 % of a question is judged
broken with probability 0.98.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from rollforge.records import Response, Task
from rollforge.verifiers.probes.prober import Prober
from rollforge.verifiers.probes.report import ProbeReport
from rollforge.verifiers.running.ready_verifier import RunningJudge

AT_ONCE = 2
BACKLOG = 64
"""Most queued tasks; further ones are skipped, because the run's own verdicts have priority."""
FEWEST_TASKS = 60
"""Fewest tasks to probe, whatever the share."""


class SprinkledProbes:
    """Probes for the judge of a collection. Offer it every rollout; it selects its share of tasks."""

    def __init__(self, judge: RunningJudge, share: float, tasks: int | None = None) -> None:
        """Prepare to probe.

        Args:
            share: Share of the tasks to probe.
            tasks: Number of tasks in the run, for raising a small share to `FEWEST_TASKS`.
        """
        self._prober = Prober(judge)
        floor = min(1.0, FEWEST_TASKS / tasks) if tasks else 0.0
        self._share = 0.0 if judge.is_group or not share else max(share, floor)
        self._error = ""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._running: set[asyncio.Task[None]] = set()
        self._asked: set[int] = set()
        self.passed_over = 0

    @property
    def share(self) -> float:
        """Share of the tasks that are probed."""
        return self._share

    def offer(self, task: Task, response: Response) -> bool:
        """Probe this task if it is drawn, at most once; returns at once, True if the task was taken."""
        if task.index in self._asked or not self._is_drawn(task.index):
            return False
        if len(self._running) >= BACKLOG:
            self.passed_over += 1
            return False
        self._asked.add(task.index)
        work = asyncio.ensure_future(self._ask(task, response))
        self._running.add(work)
        work.add_done_callback(self._ended)
        return True

    def _ended(self, work: asyncio.Task[None]) -> None:
        """Keep the first unexpected error for a note in the report; it does not affect the run."""
        self._running.discard(work)
        error = None if work.cancelled() else work.exception()
        if error is not None and not self._error:
            self._error = f"a probe ended unexpectedly: {type(error).__name__}: {error}"

    def _is_drawn(self, index: int) -> bool:
        digest = hashlib.blake2b(b"probe %d" % index, digest_size=8).digest()
        return int.from_bytes(digest, "big") < self._share * 2**64

    async def _ask(self, task: Task, response: Response) -> None:
        async with self._slots:
            await self._prober.ask(task, response)

    def report(self) -> ProbeReport:
        """The report on all observations so far."""
        report = self._prober.report()
        return msgspec.structs.replace(report, notes=[*report.notes, self._error]) if self._error else report

    async def finish(self, patience_s: float = 30.0) -> ProbeReport:
        """Wait for running probes, at most `patience_s`, and report. Call it before the judge is closed."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=patience_s)
            for work in late:
                work.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        return self.report()
