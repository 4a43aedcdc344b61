"""The ledger of owed rollouts: (tasks × samples) − finished, by key, whatever order the lines are in.

One byte per rollout: a finished million costs a megabyte. Reads only the keys of a run's rows.
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
    """The fields of a row that resume needs; the decoder skips the rest."""

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
        """Finished rollouts read from disk whose reward is null."""
        self.fresh_unjudged = 0
        """Rollouts finished since without a reward."""
        self.unreadable_lines = 0
        """Lines that are no rollout; what they held is owed again."""
        self.repeated = 0
        """Lines whose rollout an earlier line already holds."""
        self.foreign = 0
        """Rows of tasks or samples outside this run."""
        self._states = np.zeros(len(task_ids) * samples, dtype=np.uint8)
        self._bytes = memoryview(self._states)  # type: ignore[arg-type]  # numpy arrays are buffers; single bytes are quicker here
        self._sorted_positions: NDArray[np.int64] | None = None
        if len(task_ids) and not np.array_equal(task_ids, np.arange(len(task_ids))):
            self._sorted_positions = np.argsort(task_ids, kind="stable")

    @property
    def expected(self) -> int:
        return len(self._states)

    def position(self, task_id: int) -> int | None:
        """The task's position in the task file; None for a task that is not in it."""
        if self._sorted_positions is None:
            return task_id if 0 <= task_id < len(self.task_ids) else None
        rank = int(np.searchsorted(self.task_ids, task_id, sorter=self._sorted_positions))
        if rank >= len(self._sorted_positions):
            return None
        position = int(self._sorted_positions[rank])
        return position if self.task_ids[position] == task_id else None

    def read(self, rollouts: Path | Iterable[bytes], failures: Path | Iterable[bytes]) -> None:
        """Mark finished and failed rollouts from a run's files, or from the lines of a shard."""
        self._read_finished(rollouts)
        for key in self._keys(failures):
            slot = self._slot(key.task, key.rollout)
            # A verifier's failure belongs to a rollout that was generated: it is not owed again.
            if slot is not None and key.failure != "verifier":
                self._count_failure(slot, is_terminal=bool(key.is_terminal))

    def failed_by_class(self, failures: Path | Iterable[bytes]) -> dict[str, int]:
        """Rollouts that are not finished but have failed, by the class of their last failure."""
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
        """Mark the finished rollouts. Dispatch waits for this loop, which may see a million rows: it uses locals only."""
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
        """The rollout is on disk."""
        slot = position * self.samples + sample
        if self._bytes[slot] != _DONE:
            self._bytes[slot] = _DONE
            self.finished += 1
            self.fresh_unjudged += is_unjudged

    def fail(self, position: int, sample: int, *, is_terminal: bool) -> None:
        """One attempt failed."""
        self._count_failure(position * self.samples + sample, is_terminal=is_terminal)

    def _count_failure(self, slot: int, *, is_terminal: bool) -> None:
        state = self._bytes[slot]
        if state < _TERMINAL:
            self._bytes[slot] = _TERMINAL if is_terminal else min(state + 1, _TERMINAL - 1)

    def attempts(self, position: int, sample: int) -> int:
        """How often this rollout has failed so far."""
        state = self._bytes[position * self.samples + sample]
        return 0 if state >= _TERMINAL else state

    def owed_samples(self, position: int, max_attempts: int) -> list[int]:
        """Which samples of one task are still to be made."""
        start = position * self.samples
        states = self._bytes[start : start + self.samples]
        return [sample for sample, state in enumerate(states) if state < max_attempts]

    def owed(self, max_attempts: int) -> int:
        """How many rollouts are still to be made."""
        return int(np.count_nonzero(self._states < min(max_attempts, _TERMINAL)))

    def given_up(self, max_attempts: int) -> int:
        """How many rollouts failed for good: terminal, or out of attempts."""
        return int(np.count_nonzero((self._states >= min(max_attempts, _TERMINAL)) & (self._states != _DONE)))

    def counts_by_task(self, max_attempts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Per position how many rollouts are still to be made, and how many failed for good."""
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
