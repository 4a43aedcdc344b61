"""Updates a run's index with several workers, one part of the run each. Later readers of the index are unaffected.

The parts of a sharded run have separate indexes, so workers do not interfere; a single-file run is one part.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollforge.executors.base import Introduction, Message, make_executor
from rollforge.executors.foreman import Assignment, Foreman, Progress
from rollforge.index import IndexUnit, index_units, update_index
from rollforge.runtime.event_loop import run_async
from rollforge.runtime.typed_decoding import decode_msgpack
from rollforge.store.shipping import address_of
from rollforge.verifiers.running.sources import enter

logger = logging.getLogger(__name__)

TARGET = "rollforge.steps.indexing:IndexWorker"
ANSWER_EVERY_S = 2.0
"""A worker that is busy answers after this time."""


class IndexOpening(msgspec.Struct, frozen=True, kw_only=True):
    """The first message: all indexable parts."""

    folder: str
    units: list[IndexUnit]


class IndexOrders(msgspec.Struct, frozen=True, kw_only=True):
    """The part to index next."""

    units: list[Assignment] = []
    is_last: bool = False


class IndexReport(msgspec.Struct, frozen=True, kw_only=True):
    """Report on an indexed part."""

    done: list[int] = []
    is_hungry: bool = True
    has_ended: bool = False


class IndexWorker:
    """Indexes the parts that it is assigned; answers meanwhile, since a large part takes minutes."""

    def __init__(self) -> None:
        self._units: list[IndexUnit] | None = None
        self._unit_by_task: dict[asyncio.Task[None], int] = {}

    async def handle(self, message: Message) -> Message:
        if self._units is None:
            opening = decode_msgpack(message, IndexOpening)
            enter(opening.folder, [])
            self._units = opening.units
            return msgspec.msgpack.encode(Introduction.of_this_process())
        orders = decode_msgpack(message, IndexOrders)
        for one in orders.units:
            task = asyncio.create_task(asyncio.to_thread(update_index, self._units[one.unit]))
            self._unit_by_task[task] = one.unit
        done = await self._finished()
        report = IndexReport(done=done, is_hungry=not self._unit_by_task, has_ended=orders.is_last)
        return msgspec.msgpack.encode(report)

    async def _finished(self) -> list[int]:
        """Parts that are finished within a moment; raises what went wrong with one."""
        if not self._unit_by_task:
            return []
        finished, _ = await asyncio.wait(
            self._unit_by_task, timeout=ANSWER_EVERY_S, return_when=asyncio.FIRST_COMPLETED
        )
        done = [self._unit_by_task.pop(task) for task in finished]
        for task in finished:
            task.result()
        return done

    async def close(self) -> None:
        """Do nothing: an index that is half built is built anew."""


class _Indexing:
    """The driver's side of distributed indexing."""

    def __init__(self, units: list[IndexUnit]) -> None:
        self._units = units

    def opening(self, workers: int) -> Message:
        return msgspec.msgpack.encode(IndexOpening(folder=os.getcwd(), units=self._units))  # noqa: PTH109  (a text)

    def orders(self, name: str, units: list[Assignment], *, is_last: bool) -> Message:
        return msgspec.msgpack.encode(IndexOrders(units=units, is_last=is_last))

    def report(self, name: str, answer: Message) -> Progress:
        report = decode_msgpack(answer, IndexReport)
        return Progress(done=report.done, is_hungry=report.is_hungry, has_ended=report.has_ended)

    def lost(self, name: str, units: list[int], reason: str) -> None:
        """Do nothing: other workers index the lost worker's parts."""


def index_by_workers(runs: str | Path | Sequence[str | Path], *, on: str, workers: int | None) -> int:
    """Index all outdated parts of the runs; returns the number of parts."""
    paths = [runs] if isinstance(runs, str | Path) else [*runs]
    if any(address_of(run) is not None for run in paths):
        logger.warning("a run in a bucket is indexed where its copy is, on this machine")
        return 0
    units = index_units(runs)
    foreman = Foreman(
        make_executor(on, workers),
        TARGET,
        range(len(units)),
        _Indexing(units),
        Introduction.of_this_process(),
    )
    run_async(foreman.run())
    return len(units)
