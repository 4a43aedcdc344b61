"""This module sprinkles probes into a running collection: a small share of its rollouts, in the background, never in its way."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

from rollforge.records import Response, Task
from rollforge.verifiers.probes.prober import Prober
from rollforge.verifiers.probes.report import ProbeReport
from rollforge.verifiers.running.judge import RunningJudge

AT_ONCE = 2
BACKLOG = 64
"""More tasks than this waiting to be asked about are passed over: the run's own verdicts come first."""


class SprinkledProbes:
    """Probes for the judge of a collection. Offer it every rollout; it takes its share."""

    def __init__(self, judge: RunningJudge, share: float) -> None:
        self._prober = Prober(judge)
        self._share = 0.0 if judge.is_group else share
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._running: set[asyncio.Task[None]] = set()
        self._asked: set[int] = set()
        self.passed_over = 0

    def offer(self, task: Task, response: Response) -> bool:
        """Maybe ask about this task, each at most once; True when it was taken. Returns at once."""
        if task.index in self._asked or not self._is_drawn(task.index):
            return False
        if len(self._running) >= BACKLOG:
            self.passed_over += 1
            return False
        self._asked.add(task.index)
        work = asyncio.ensure_future(self._ask(task, response))
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        return True

    def _is_drawn(self, index: int) -> bool:
        digest = hashlib.blake2b(b"probe %d" % index, digest_size=8).digest()
        return int.from_bytes(digest, "big") < self._share * 2**64

    async def _ask(self, task: Task, response: Response) -> None:
        async with self._slots:
            await self._prober.ask(task, response)

    def report(self) -> ProbeReport:
        """What has been learnt so far."""
        return self._prober.report()

    async def finish(self, patience_s: float = 30.0) -> ProbeReport:
        """Wait for what is being asked, within reason, and report. Call it before the judge is closed."""
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=patience_s)
            for work in late:
                work.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await work
        return self.report()
