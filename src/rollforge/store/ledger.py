"""The ledger of owed rollouts: (tasks × samples) − finished, by key, independent of line order.

One byte per rollout: a finished million costs a megabyte. Only the keys of rows are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.records import FAILURE_KEY, ROLLOUT_KEY, TASK_KEY, TERMINAL_KEY, Index
from rollforge.runtime.typed_decoding import json_decoder
from rollforge.store.reading import UNREADABLE, lines_of

_DONE = 255
_TERMINAL = 254
_NULL = msgspec.Raw(b"null")


class _Key(msgspec.Struct):
    """The fields of a row that resuming needs; the decoder skips others."""

    task: Index = msgspec.field(name=TASK_KEY)
    rollout: Index = msgspec.field(name=ROLLOUT_KEY)
    failure: str | None = msgspec.field(name=FAILURE_KEY, default=None)
    is_terminal: bool | None = msgspec.field(name=TERMINAL_KEY, default=None)
    reward: msgspec.Raw = _NULL


class Ledger:
    """The state of every rollout of a run: owed (with its count of failed attempts) or finished."""

    def __init__(self, task_ids: NDArray[np.int64], samples: int) -> None:
        self.task_ids = task_ids
        self.samples = samples
        self.finished = 0
        self.unjudged = 0
        """Finished rollouts on disk whose reward is null."""
        self.fresh_unjudged = 0
        """Rollouts finished in this session without a reward."""
        self.unreadable_lines = 0
        """Invalid lines, whose rollouts are owed again."""
        self.repeated = 0
        """Lines whose rollout is already in an earlier line."""
        self.foreign = 0
        """Rows of tasks or samples that are not part of this run."""
        self._states = np.zeros(len(task_ids) * samples, dtype=np.uint8)
        self._bytes = memoryview(self._states)  # type: ignore[arg-type]  # numpy arrays are buffers; single bytes are quicker here
        self._sorted_positions: NDArray[np.int64] | None = None
        if len(task_ids) and not np.array_equal(task_ids, np.arange(len(task_ids))):
            self._sorted_positions = np.argsort(task_ids, kind="stable")

    @property
    def expected(self) -> int:
        """Number of rollouts of the whole run."""
        return len(self._states)

    def position(self, task_id: int) -> int | None:
        """Position of the task in the task file; None if it is not in it."""
        if self._sorted_positions is None:
            return task_id if 0 <= task_id < len(self.task_ids) else None
        rank = int(np.searchsorted(self.task_ids, task_id, sorter=self._sorted_positions))
        if rank >= len(self._sorted_positions):
            return None
        position = int(self._sorted_positions[rank])
        return position if self.task_ids[position] == task_id else None

    def read(self, rollouts: Path | Iterable[bytes], failures: Path | Iterable[bytes]) -> None:
        """Mark finished and failed rollouts from a run's files, or from a shard's lines."""
        self._read_finished(rollouts)
        for key in self._keys(failures):
            slot = self._slot(key.task, key.rollout)
            # A verifier's failure belongs to a rollout that was generated: it is not owed again.
            if slot is not None and key.failure != "verifier":
                self._count_failure(slot, is_terminal=bool(key.is_terminal))

    def failed_by_class(self, failures: Path | Iterable[bytes]) -> dict[str, int]:
        """Number of unfinished rollouts with failures, by class of the last failure."""
        class_by_slot: dict[int, str] = {}
        for key in self._keys(failures):
            slot = self._slot(key.task, key.rollout)
            if slot is not None and self._states[slot] != _DONE and key.failure:
                class_by_slot[slot] = key.failure
        return dict(Counter(class_by_slot.values()))

    def _keys(self, lines: Path | Iterable[bytes]) -> Iterator[_Key]:
        decode = json_decoder(_Key).decode
        for line in lines_of(lines) if isinstance(lines, Path) else lines:
            try:
                yield decode(line)
            except UNREADABLE:
                self.unreadable_lines += bool(line.strip())

    def _read_finished(self, path: Path | Iterable[bytes]) -> None:
        """Mark finished rollouts. Dispatch waits for this loop over up to millions of rows, so it uses only local variables."""
        states = self._bytes
        slot_of = self._slot
        finished = unjudged = 0
        for key in self._keys(path):
            slot = slot_of(key.task, key.rollout)
            if slot is None:
                self.foreign += 1
            elif states[slot] == _DONE:
                self.repeated += 1
            else:
                states[slot] = _DONE
                finished += 1
                unjudged += key.reward == _NULL
        self.finished += finished
        self.unjudged += unjudged

    def finish(self, position: int, sample: int, *, is_unjudged: bool = False) -> None:
        """Mark a rollout as finished, after it is on disk."""
        slot = position * self.samples + sample
        if self._bytes[slot] != _DONE:
            self._bytes[slot] = _DONE
            self.finished += 1
            self.fresh_unjudged += is_unjudged

    def fail(self, position: int, sample: int, *, is_terminal: bool) -> None:
        """Count a failed attempt."""
        self._count_failure(position * self.samples + sample, is_terminal=is_terminal)

    def _count_failure(self, slot: int, *, is_terminal: bool) -> None:
        state = self._bytes[slot]
        if state < _TERMINAL:
            self._bytes[slot] = _TERMINAL if is_terminal else min(state + 1, _TERMINAL - 1)

    def attempts(self, position: int, sample: int) -> int:
        """Number of failed attempts of this rollout."""
        state = self._bytes[position * self.samples + sample]
        return 0 if state >= _TERMINAL else state

    def owed_samples(self, position: int, max_attempts: int) -> list[int]:
        """Samples of one task that are still owed."""
        start = position * self.samples
        states = self._bytes[start : start + self.samples]
        last = min(max_attempts, _TERMINAL)
        return [sample for sample, state in enumerate(states) if state < last]

    def owed(self, max_attempts: int) -> int:
        """Number of owed rollouts."""
        return int(np.count_nonzero(self._states < min(max_attempts, _TERMINAL)))

    def given_up(self, max_attempts: int) -> int:
        """Number of finally failed rollouts: terminal, or out of attempts."""
        return int(np.count_nonzero((self._states >= min(max_attempts, _TERMINAL)) & (self._states != _DONE)))

    def counts_by_task(self, max_attempts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Per position, the numbers of owed and of finally failed rollouts."""
        states = self._states.reshape(-1, self.samples)
        last = min(max_attempts, _TERMINAL)
        owed = np.count_nonzero(states < last, axis=1)
        given_up = np.count_nonzero((states >= last) & (states != _DONE), axis=1)
        return owed, given_up

    def _slot(self, task_id: int, rollout: int) -> int | None:
        position = self.position(task_id)
        if position is None or not 0 <= rollout < self.samples:
            return None
        return position * self.samples + rollout
