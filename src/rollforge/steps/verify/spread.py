"""Verification by the workers of an executor: assigns parts of the run, sums reports, joins the verdicts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.executors.base import Introduction, Message, make_executor
from rollforge.executors.foreman import Assignment, Foreman, Progress
from rollforge.records import JsonObject
from rollforge.rollouts import has_plain_key
from rollforge.runtime.typed_decoding import decode_msgpack
from rollforge.steps.verify.judge_cost import JudgeMeter, joined_spending, note_costs
from rollforge.steps.verify.tally import VerifySummary, estimate_of, rewards_of
from rollforge.steps.verify.verdicts import VerdictRow, add_note, read_verdicts, whose_count
from rollforge.steps.verify.verify_loop import VerifySnapshot
from rollforge.steps.verify.verify_options import VerifyOptions
from rollforge.steps.verify.verify_worker import (
    VerifyOpening,
    VerifyOrders,
    VerifyReport,
    VerifyUnit,
    lines_between,
)
from rollforge.store import RunFiles, RunLock, mend_tail
from rollforge.store.atomic import open_for_writing, refuse_links, sync_file
from rollforge.store.find import refuse_devices
from rollforge.store.rollout_parts import parts_of
from rollforge.store.shipping import address_of, copy_of, ship_lines
from rollforge.verifiers.base import Verifier, load_verifier
from rollforge.verifiers.running.ready_verifier import JudgeCounters
from rollforge.verifiers.running.sources import sent_files

TARGET = "rollforge.steps.verify.verify_worker:VerifyWorker"
BLOCK = 4 << 20
UNIT_BYTES = 64 << 20
"""Most bytes of rollouts in one part."""
FEWEST_UNITS = 32
"""Number of parts of a small run; one per line if it has fewer lines."""


class SpreadVerification:
    """Judges a run with one verifier in several workers."""

    def __init__(self, options: VerifyOptions, *, on: str | None, workers: int | None) -> None:
        if options.is_following:
            raise UsageError("--follow reads in one process", hint="leave out --workers and --on")
        if not isinstance(options.verifier, str):
            raise UsageError(
                "a function cannot be sent to other processes", hint="name the verifier: file.py:function"
            )
        if options.max_cost is not None:
            raise UsageError("--max-cost counts in one process", hint="leave out --workers and --on")
        self.options = options
        self.files = RunFiles(options.run)
        refuse_devices(self.files)
        self._meter = JudgeMeter(options)
        self._on, self._count = on, workers
        self._reports: dict[str, VerifyReport] = {}
        self._lost: list[VerifySummary] = []
        self._rewards = rewards_of(self.files)
        self._notes: list[str] = []
        self._started = time.monotonic()
        self._is_stopping = self._is_aborting = False
        self._foreman: Foreman | None = None
        self._units: list[VerifyUnit] = []
        self._workers = 0

    def stop(self) -> None:
        """Take no new rollouts; verdicts in progress are finished and written."""
        self._is_stopping = True
        if self._foreman is not None:
            self._foreman.stop()

    def abort(self) -> None:
        """Also abandon verdicts in progress."""
        self._is_aborting = True
        self.stop()

    def snapshot(self) -> VerifySnapshot:
        """Progress so far."""
        summaries = self._summaries()
        done = sum(one.judged + one.unjudged + one.failed - one.already for one in summaries)
        return VerifySnapshot(
            done=done,
            already=sum(one.already for one in summaries),
            failed=sum(one.failed for one in summaries),
            unjudged=sum(one.unjudged for one in summaries),
            rate=done / max(time.monotonic() - self._started, 1e-3),
            mean=self._rewards.mean,
            cost=sum(one.cost.session or 0.0 for one in summaries if one.cost is not None) or None,
            counters=JudgeCounters(busy=sum(one.busy for one in self._reports.values())),
            is_waiting=False,
        )

    async def run(self) -> VerifySummary:
        """Judge what is owed; returns the summary."""
        options = self.options
        assert isinstance(options.verifier, str)
        verifier = load_verifier(options.verifier, options.options, options.mode)
        with RunLock(self.files.verdicts_lock):
            await asyncio.to_thread(self._join_verdicts)  # of workers whose asker was killed
            self._units = await asyncio.to_thread(self._parts_to_judge, verifier)
            executor = make_executor(self._on or "local", self._count)
            mine = Introduction.of_this_process(verifier=verifier.fingerprint)
            self._foreman = Foreman(executor, TARGET, range(len(self._units)), self, mine)
            if self._is_stopping:
                self._foreman.stop()
            await self._foreman.run()
            await asyncio.to_thread(self._join_verdicts)
            if verifier.warning:
                await asyncio.to_thread(add_note, self.files, verifier.warning)
            if self._meter.is_asked:
                price = self._meter.price
                await asyncio.to_thread(note_costs, self.files, price.text if price is not None else None)
        summary = self._summary(verifier)
        if summary.rollouts:
            summary.notes += await asyncio.to_thread(
                whose_count,
                self.files,
                options.run,
                verifier.name,
                fingerprint=verifier.fingerprint,
                has_reward=bool(summary.judged),
            )
        return summary

    def _parts_to_judge(self, verifier: Verifier) -> list[VerifyUnit]:
        """Shards, or byte ranges of a single file, if its rows have keys and no group verifier is used."""
        parts = parts_of(self.files).rollouts
        if not parts:
            raise UsageError(
                f"{self.files.name}: no such run", hint="collect one first: rollforge collect --help"
            )
        if self.files.is_sharded:
            by_shard: dict[Path, list[tuple[str, int, int | None]]] = {}
            for part in parts:
                by_shard.setdefault(part.path.parent.parent, []).append(
                    (str(part.path.absolute()), 0, part.size())
                )
            return [VerifyUnit(ranges) for ranges in by_shard.values()]
        path, size = parts[0].path.absolute(), parts[0].size()
        if path.suffix != ".jsonl" or verifier.is_group:
            return [VerifyUnit([(str(path), 0, None)])]
        first = next(lines_between(path, 0, size), b"")
        if not has_plain_key(first):
            raise UsageError(
                f"{path}: the rows have no task and rollout number, so that only one process can tell them apart",
                hint="leave out --workers and --on",
            )
        step = max(1, min(UNIT_BYTES, -(-size // FEWEST_UNITS)))
        return [VerifyUnit([(str(path), start, min(start + step, size))]) for start in range(0, size, step)]

    def _join_verdicts(self) -> None:
        """Append the workers' verdicts durably to the run's file, then delete the workers' files."""
        if (copy := copy_of(self.files.verdicts)) is not None:
            copy.refresh()
        refuse_links(self.files.verdict_parts)
        if not self.files.verdict_parts.is_dir():
            return
        for folder in sorted(self.files.verdict_parts.iterdir()):
            if folder.is_symlink() or not folder.is_dir():  # nothing that a worker made
                folder.unlink()
                continue
            for name, target in (
                ("verdicts.jsonl", self.files.verdicts),
                ("failures.jsonl", self.files.verify_failures),
            ):
                if (folder / name).is_file():
                    mend_tail(folder / name)
                    mend_tail(target)
                    handle = open_for_writing(target, os.O_WRONLY | os.O_APPEND)
                    with os.fdopen(handle, "ab") as file, (folder / name).open("rb") as part:
                        while lines := part.read(BLOCK) + part.readline():
                            file.write(lines)
                            file.flush()
                            sync_file(file.fileno())
                            ship_lines(target, lines)
            shutil.rmtree(folder)
            if (copy := copy_of(self.files.verdicts)) is not None:
                copy.remove(folder)
        with contextlib.suppress(OSError):
            self.files.verdict_parts.rmdir()

    # -- what the foreman asks ----------------------------------------------------------------------------------------

    def opening(self, workers: int) -> Message:
        self._workers = workers
        options = self.options
        option_values = vars(options) | _cores_for(
            options, workers, is_here=(self._on or "local").partition(":")[0] != "ray"
        )
        option_values |= {"run": str(Path(options.run).absolute())}
        return msgspec.msgpack.encode(
            VerifyOpening(
                options={
                    name: str(value) if isinstance(value, Path) else value
                    for name, value in option_values.items()
                },
                folder=os.getcwd(),  # noqa: PTH109  (a text)
                units=self._units,
                bucket=address_of(options.run),
                root=str(self.files.rollouts.parent.absolute()),
                sent_files=sent_files(options.verifier),
            )
        )

    def orders(self, name: str, units: list[Assignment], *, is_last: bool) -> Message:
        return msgspec.msgpack.encode(
            VerifyOrders(
                units=units, is_stopping=self._is_stopping, is_abort=self._is_aborting, is_last=is_last
            )
        )

    def report(self, name: str, answer: Message) -> Progress:
        report = decode_msgpack(answer, VerifyReport)
        self._reports[name] = report
        for task, reward in report.rewards:
            self._rewards.add(task, reward)
        return Progress(
            done=report.done, is_hungry=report.is_hungry and not self._is_stopping, has_ended=report.has_ended
        )

    def lost(self, name: str, units: list[int], reason: str) -> None:
        last = self._reports.pop(name, None)
        if last is not None:
            self._lost.append(last.summary)
        self._notes.append(f"{reason}; {len(units)} parts are judged by others")

    def _recounted(self, verifier: Verifier) -> dict[str, int]:
        """Counts and rewards of the newest verdict of every rollout, from the files."""
        newest = {
            row.key: row
            for row, _ in read_verdicts(self.files.verdicts)
            if row.verifier == verifier.name and row.fingerprint == verifier.fingerprint
        }
        self._rewards = rewards_of(self.files)
        for key, row in sorted(newest.items()):
            if row.error is None and row.reward is not None:
                self._rewards.add_rollout(key, row.reward)
        return _counts_of(newest.values()) | {"rollouts": len(newest), "owed": 0}

    # -- the end ------------------------------------------------------------------------------------------------------

    def _summaries(self) -> list[VerifySummary]:
        return [*self._lost, *(one.summary for one in self._reports.values())]

    def _summary(self, verifier: Verifier) -> VerifySummary:
        """Summary of this session; after losing a worker, recounted from disk, since some work was done twice."""
        summaries = self._summaries()
        total = {name: sum(getattr(one, name) for one in summaries) for name in _SUMMED}
        if self._lost:
            total |= self._recounted(verifier)
        failures: Counter[str] = Counter()
        for one in summaries:
            failures.update(one.failures)
        left = self._foreman.left if self._foreman is not None else 0
        is_done = not (
            left or total["owed"] or total["failed"] or total["unjudged"] or total["rejected_lines"]
        )
        calls = total["calls"]
        spent = sum((one.seconds_per_verdict or 0.0) * one.calls for one in summaries)
        return VerifySummary(
            run=str(self.options.run),
            verifier=verifier.name,
            fingerprint=verifier.fingerprint,
            mode=verifier.mode,
            state="interrupted" if self._is_stopping else "done" if is_done else "incomplete",
            coverage=total["judged"] / total["rollouts"] if total["rollouts"] else None,
            reward=estimate_of(self._rewards),
            hit_rate=total["cache_hits"] / total["lookups"] if total["lookups"] else None,
            seconds=time.monotonic() - self._started,
            seconds_per_verdict=spent / calls if calls else None,
            bottleneck=f"{self._workers} workers; see each one's cores",
            failures=dict(failures.most_common(5)),
            cost=joined_spending([one.cost for one in summaries if one.cost is not None], self.files),
            bad_lines=[bad for one in summaries for bad in one.bad_lines][:10],
            notes=list(dict.fromkeys([*self._notes, *(note for one in summaries for note in one.notes)])),
            **total,
        )


def _counts_of(newest: Iterable[VerdictRow]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for row in newest:
        counts["failed" if row.error is not None else "unjudged" if row.reward is None else "judged"] += 1
    return {name: counts[name] for name in ("judged", "unjudged", "failed")}


def _cores_for(options: VerifyOptions, workers: int, *, is_here: bool) -> JsonObject:
    """Cores per worker: workers on one machine share its cores; a worker with its own node uses all of them."""
    if options.workers != "auto" or not is_here:
        return {}
    return {"workers": max(1, (os.cpu_count() or 1) // workers)}


_SUMMED = (
    *("rollouts", "judged", "unjudged", "failed", "owed", "already", "rejected_lines", "calls", "shared"),
    *("cache_hits", "lookups", "workers", "replaced_workers"),
)
