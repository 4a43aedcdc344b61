"""Brings the index of a run up to date by several workers: one part of the run each. What reads the index afterwards runs as always.

The parts of a run of shards have indexes of their own, so workers never meet; a run in one file is one part.
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


class IndexOpening(msgspec.Struct, frozen=True, kw_only=True):
    """The first message: everything that has an index."""

    folder: str
    units: list[IndexUnit]


class IndexOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What to index now."""

    units: list[Assignment] = []
    is_last: bool = False


class IndexReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was indexed."""

    done: list[int] = []
    has_ended: bool = False


class IndexWorker:
    """Indexes the parts that it is given."""

    def __init__(self) -> None:
        self._units: list[IndexUnit] | None = None

    async def handle(self, message: Message) -> Message:
        if self._units is None:
            opening = decode_msgpack(message, IndexOpening)
            enter(opening.folder, [])
            self._units = opening.units
            return msgspec.msgpack.encode(Introduction.of_this_process())
        orders = decode_msgpack(message, IndexOrders)
        for one in orders.units:
            await asyncio.to_thread(update_index, self._units[one.unit])
        done = [one.unit for one in orders.units]
        return msgspec.msgpack.encode(IndexReport(done=done, has_ended=orders.is_last))

    async def close(self) -> None:
        """Nothing is left open between messages."""


class _Indexing:
    """The asker's side."""

    def __init__(self, units: list[IndexUnit]) -> None:
        self._units = units

    def opening(self, workers: int) -> Message:
        return msgspec.msgpack.encode(IndexOpening(folder=os.getcwd(), units=self._units))  # noqa: PTH109  (a text)

    def orders(self, name: str, units: list[Assignment], *, is_last: bool) -> Message:
        return msgspec.msgpack.encode(IndexOrders(units=units, is_last=is_last))

    def report(self, name: str, answer: Message) -> Progress:
        report = decode_msgpack(answer, IndexReport)
        return Progress(done=report.done, is_hungry=True, has_ended=report.has_ended)

    def lost(self, name: str, units: list[int], reason: str) -> None:
        """Its parts are indexed by others."""


def index_by_workers(runs: str | Path | Sequence[str | Path], *, on: str, workers: int | None) -> int:
    """Index all parts of the runs that are not up to date; returns how many parts there are."""
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
