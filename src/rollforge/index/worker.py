"""This module is the process that scans ranges: one JSON order per line on stdin, one JSON answer per line on stdout.

A plain child process is used, not `multiprocessing`: a user's script needs no `__main__` guard, and nothing is inherited.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from rollforge.index.kinds import Kind
from rollforge.index.scan import scan_range


class Order(msgspec.Struct):
    """A range to scan."""

    path: str
    kind: Kind
    start: int
    end: int
    stem: str


def main() -> None:
    """Serve orders until stdin closes."""
    decode = msgspec.json.Decoder(Order).decode
    for line in sys.stdin.buffer:
        order = decode(line)
        scanned = scan_range(Path(order.path), order.kind, order.start, order.end, Path(order.stem))
        sys.stdout.buffer.write(msgspec.json.encode(scanned) + b"\n")
        sys.stdout.buffer.flush()
