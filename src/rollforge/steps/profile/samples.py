"""This module finds what stands beside the statistics of a task in the profile: its row as sent, and the histogram of its rewards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Raw

from rollforge import stats
from rollforge.index import Index
from rollforge.index.arrays import ints
from rollforge.index.grouped import ByTask
from rollforge.records import ROLLOUT_KEY, TASK_KEY
from rollforge.stats import Ints
from rollforge.steps.profile.weave import NO_NUMBER, Column, Piece, Pieces, column
from rollforge.store.reading import UNREADABLE

_split = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode


class Histograms:
    """The reward histogram of each task, over the same edges for all of them."""

    def __init__(self, rows: ByTask) -> None:
        reward = rows.one("reward")
        edges = stats.histogram(reward).edges
        self._before = b'"histogram/reward":{"edges":' + _encode(edges) + b',"counts":['
        self._tasks = rows.tasks
        bins = max(len(edges) - 1, 1)
        self._counts = np.zeros((len(rows.tasks), bins), dtype=np.min_scalar_type(rows.sizes.max(initial=0)))
        known = ~np.isnan(reward)
        if edges and known.any():
            place = np.clip(np.searchsorted(edges, reward, side="right") - 1, 0, bins - 1)
            for number in range(bins):
                is_here = known & (place == number)
                self._counts[:, number] = np.add.reduceat(is_here, rows.starts, dtype=self._counts.dtype)

    def columns(self, tasks: Ints) -> Iterator[Column]:
        """Those of some tasks, a column per bin; none for a task without a judged rollout."""
        if not len(self._tasks):
            return
        place = np.minimum(np.searchsorted(self._tasks, tasks), len(self._tasks) - 1)
        counts = self._counts[place].astype(np.int64)
        counts[(self._tasks[place] != tasks) | ~counts.any(axis=1)] = NO_NUMBER
        between = [b""] * (counts.shape[1] - 1)
        yield from map(Column, [self._before, *between], np.ascontiguousarray(counts.T), [*between, b"]}"])


class Samples:
    """For each task the row as sent, without its indices; from the first rollout (that `where` keeps) when no tasks file has it."""

    def __init__(self, index: Index, where: str | None = None) -> None:
        self._index = index
        self._where = where
        self._files: dict[Path, int] = {}
        self._held = ExitStack()

    def __enter__(self) -> Samples:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._held.__exit__(*failure)

    def column(self, tasks: Ints) -> Column:
        """Those of some tasks, which ascend; what it says stands in files can be read until this is left."""
        wanted: list[int] = tasks.tolist()
        given = {task: _without_indices(line) for task, line in self._index.raw_task_rows(wanted)}
        if not given:
            found = self._index.first_rows(wanted, self._where)
            if found.num_rows == len(wanted) and (pieces := self._pieces(found)):
                return Column(b'"sample":{', pieces, b"}")
        given |= self._from_rollouts([task for task in wanted if task not in given])
        return column("sample", [given.get(task) for task in wanted])

    def _pieces(self, found: pa.Table) -> Pieces | None:
        """Where the prompt and the agent of each task's first rollout stand, when that is known."""
        rows = ints(found.column("row"))[np.argsort(ints(found.column("task")))]
        places = self._index.prompt_places(rows)
        if places is None:
            return None
        if places.path not in self._files:
            file = self._held.enter_context(places.path.open("rb", buffering=0))
            self._files[places.path] = file.fileno()
        prompts = Piece(b'"responses_create_params":', places.begins.tobytes(), places.sizes.tobytes())
        agents = Piece(b',"agent_ref":', places.agent_begins.tobytes(), places.agent_sizes.tobytes())
        return Pieces(self._files[places.path], [prompts, agents])

    def _from_rollouts(self, tasks: list[int]) -> dict[int, bytes]:
        """The prompt (and agent) of each task's first rollout: all that a rollout row still says of its task."""
        found = self._index.first_rows(tasks, self._where) if tasks else pa.table({"task": [], "row": []})
        samples = {}
        lines = self._index.read(found.column("row").to_pylist())
        for task, line in zip(found.column("task").to_pylist(), lines, strict=True):
            with suppress(*UNREADABLE):
                samples[task] = _encode(_sample(line))
        return samples


def _without_indices(line: bytes) -> bytes:
    try:
        row = _split(line)
    except UNREADABLE:
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
