"""Model calls of programs recorded through the proxy: session per attempt, file of calls, and the response merged from them."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
from collections.abc import Iterable
from collections.abc import Sequence as Listed
from pathlib import Path

from rollforge.agents.transcript import sum_usage
from rollforge.endpoint import Model
from rollforge.json_shapes import ResponseJson, UsageJson
from rollforge.proxy import CALLS_SHARE, ProgramSession, RecordedCall, RecordingProxy, Sequence
from rollforge.records import Task
from rollforge.store import DurableFile, RunFiles
from rollforge.store.atomic import make_directory


class Recording:
    """The proxy of one run and its file of calls; a session for every attempt at a rollout."""

    def __init__(self, model: Model, *, max_response_bytes: int) -> None:
        self.proxy = RecordingProxy(model)
        self._model = model
        self._max_bytes = CALLS_SHARE * max_response_bytes
        self._journal: DurableFile | None = None
        self._journal_lock = -1

    async def start(self, out: str, socket: Path | None = None) -> None:
        """Start the proxy and open the calls file of the run `out`; with an empty `out` no calls are written."""
        await self.proxy.start(socket)
        if out:
            path, self._journal_lock = claim_journal(RunFiles(out))
            self._journal = DurableFile(path)
            await self._journal.start()

    def session(self, task: Task, sample: int) -> ProgramSession:
        """A new session; its calls are answered once the proxy knows it."""
        return ProgramSession(
            model=self._model,
            journal=self._journal or _NoJournal(),
            imposed=task.params,
            task=task.index,
            sample=sample,
            max_bytes=self._max_bytes,
        )

    async def close(self) -> None:
        """Stop the proxy and close the file of calls."""
        await self.proxy.close()
        if self._journal is not None:
            journal, self._journal = self._journal, None
            try:
                await journal.close()
            finally:
                os.close(self._journal_lock)


def claim_journal(files: RunFiles) -> tuple[Path, int]:
    """The calls file that this process alone writes, with an open handle that locks it.

    Each worker process of a run has its own file: `rollouts_calls.jsonl`, `rollouts_calls_2.jsonl`, …
    """
    make_directory(files.calls.parent)
    for number in itertools.count(1):
        path = files.calls if number == 1 else files.calls.with_name(f"{files.stem}_calls_{number}.jsonl")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            continue
        return path, handle
    raise AssertionError("unreachable")


class _NoJournal:
    """Journal of an agent without a run on disk: discards its lines."""

    def append(self, line: bytes) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future


def merged_response(
    main: Sequence,
    calls: Listed[RecordedCall],
    others: Listed[RecordedCall] = (),
    *,
    numbers: UsageJson | None = None,
) -> ResponseJson:
    """The main sequence as one response: identity and status of its last turn, usage over every call of the rollout.

    Args:
        calls: The calls of the main sequence's session.
        others: Calls of the rollout's other sessions.
        numbers: Additional numbers for the usage.
    """
    by_number = {call.number: call for call in calls}
    last = by_number[main.calls[-1]].response or {}
    usages = [call.response.get("usage") for call in (*calls, *others) if call.response is not None]
    counted = sum_usage([usage if isinstance(usage, dict) else None for usage in usages]) or {}
    response: ResponseJson = {
        **last,
        "output": main.output,
        "usage": {**counted, "model_calls": len(usages), **(numbers or {})},
    }
    if main.prompt.get("tools"):
        response["tools"] = main.prompt["tools"]
    return response


def wasted_usages(calls: Iterable[RecordedCall]) -> tuple[object, ...]:
    """Token usage of paid answers that are in no sequence: discarded before a retry, or of failed calls."""
    usages: list[object] = []
    for call in calls:
        usages += call.wasted
        if call.failure is not None:
            usages += call.failure.wasted
            usages += [] if call.failure.usage is None else [call.failure.usage]
    return tuple(usages)


def sequence_numbers(sequences: Listed[Sequence]) -> UsageJson:
    """The numbers of the sequences that the index shows: their count, and how many turns of the main one drifted."""
    numbers: UsageJson = {"sequences": len(sequences)}
    if sequences[0].fidelity != "text":
        numbers["drift_turns"] = sequences[0].drift.turns if sequences[0].drift else 0
    return numbers
