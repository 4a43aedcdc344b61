"""Rounds of batches at a provider: plan, upload, create, poll, fetch, convert to rollouts; until nothing is owed.

No request is paid twice. A request is in one batch only: its (task, sample, attempt) is durable in `rollouts_batches.jsonl`
before the upload, and no other batch includes it while that batch is open. If the creation of a batch was not recorded (lost
answer, killed process), the batch is searched at the provider by its metadata before it is created again. Results are judged and
written as they arrive; failures that can be retried are owed, with their next attempt, to the next round.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import numpy as np

from rollforge.endpoint.batch_api import BatchApi, ProviderBatch, UnreadableAnswer
from rollforge.endpoint.batch_lines import MOST_BYTES, NOTHING_USED
from rollforge.endpoint.client import Outage
from rollforge.errors import Failure, FailureClass, UsageError
from rollforge.records import to_json
from rollforge.statistics.counts import count_of
from rollforge.steps.collect.batch.answer_loop import BatchEngine
from rollforge.steps.collect.batch.request_files import RequestWriter
from rollforge.steps.collect.batch.results import BatchResults, line_limit
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.plan import CollectPlan
from rollforge.steps.collect.schedule import SampleRequest
from rollforge.store import DurableFile, replacing
from rollforge.store.batches import BatchEvent, BatchGroup, SentBatch, Step, read_batches
from rollforge.text_safety.outgoing import cut

T = TypeVar("T")

RUN_KEY, BATCH_KEY = "rollforge_run", "rollforge_batch"
"""Metadata keys of a batch at the provider."""
LOOKS = 3
"""How often to search for a batch whose creation was not recorded, since the provider's list may lag behind."""
LONGEST_LOOK_PAUSE_S = 5.0
TRIES = 8
"""How often one call to the provider is tried, polling excepted, which gives up on answers that are none, not on a network."""
LONGEST_WAIT_S = 72 * 3600.0
"""Providers promise an end within a day; after three without one the run stops, and can be resumed."""
LONGEST_PAUSE_S = 60.0
FULL = "token_limit_exceeded"
"""Error codes for a full provider queue: the batch can be created once another one has ended."""
MOST_FAULTS = 3


class BatchRounds:
    """The batches of one collection."""

    def __init__(
        self,
        engine: BatchEngine,
        plan: CollectPlan,
        options: CollectOptions,
        api: BatchApi,
        writer: RequestWriter,
        results: BatchResults,
    ) -> None:
        self._engine = engine
        self._plan = plan
        self._options = options
        self._api = api
        self._writer = writer
        self._results = results
        self._log = DurableFile(plan.files.batches)
        self._batches: dict[str, SentBatch] = {}
        self._pending = np.full(plan.ledger.expected, -1, dtype=np.int32)
        """For each rollout, its attempt in an open batch; -1 for none."""
        self._is_full = False
        """Whether the provider accepts no further batch until one has ended."""
        self._full_in_a_row = 0

    async def run(self) -> None:
        """Work until nothing is owed, or until a reason to stop; open batches stay at the provider and are resumed."""
        await self._log.start()
        try:
            self._batches = read_batches(self._plan.files.batches)
            for batch in self._open():
                self._mark(batch, is_pending=True)
            for batch in self._open():
                if batch.batch_id is None:
                    await self._send(batch, is_resumed=True)
            while not self._is_stopping():
                await self._submit_owed()
                if not self._open() or self._is_stopping():
                    break
                await self._settle_ended()
        except Failure as failure:
            self._stop(failure)
        finally:
            self._engine.notice = ""
            await self._log.close()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _submit_owed(self) -> None:
        """Put all owed rollouts that are in no open batch into new batches."""
        while not self._is_full and not self._is_stopping():
            groups, lines = self._next_file()
            if not lines:
                return
            batch = SentBatch(self._next_name(), requests=len(lines), url=self._writer.url, groups=groups)
            path = self._path(batch, "requests")
            _write(path, lines)
            self._batches[batch.name] = batch
            self._mark(batch, is_pending=True)
            # From here on these requests belong to this batch, whatever happens before the provider has answered.
            await self._record(batch, "planned", requests=batch.requests, url=batch.url, groups=groups)
            await self._send(batch)

    def _next_file(self) -> tuple[list[BatchGroup], list[bytes]]:
        """Requests of complete groups that fit into one file and the budget."""
        groups: list[BatchGroup] = []
        lines: list[bytes] = []
        size = 0
        pending_requests = int(np.count_nonzero(self._pending >= 0))
        while (ask := self._engine.next_ask()) is not None:
            samples = [one for one in ask.samples if not self._is_pending(ask.position, one)]
            if not samples:
                continue  # an open batch has them
            if self._may_exceed_budget(pending_requests + len(lines), len(samples)):
                self._engine.put_back(ask)
                break
            some = self._writer.lines(ask.position, samples)[: self._options.batch_size]
            is_too_much = (
                len(lines) + len(some) > self._options.batch_size or size + sum(map(len, some)) > MOST_BYTES
            )
            if lines and is_too_much:
                self._engine.put_back(ask)
                break
            lines += some
            size += sum(map(len, some))
            attempts = [self._plan.ledger.attempts(ask.position, one) for one in samples]
            pairs = list(zip(samples, attempts, strict=True))[: len(some)]
            groups += _runs(int(self._plan.ledger.task_ids[ask.position]), pairs)
            self._engine.begin(len(some))
            if len(some) < len(samples):  # a group larger than a file: the rest goes into the next one
                self._engine.put_back(ask._replace(samples=samples[len(some) :]))
                break
        return groups, lines

    def _may_exceed_budget(self, pending_requests: int, more: int) -> bool:
        """Whether more requests could exceed the budget, together with open ones; they then wait for results."""
        return pending_requests > 0 and self._engine.may_cost_too_much(pending_requests + more)

    async def _send(self, batch: SentBatch, *, is_resumed: bool = False) -> None:
        """Upload and create the batch, unless the provider already has it."""
        metadata = {RUN_KEY: self._writer.run, BATCH_KEY: batch.name}
        created = await self._find(metadata, looks=LOOKS) if is_resumed else None
        for number in range(TRIES):
            if created is not None or self._is_stopping():
                break
            if batch.file_id is None:
                await self._upload(batch)
            assert batch.file_id is not None
            try:
                created = await self._api.create(batch.file_id, batch.url, metadata)
            except Failure as failure:
                if not failure.is_retryable:
                    raise
                # The answer got lost, perhaps after the batch was created.
                await self._pause(_backoff_s(number))
                created = await self._find(metadata, looks=2)
        if created is None:
            if self._is_stopping():
                return
            raise Outage(f"the provider does not take the batch {batch.name}")
        batch.batch_id = created.id
        await self._record(batch, "created", batch_id=created.id)
        self._path(batch, "requests").unlink(missing_ok=True)

    async def _find(self, metadata: dict[str, str], *, looks: int) -> ProviderBatch | None:
        for look in range(looks):
            created = await self._retried(lambda: self._api.find(metadata))
            if created is not None:
                return created
            if look + 1 < looks:
                await self._pause(min(self._options.batch_poll_s, LONGEST_LOOK_PAUSE_S))
        return None

    async def _upload(self, batch: SentBatch) -> None:
        path = self._path(batch, "requests")
        if not path.exists():  # the process was killed before it was uploaded
            _write(path, self._lines_of(batch))
        batch.file_id = await self._retried(lambda: self._api.upload(path))
        await self._record(batch, "uploaded", file_id=batch.file_id)

    def _lines_of(self, batch: SentBatch) -> list[bytes]:
        lines: list[bytes] = []
        for group in batch.groups:
            position = self._plan.ledger.position(group.task)
            assert position is not None, "the tasks of a run do not change"
            samples = list(range(group.first, group.first + group.count))
            lines += self._writer.lines(position, samples, [group.attempt] * group.count)
        return lines

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def _settle_ended(self) -> None:
        """Wait until a batch has ended, and make rollouts of its results."""
        started = time.monotonic()
        while not self._is_stopping():
            ended = False
            for batch in self._open():
                state = await self._look(batch)
                if state is not None and state.has_ended:
                    await self._settle(batch, state)
                    ended = True
                if self._is_stopping():
                    return
            if ended:
                self._is_full = False
                return
            if time.monotonic() - started > LONGEST_WAIT_S:
                raise Outage(f"no batch has ended within {LONGEST_WAIT_S / 3600:g} hours")
            self._say()
            await self._pause(self._options.batch_poll_s)
            self._engine.is_budget_used()  # a deadline ends the waiting too

    async def _look(self, batch: SentBatch) -> ProviderBatch | None:
        """The current state of the batch; None while the provider is unreachable, which may last for hours."""
        assert batch.batch_id is not None
        try:
            state = await self._api.look(batch.batch_id)
        except Failure as failure:
            batch.unreadable += isinstance(failure, UnreadableAnswer)
            if batch.unreadable >= TRIES:
                raise Outage(f"batch {batch.batch_id}: {failure.message}") from failure
            if failure.is_retryable:
                self._engine.notice = (
                    f"the provider does not answer ({cut(failure.message, 200)}); trying again"
                )
                return None
            raise
        batch.unreadable = 0
        if (done := state.done) is not None:
            batch.done = min(done, batch.requests)
        return state

    async def _settle(self, batch: SentBatch, ended: ProviderBatch) -> None:
        await self._record(
            batch,
            "ended",
            status=ended.status,
            output_file_id=ended.output_file_id,
            error_file_id=ended.error_file_id,
        )
        if ended.status == "failed" and await self._is_refused(batch, ended):
            return
        files = [
            await self._fetch(batch, part, file_id)
            for part, file_id in (("output", ended.output_file_id), ("errors", ended.error_file_id))
            if file_id is not None
        ]
        for path in files:
            self._results.add(path)
        if ended.status != "cancelled":
            self._fail_unanswered(batch, ended)
        await self._engine.run()
        if self._has_results_left(batch):
            return  # the run was stopped meanwhile: a resumed one fetches the results again
        if ended.status == "cancelled":
            self._stop(Outage(f"the batch {batch.batch_id} was cancelled at the provider"))
        self._mark(batch, is_pending=False)
        await self._record(batch, "settled")
        self._full_in_a_row = 0
        self._results.forget()
        for path in files:
            path.unlink(missing_ok=True)

    def _has_results_left(self, batch: SentBatch) -> bool:
        """Whether some result of the batch is not on disk yet."""
        ledger, attempts = self._plan.ledger, self._options.attempts
        return any(
            sample in ledger.owed_samples(position, attempts)
            and ledger.attempts(position, sample) == attempt
            and self._results.has(position, sample, attempt)
            for position, sample, attempt in self._requests(batch.groups)
        )

    async def _is_refused(self, batch: SentBatch, ended: ProviderBatch) -> bool:
        """Whether the provider refused the batch; its requests are owed again, or the run stops."""
        faults = ended.faults
        reasons = "; ".join(
            f"{fault.message or fault.code}" + (f" (line {fault.line})" if fault.line is not None else "")
            for fault in faults[:MOST_FAULTS]
        )
        self._mark(batch, is_pending=False)
        for position, sample, _ in self._requests(batch.groups):
            self._engine.put_back(SampleRequest(position, [sample]))
        await self._record(batch, "dropped", reason=reasons)
        hint = "see the batch in the provider's console; then run the same command again"
        if any(fault.code == FULL for fault in faults):
            hint = "make smaller batches: --batch-size 1000"
            self._full_in_a_row += 1
            if self._full_in_a_row < TRIES:
                # Another batch occupies the queue, ours or one of another user of the key.
                self._is_full = bool(self._open())
                self._engine.notice = "the provider's queue is full"
                await self._pause(min(LONGEST_PAUSE_S, self._options.batch_poll_s * 2**self._full_in_a_row))
                return True
        self._engine.stop(
            "fatal", UsageError(f"the provider refused the batch: {reasons or 'no reason'}", hint=hint)
        )
        return True

    def _fail_unanswered(self, batch: SentBatch, ended: ProviderBatch) -> None:
        """Record requests of an ended batch without a results line as failed."""
        for position, sample, attempt in self._requests(batch.groups):
            if self._results.has(position, sample, attempt):
                continue
            kind: FailureClass = "timeout" if ended.status == "expired" else "transient"
            failure = Failure("model", kind, f"the batch is {ended.status}, with no answer to this request")
            failure.usage = NOTHING_USED
            self._results.fail(position, sample, attempt, failure)

    async def _fetch(self, batch: SentBatch, part: str, file_id: str) -> Path:
        """Download a results file atomically."""
        path = self._path(batch, part)
        limit = (batch.requests + 1) * line_limit(self._options.max_response_bytes)

        async def fetch() -> Path:
            with replacing(path) as file:
                await self._api.download(file_id, file.write, limit=limit)
            return path

        return await self._retried(fetch)

    # -- common -------------------------------------------------------------------------------------------------------

    def _open(self) -> list[SentBatch]:
        return [batch for batch in self._batches.values() if batch.is_open]

    def _next_name(self) -> str:
        return f"rf-{self._writer.run}-{len(self._batches) + 1:05d}"

    def _path(self, batch: SentBatch, part: str) -> Path:
        return self._plan.files.batch_files / f"{batch.name}-{part}.jsonl"

    def _requests(self, groups: Iterable[BatchGroup]) -> Iterable[tuple[int, int, int]]:
        for group in groups:
            position = self._plan.ledger.position(group.task)
            if position is not None:
                for sample in range(group.first, min(group.first + group.count, self._plan.ledger.samples)):
                    yield position, sample, group.attempt

    def _mark(self, batch: SentBatch, *, is_pending: bool) -> None:
        """Record the rollouts of an open batch as pending, or of an ended batch as no longer pending.

        A batch of a killed session may contain attempts whose failure is already on disk; their next attempt is in no batch yet.
        """
        ledger = self._plan.ledger
        for position, sample, attempt in self._requests(batch.groups):
            slot = position * ledger.samples + sample
            if is_pending and ledger.attempts(position, sample) == attempt:
                self._pending[slot] = attempt
            elif not is_pending and self._pending[slot] == attempt:
                self._pending[slot] = -1

    def _is_pending(self, position: int, sample: int) -> bool:
        return bool(self._pending[position * self._plan.ledger.samples + sample] >= 0)

    async def _record(
        self,
        batch: SentBatch,
        step: Step,
        *,
        requests: int = 0,
        url: str = "",
        groups: list[BatchGroup] | None = None,
        file_id: str | None = None,
        batch_id: str | None = None,
        status: str | None = None,
        output_file_id: str | None = None,
        error_file_id: str | None = None,
        reason: str | None = None,
    ) -> None:
        event = BatchEvent(
            batch=batch.name,
            step=step,
            at=time.time(),
            requests=requests,
            url=url,
            groups=groups or [],
            file_id=file_id,
            batch_id=batch_id,
            status=status,
            output_file_id=output_file_id,
            error_file_id=error_file_id,
            reason=reason,
        )
        await self._log.append(to_json(event))
        if step != "ended":  # until its results are on disk, an ended batch is looked at like any other
            batch.take(event)

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """The result of a free provider call, retried for a while."""
        for number in range(TRIES):
            try:
                return await call()
            except Failure as failure:
                if not failure.is_retryable or number + 1 == TRIES or self._is_stopping():
                    raise
                self._engine.notice = (
                    f"the provider does not answer ({cut(failure.message, 200)}); trying again"
                )
                await self._pause(max(failure.retry_after or 0.0, _backoff_s(number)))
        raise AssertionError("unreachable")

    async def _pause(self, seconds: float) -> None:
        """Sleep, but wake early when the run is to stop."""
        until = time.monotonic() + seconds
        while not self._is_stopping() and (left := until - time.monotonic()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(min(left, 0.25))  # signals set no event that a pause could wait for

    def _is_stopping(self) -> bool:
        return self._engine.is_stopping

    def _stop(self, failure: Failure) -> None:
        is_fatal = failure.kind in ("auth", "not-found", "permanent") and not isinstance(failure, Outage)
        if is_fatal and failure.kind == "permanent":
            self._engine.stop(
                "fatal",
                UsageError(
                    f"the provider refuses: {failure.message}",
                    hint="mend the request and run the same command again; nothing was sent",
                ),
            )
        else:
            self._engine.stop("fatal" if is_fatal else "outage", failure)

    def _say(self) -> None:
        batches = self._open()
        done, requests = sum(batch.done for batch in batches), sum(batch.requests for batch in batches)
        what = "batch" if len(batches) == 1 else "batches"
        self._engine.notice = (
            f"waiting for {len(batches)} {what}: {done:,} of {count_of(requests, 'request')} done"
        )


def _runs(task: int, pairs: list[tuple[int, int]]) -> list[BatchGroup]:
    """Samples with their attempts, grouped to ranges of consecutive samples with one attempt."""
    groups: list[BatchGroup] = []
    for sample, attempt in pairs:
        last = groups[-1] if groups else None
        if last is not None and last.first + last.count == sample and last.attempt == attempt:
            groups[-1] = BatchGroup(task, last.first, last.count + 1, attempt)
        else:
            groups.append(BatchGroup(task, sample, 1, attempt))
    return groups


def _write(path: Path, lines: list[bytes]) -> None:
    with replacing(path) as file:
        file.writelines(lines)


def _backoff_s(number: int) -> float:
    return float(min(LONGEST_PAUSE_S, 0.5 * 2**number))


def clear_folder(folder: Path) -> None:
    """Remove the folder of batch files if it is empty."""
    with contextlib.suppress(OSError):
        folder.rmdir()
