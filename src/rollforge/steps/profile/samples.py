"""This module finds what stands beside the statistics of a task in the profile: its row as sent, and the histogram of its rewards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import IO

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from rollforge import stats
from rollforge.index import Index
from rollforge.index.arrays import ints
from rollforge.index.grouped import ByTask
from rollforge.records import ROLLOUT_KEY, TASK_KEY
from rollforge.steps.profile.weave import Column, Piece, Pieces, column

_split = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


class Histograms:
    """The reward histogram of each task, over the same edges for all of them."""

    def __init__(self, rows: ByTask) -> None:
        reward = rows.one("reward")
        edges = stats.histogram(reward).edges
        self._before = b'"histogram/reward":{"edges":' + _encode(edges) + b',"counts":'
        self._tasks = rows.tasks
        bins = max(len(edges) - 1, 1)
        self._counts = np.zeros((len(rows.tasks), bins), dtype=np.min_scalar_type(rows.sizes.max(initial=0)))
        known = ~np.isnan(reward)
        if edges and known.any():
            place = np.clip(np.searchsorted(edges, reward, side="right") - 1, 0, bins - 1)
            for number in range(bins):
                is_here = known & (place == number)
                self._counts[:, number] = np.add.reduceat(is_here, rows.starts, dtype=self._counts.dtype)

    def column(self, tasks: Sequence[int]) -> Column:
        """Those of some tasks; none for one without a judged rollout."""
        counts = np.zeros((len(tasks), self._counts.shape[1]), dtype=self._counts.dtype)
        if len(self._tasks):
            wanted = np.asarray(tasks, dtype=np.int64)
            place = np.minimum(np.searchsorted(self._tasks, wanted), len(self._tasks) - 1)
            counts = np.where((self._tasks[place] == wanted)[:, None], self._counts[place], 0)
        told = [one if any(one) else None for one in counts.tolist()]
        return Column(self._before, _encode(told), b"}")


class Samples:
    """For each task the row as sent, without its indices; from the first rollout (that `where` keeps) when no tasks file has it."""

    def __init__(self, index: Index, where: str | None = None) -> None:
        self._index = index
        self._where = where
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def column(self, tasks: list[int]) -> Column:
        """Those of some tasks, which ascend."""
        given = {task: _without_indices(line) for task, line in self._index.raw_task_rows(tasks)}
        if not given:
            found = self._index.first_rows(tasks, self._where)
            if found.num_rows == len(tasks) and (pieces := self._pieces(found)):
                return Column(b'"sample":{', pieces, b"}")
        given |= self._from_rollouts([task for task in tasks if task not in given])
        return column("sample", [given.get(task) for task in tasks])

    def _pieces(self, found: pa.Table) -> Pieces | None:
        """Where the prompt and the agent of each task's first rollout stand, when that is known."""
        rows = ints(found.column("row"))[np.argsort(ints(found.column("task")))]
        places = self._index.prompt_places(rows)
        if places is None:
            return None
        if self._file is None or self._file.name != places.path:
            self.__exit__()
            self._file = places.path.open("rb", buffering=0)
        prompts = Piece(b'"responses_create_params":', places.begins.tobytes(), places.sizes.tobytes())
        agents = Piece(b',"agent_ref":', places.agent_begins.tobytes(), places.agent_sizes.tobytes())
        return Pieces(self._file.fileno(), [prompts, agents])

    def _from_rollouts(self, tasks: list[int]) -> dict[int, bytes]:
        """The prompt (and agent) of each task's first rollout: all that a rollout row still says of its task."""
        found = self._index.first_rows(tasks, self._where) if tasks else pa.table({"task": [], "row": []})
        samples = {}
        lines = self._index.read(found.column("row").to_pylist())
        for task, line in zip(found.column("task").to_pylist(), lines, strict=True):
            with suppress(msgspec.DecodeError):
                samples[task] = _encode(_sample(line))
        return samples


def _without_indices(line: bytes) -> bytes:
    try:
        row = _split(line)
    except msgspec.DecodeError:
        return _odd_without_indices(line)
    row.pop(TASK_KEY, None)
    row.pop(ROLLOUT_KEY, None)
    return _encode(row)


def _odd_without_indices(line: bytes) -> bytes:
    """The same for a row with NaN, which becomes null, or with half a surrogate pair, which stays the escape it is."""
    import json

    row = json.loads(line, parse_constant=lambda _: None)
    return json.dumps(
        {key: value for key, value in row.items() if key not in (TASK_KEY, ROLLOUT_KEY)}
    ).encode()


class _Sample(msgspec.Struct, omit_defaults=True):
    """What a rollout row still says of its task, unread."""

    responses_create_params: Raw | msgspec.UnsetType = msgspec.UNSET
    messages: Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: Raw | msgspec.UnsetType = msgspec.UNSET
    agent_ref: Raw | msgspec.UnsetType = msgspec.UNSET


_sample = msgspec.json.Decoder(_Sample).decode
