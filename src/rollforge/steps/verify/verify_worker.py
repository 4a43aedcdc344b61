"""The worker of a verification over several processes: judges assigned parts, and writes verdicts to its own files.

A worker believed lost and its successor may both give a verdict. The newest one per rollout and verifier counts, so duplicates
are harmless and parts need no owner. The driver joins all workers' verdicts into the run's file at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from rollforge.executors.base import Introduction, Message
from rollforge.executors.foreman import Assignment
from rollforge.records import JsonObject
from rollforge.rollouts import Rollout, TaskFields
from rollforge.runtime.typed_decoding import decode_msgpack
from rollforge.steps.verify.choice import groups_of
from rollforge.steps.verify.tally import RolloutRewards, VerifySummary
from rollforge.steps.verify.verdicts import FailureFile
from rollforge.steps.verify.verify_loop import Verification
from rollforge.steps.verify.verify_options import VerifyOptions
from rollforge.store import DurableFile, RunFiles
from rollforge.store.atomic import make_directory
from rollforge.store.bucket import run_copy
from rollforge.store.reading import bounded_lines
from rollforge.tasks import read_lines
from rollforge.verifiers.running.sources import SentFile, enter

ANSWER_EVERY_S = 0.5
UNITS_AT_ONCE = 2
"""Parts judged at a time, so that the last verdicts of one part do not delay the next."""


class VerifyUnit(msgspec.Struct, frozen=True, array_like=True):
    """A part of the run: byte ranges of files; compressed files are whole."""

    ranges: list[tuple[str, int, int | None]]


class VerifyOpening(msgspec.Struct, frozen=True, kw_only=True):
    """The first message to a worker."""

    options: JsonObject
    """The fields of `VerifyOptions`, with paths as text."""
    folder: str
    units: list[VerifyUnit]
    bucket: str | None = None
    """Bucket address of the run, if any; every worker has a separate working copy."""
    root: str = ""
    """The driver's folder of the run, to which the units' paths refer."""
    sent_files: list[SentFile] = []


class VerifyOrders(msgspec.Struct, frozen=True, kw_only=True):
    """Current orders of the driver."""

    units: list[Assignment] = []
    is_stopping: bool = False
    is_abort: bool = False
    is_last: bool = False


class VerifyReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's report: counters since its start, rewards since its last report."""

    done: list[int] = []
    is_hungry: bool = False
    has_ended: bool = False
    summary: VerifySummary
    rewards: list[tuple[int, float]] = []
    busy: int = 0


class _ReportedRewards(RolloutRewards):
    """A running mean that also collects new values for the next report."""

    def __init__(self, first_stage: int | None) -> None:
        super().__init__(first_stage)
        self.new_values: list[tuple[int, float]] = []

    def add(self, cluster: int, value: float) -> None:
        self.new_values.append((cluster, value))
        super().add(cluster, value)


class PartVerification(Verification):
    """A verification that receives its rollouts part by part, and writes verdicts to this worker's file."""

    def __init__(self, options: VerifyOptions) -> None:
        super().__init__(options)
        self.rewards = _ReportedRewards(self._rewards.first_stage)
        self._rewards = self.rewards
        name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._own = self.files.verdict_parts / name

    async def open(self) -> None:
        """Start the judge and open this worker's files."""
        await asyncio.to_thread(self._chooser.read, self._rewards)
        self._tasks = await asyncio.to_thread(TaskFields, self.files, self.options.tasks)
        make_directory(self._own)
        self._verdicts = DurableFile(self._own / "verdicts.jsonl")
        self._failure_file = FailureFile(self._own / "failures.jsonl")
        await self.judge.start()
        if self.judge.note:
            self._notes.append(self.judge.note)
        await self._verdicts.start()

    async def judge_unit(self, unit: VerifyUnit) -> None:
        """Judge the owed rollouts of one part; returns when their verdicts are on disk."""
        await self._judge_all(self._owed_of(unit), self._tasks, self._verdicts, self._failure_file)
        await self._verdicts.flush()
        self._failure_file.flush()

    async def close(self) -> None:
        """Stop the judge; everything judged is on disk."""
        self._workers = self.judge.counters.workers
        self._notes += self._tasks.notes()
        self._failure_file.flush()
        await self.judge.close()
        await self._verdicts.close()

    async def _owed_of(self, unit: VerifyUnit) -> AsyncIterator[list[Rollout]]:
        if self.judge.is_group:
            held: dict[int, dict[int, Rollout]] = {}
            for rollout in self._rollouts_of(unit):
                held.setdefault(rollout.task, {})[rollout.rollout] = rollout
            for group in groups_of(held):
                if self._chooser.is_group_wanted(group):
                    self._asked += len(group)
                    yield group
            return
        for rollout in self._rollouts_of(unit):
            if self._chooser.is_wanted(rollout):
                self._asked += 1
                yield [rollout]

    def _rollouts_of(self, unit: VerifyUnit) -> Iterator[Rollout]:
        for path, first, end in unit.ranges:
            for number, line in enumerate(lines_between(Path(path), first, end), 1):
                rollout = self._reader.parse(number, line)
                if rollout is not None:
                    yield rollout


def lines_between(path: Path, first: int, end: int | None) -> Iterator[bytes]:
    """The lines that begin in [first, end) of a plain file; if `end` is None, all lines of any file."""
    if end is None:
        yield from (line for _, line in read_lines(path))
        return
    with path.open("rb", buffering=1 << 20) as file:
        if first:
            file.seek(first - 1)
            next(bounded_lines(file), b"")  # a line that begins before belongs to the part before
        offset = file.tell()
        for line in bounded_lines(file) if offset < end else ():
            if not line.isspace():
                yield line
            if file.tell() >= end:
                return


def _moved(unit: VerifyUnit, there: Path, here: Path) -> VerifyUnit:
    """A unit with paths of this machine's working copy instead of the driver's."""
    return VerifyUnit(
        [(str(here / Path(path).relative_to(there)), first, end) for path, first, end in unit.ranges]
    )


class VerifyWorker:
    """Judges the parts that the driver assigns."""

    def __init__(self) -> None:
        self._verification: PartVerification | None = None
        self._units: list[VerifyUnit] = []
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._done: list[int] = []
        self._changed = asyncio.Event()
        self._crash: BaseException | None = None
        self._copies = contextlib.ExitStack()

    async def handle(self, message: Message) -> Message:
        if self._verification is None:
            return msgspec.msgpack.encode(await self._open(decode_msgpack(message, VerifyOpening)))
        return msgspec.msgpack.encode(await self._obey(decode_msgpack(message, VerifyOrders)))

    async def close(self) -> None:
        if self._verification is None:
            return
        self._verification.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with self._copies:
            await self._verification.close()

    async def _open(self, opening: VerifyOpening) -> Introduction:
        enter(opening.folder, opening.sent_files)
        options = VerifyOptions(**opening.options)
        self._units = opening.units
        if opening.bucket is not None:
            run = await asyncio.to_thread(
                self._copies.enter_context, run_copy(opening.bucket, writes=True, locks=False)
            )
            options = replace(options, run=str(run))
            here = RunFiles(run).rollouts.parent
            self._units = [_moved(unit, Path(opening.root), here) for unit in opening.units]
        verification = PartVerification(options)
        await verification.open()
        self._verification = verification
        return Introduction.of_this_process(verifier=verification.judge.fingerprint)

    async def _obey(self, orders: VerifyOrders) -> VerifyReport:
        verification = self._verification
        assert verification is not None
        if orders.is_abort:
            verification.abort()
        elif orders.is_stopping:
            verification.stop()
        for one in orders.units:
            task = asyncio.create_task(verification.judge_unit(self._units[one.unit]))
            self._tasks[task] = one.unit
            task.add_done_callback(self._ended)
        if not orders.units and not orders.is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_EVERY_S):
                    await self._changed.wait()
            self._changed.clear()
        if self._crash is not None:
            raise self._crash
        if orders.is_last:
            await verification.close()
            self._copies.close()
        done, self._done = self._done, []
        rewards, verification.rewards.new_values = verification.rewards.new_values, []
        return VerifyReport(
            done=done,
            is_hungry=len(self._tasks) < UNITS_AT_ONCE,
            has_ended=orders.is_last,
            summary=verification.summary(),
            rewards=rewards,
            busy=verification.judge.counters.busy,
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        unit = self._tasks.pop(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crash = self._crash or error
        else:
            self._done.append(unit)
