"""Appends one line per step to a file: the default, and the file that other commands read.

A line is `{"step": 12, "at": 1763240000.1, "metrics": {"rollout/accuracy/mean": 0.83, …}}`; a non-finite value is null. Complete
lines are written and flushed, so the file of a killed run is readable. `jsonl=PATH` names the file. It is opened at the first
line, after `--fresh` has moved an old run aside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from rollforge.records import JsonObject, from_json, to_json
from rollforge.runtime.on_error import OnError
from rollforge.sinks.base import SinkOptions
from rollforge.store.atomic import make_directory, open_for_writing
from rollforge.store.reading import UNREADABLE, bounded_lines


class JsonlSink:
    """A file of metric lines."""

    is_remote = False

    def __init__(self, options: SinkOptions) -> None:
        default = options.metrics_file or options.directory / "metrics.jsonl"
        self.path = Path(options.target) if options.target else default
        self._is_named = bool(options.target)
        self._file: IO[bytes] | None = None

    def start(self) -> None:
        make_directory(self.path.parent)
        is_new = not self.path.exists()
        self._open().close()
        if is_new:
            self.path.unlink()

    def _open(self) -> IO[bytes]:
        if self._is_named:  # perhaps /dev/stdout, a link
            return self.path.open("ab", buffering=0)
        return os.fdopen(open_for_writing(self.path, os.O_WRONLY | os.O_APPEND), "ab", buffering=0)

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        if self._file is None:
            self._file = self._open()
            if self._file.tell() and not _ends_whole(self.path):
                self._file.write(b"\n")  # a torn line of a killed run stays one bad line and spoils no other
        with OnError(self.close):  # the next line opens the file again, and sees what is torn
            line = memoryview(to_json({"step": step, "at": at, "metrics": metrics}) + b"\n")
            while line:  # a full disk takes a part of the line first, and refuses the rest
                line = line[self._file.write(line) :]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def read_metrics(path: str | Path) -> Iterator[JsonObject]:
    """The lines of a metrics file, without torn ones."""
    with Path(path).open("rb") as file:
        for line in bounded_lines(file):
            try:
                yield from_json(line)
            except UNREADABLE:
                continue
