"""This module splits a file into byte ranges and scans several at once, or one after another when it is small.

The compiled reader lets go of the interpreter's lock, so that threads are enough; the Python one needs child processes. Results
come back in the order of the file, whoever finishes first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from rollforge.errors import RollforgeError
from rollforge.index import fast, ranges
from rollforge.index.ahead import mapped
from rollforge.index.fresh import FreshParts
from rollforge.index.kinds import Kind
from rollforge.index.scan import RangeScan, read_range, scan_range
from rollforge.index.scanned import Scanned
from rollforge.index.worker import Order

if TYPE_CHECKING:
    import subprocess


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
    count = 1 if end is None else ranges.readers(end - start, workers)
    if end is None or end - start <= ranges.RANGE:
        if end is None or end > start:
            yield scan_range(path, kind, start, end, stem, fresh)
        orders = []
    else:
        bounds = pairwise(ranges.bounds(start, end, count))
        orders = [Order(str(path), kind, *ends, f"{stem}-{number}") for number, ends in enumerate(bounds)]
    count = min(len(orders), count)
    if count > 1 and not fast.reads(kind):
        yield from _scan_in_children(orders, count)
    else:
        # All may be read ahead: what waits for its turn is small.
        for scan in mapped(lambda order: _read(order, fresh), orders, count, ahead=len(orders)):
            yield scan.finished()


def _read(order: Order, fresh: FreshParts) -> RangeScan:
    return read_range(Path(order.path), order.kind, order.start, order.end, Path(order.stem), fresh)


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
