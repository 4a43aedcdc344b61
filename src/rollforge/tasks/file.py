"""Random access to `rollouts_tasks.jsonl`. Memory holds byte offsets and ids, not tasks."""

from __future__ import annotations

import contextlib
import os
from array import array
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.errors import DataError
from rollforge.records import PARAMS_KEY, TASK_KEY, Index, Task, from_json
from rollforge.runtime.typed_decoding import json_decoder
from rollforge.store.reading import UNREADABLE, bounded_lines, reason_of

_AGAIN = "run the same collect command again: it makes the file again from its input"


class TaskFile:
    """`rollouts_tasks.jsonl` with random access: per task eight bytes for its offset, eight for its id."""

    def __init__(
        self, path: Path, offsets: NDArray[np.int64], ids: NDArray[np.int64], *, end: int | None = None
    ) -> None:
        """Open the file.

        Args:
            end: end offset of the last of these tasks; by default the end of the file.
        """
        self.path = path
        self.ids = ids
        self._file: BinaryIO = path.open("rb")
        self._offsets = np.append(offsets, self._file.seek(0, os.SEEK_END) if end is None else end)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, position: int) -> Task:
        """The task at a position, parsed.

        Raises:
            DataError: its line is damaged.
        """
        start, end = self._offsets[position : position + 2].tolist()
        # The whole line at its place: tasks may be asked for in any order, and a buffer would read what is not wanted.
        try:
            value = from_json(os.pread(self._file.fileno(), end - start, start))
        except UNREADABLE as error:
            raise DataError(f"{self.path}:{position + 1}: {reason_of(error)}", hint=_AGAIN) from error
        if not isinstance(value, dict) or not isinstance(value.get(PARAMS_KEY), dict):
            raise DataError(f"{self.path}:{position + 1}: has no object {PARAMS_KEY}", hint=_AGAIN)
        return Task(value, int(self.ids[position]))

    def part(self, first: int, end: int) -> TaskFile:
        """The tasks at positions [first, end) as positions from 0; shares the open file."""
        some = object.__new__(TaskFile)
        some.path, some.ids, some._file = self.path, self.ids[first:end], self._file
        some._offsets = self._offsets[first : end + 1]
        return some

    def close(self) -> None:
        self._file.close()

    @classmethod
    def open(cls, path: Path, *, count: int) -> TaskFile:
        """Scan an existing tasks file with at least `count` tasks for offsets and ids."""
        decode = json_decoder(_TaskKey).decode
        offsets, ids, offset = array("q"), array("q"), 0
        with path.open("rb", buffering=4 << 20) as file, contextlib.suppress(*UNREADABLE):
            for line in bounded_lines(file):
                ids.append(decode(line).task)
                offsets.append(offset)
                offset += len(line)
        if len(ids) < count:
            raise DataError(
                f"{path} is damaged: {len(ids):,} of {count:,} tasks can be read",
                hint=_AGAIN,
            )
        return cls(path, np.frombuffer(offsets, np.int64), np.frombuffer(ids, np.int64), end=offset)


class _TaskKey(msgspec.Struct):
    task: Index = msgspec.field(name=TASK_KEY)
