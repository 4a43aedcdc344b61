"""This module splits a file into byte ranges and scans several at once, or one after another when it is small.

The compiled reader lets go of the interpreter's lock, so that threads are enough; the Python one needs child processes. Results
come back in the order of the file, whoever finishes first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from rollforge.errors import RollforgeError
from rollforge.index import fast, loading
from rollforge.index.ahead import mapped
from rollforge.index.fresh import FreshParts
from rollforge.index.kinds import Kind
from rollforge.index.readers import readers
from rollforge.index.scan import RangeScan, read_range, scan_range
from rollforge.index.scanned import Scanned
from rollforge.index.worker import Order

if TYPE_CHECKING:
    import subprocess

RANGE, LEAST = 144 << 20, 24 << 20
"""Bytes per range, at most and at least: enough that parts are not tiny, few enough that workers end at about the same time."""

STEP_BACK = 3
"""How nice a reader is to a thread that loads libraries: beside two readers on two cores, that thread has one of them to itself."""

MOST = 64
"""Workers, however many are asked for: each reads ranges of its own, and a thousand would make a thousand small parts."""


def scan_parallel(
    path: Path,
    kind: Kind,
    start: int,
    end: int | None,
    stem: Path,
    workers: int | None,
    fresh: FreshParts,
) -> Iterator[Scanned]:
    """What each range held, in order, in parts named `stem` + numbers; `end` None means a compressed file, which one must read.

    The parts are added to `fresh`, but for those that child processes make and write.
    """
    count = 1 if end is None else min(readers(end - start, workers), MOST)
    if end is None or end - start <= RANGE:
        if end is None or end > start:
            yield scan_range(path, kind, start, end, stem, fresh)
        orders = []
    else:
        bounds = pairwise(_bounds(start, end, count))
        orders = [Order(str(path), kind, *ends, f"{stem}-{number}") for number, ends in enumerate(bounds)]
    count = min(len(orders), count)
    if count > 1 and not fast.reads(kind):
        yield from _scan_in_children(orders, count)
    else:
        for scan in mapped(lambda order: _read_beside_loading(order, fresh), orders, count):
            yield scan.finished()


def _bounds(start: int, end: int, count: int) -> list[int]:
    """Where ranges begin and end; for several workers they become smaller towards the end, so that all are done at about one time."""
    places = [start]
    while (left := end - places[-1]) > 0:
        size = RANGE if count == 1 else min(RANGE, max(left // (2 * count), LEAST))
        places.append(places[-1] + (size if left - size >= LEAST else left))
    return places


def _read_beside_loading(order: Order, fresh: FreshParts) -> RangeScan:
    """Read a range, second to a thread that loads the libraries that parts are made with."""

    def read() -> RangeScan:
        return read_range(Path(order.path), order.kind, order.start, order.end, Path(order.stem), fresh)

    if not loading.is_under_way() or sys.platform != "linux":
        return read()
    thread = threading.get_native_id()
    nice = os.getpriority(os.PRIO_PROCESS, thread)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, nice + STEP_BACK)
    try:
        return read()
    finally:
        with suppress(OSError):  # not everybody may take it back; then it stays so until the file is read
            os.setpriority(os.PRIO_PROCESS, thread, nice)


def _scan_in_children(orders: list[Order], count: int) -> Iterator[Scanned]:
    from concurrent.futures import ThreadPoolExecutor

    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    children = [_start_child() for _ in range(count)]
    for child in children:
        idle.put(child)

    def scan(order: Order) -> Scanned:
        child = idle.get()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(msgspec.json.encode(order) + b"\n")
        child.stdin.flush()
        answer = child.stdout.readline()
        if not answer:
            raise RollforgeError(
                f"{order.path}: a worker ended with code {child.wait()} while reading bytes {order.start}–{order.end}",
                hint="see the message above; one process alone: --workers 1",
            )
        idle.put(child)
        return msgspec.json.decode(answer, type=Scanned)

    try:
        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(scan, orders)
    finally:
        for child in children:
            child.kill()
            child.communicate()


def _start_child() -> subprocess.Popen[bytes]:
    import subprocess

    return subprocess.Popen(
        [sys.executable, "-c", "from rollforge.index.worker import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
