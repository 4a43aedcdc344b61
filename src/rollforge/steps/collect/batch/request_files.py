"""Writes owed rollouts as request files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollforge.endpoint import Model
from rollforge.endpoint.batch_lines import MOST_BYTES, MOST_REQUESTS, RequestId, request_line
from rollforge.endpoint.chat import needs_responses
from rollforge.errors import UsageError
from rollforge.json_shapes import ChatBodyJson, ParamsJson
from rollforge.records import Task
from rollforge.steps.collect.collect_options import CollectOptions
from rollforge.steps.collect.plan import CollectPlan
from rollforge.steps.collect.schedule import Schedule
from rollforge.store import replacing, run_id


class RequestWriter:
    """Makes the batch requests of a run."""

    def __init__(self, plan: CollectPlan, options: CollectOptions, model: Model) -> None:
        self.run = run_key(plan)
        self.api = "responses" if options.api == "responses" else "chat"
        self.url = "/v1/responses" if self.api == "responses" else "/v1/chat/completions"
        self._plan = plan
        self._model = model

    def lines(
        self, position: int, samples: Sequence[int], attempts: Sequence[int] | None = None
    ) -> list[bytes]:
        """Requests for some samples of a task, by default each at its next attempt."""
        if attempts is None:
            attempts = [self._plan.ledger.attempts(position, sample) for sample in samples]
        task = self._plan.tasks.read(position)
        body = self._body(task)
        # The embedded model's answers depend on the sample.
        is_named = self._model.options.names_samples
        bodies = [_numbered(body, sample) if is_named else body for sample in samples]
        return [
            request_line(RequestId(self.run, task.index, sample, attempt), self.url, one)
            for sample, attempt, one in zip(samples, attempts, bodies, strict=True)
        ]

    def _body(self, task: Task) -> ParamsJson | ChatBodyJson:
        if self.api == "chat" and needs_responses(task.params):
            raise UsageError(
                f"task {task.index} needs the Responses API, and a batch has one API for all requests",
                hint="add --api responses",
            )
        return self._model.body("responses" if self.api == "responses" else "chat", task.params)


def _numbered(body: ParamsJson | ChatBodyJson, sample: int) -> ParamsJson | ChatBodyJson:
    named = body.copy()
    named["metadata"] = {"rollforge_sample": str(sample)}
    return named


def run_key(plan: CollectPlan) -> str:
    """Eight hexadecimal digits that identify this run's requests."""
    return hashlib.sha256(run_id(plan.files, plan.manifest).encode()).hexdigest()[:8]


class WrittenRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Files, requests and bytes that `--write-batch` wrote."""

    run: str
    files: list[str]
    requests: int
    bytes: int


def write_requests(
    writer: RequestWriter,
    schedule: Schedule,
    path: Path,
    *,
    most: int = MOST_REQUESTS,
    most_bytes: int = MOST_BYTES,
) -> tuple[list[Path], int, int]:
    """Write the schedule's requests; returns files, requests and bytes. Existing files are replaced atomically."""
    files: list[Path] = []
    requests = size = 0
    pending: list[bytes] = []
    pending_bytes = 0

    def flush() -> None:
        nonlocal pending, pending_bytes
        number = len(files) + 1
        target = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        with replacing(target) as file:
            file.writelines(pending)
        files.append(target)
        pending, pending_bytes = [], 0

    while (ask := schedule.next_ask(is_ending=False)) is not None:
        for line in writer.lines(ask.position, ask.samples):
            if pending and (len(pending) >= most or pending_bytes + len(line) > most_bytes):
                flush()
            pending.append(line)
            pending_bytes += len(line)
            requests += 1
            size += len(line)
    if pending or not files:
        flush()
    return files, requests, size
