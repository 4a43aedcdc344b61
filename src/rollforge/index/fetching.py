"""This module brings lines of the text back by their row numbers, or tells where the pieces of them stand that a profile shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollforge.errors import UsageError
from rollforge.index import parts
from rollforge.index.kinds import Kind
from rollforge.index.lines import is_compressed, read_spans
from rollforge.index.tables import Sources
from rollforge.stats import Ints

AT_ONCE = 65_536
"""Rows whose places are turned into Python's numbers together."""


class PromptPlaces(NamedTuple):
    """Where some rollouts' `responses_create_params` and `agent_ref` stand in a file; size 0 for no agent."""

    path: Path
    begins: Ints
    sizes: Ints
    agent_begins: Ints
    agent_sizes: Ints


class Fetcher:
    """The lines behind the rows of some files; where they stand is read from the index when it is first asked for."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._spans_by_kind: dict[Kind, tuple[Ints, Ints]] = {}
        self._pieces: tuple[np.ndarray, np.ndarray] | None = None

    def lines(self, kind: Kind, rows: Ints) -> Iterator[bytes]:
        """The lines of these rows, in the order asked; neighbouring ones are read together."""
        for path, some in self._by_file(kind, rows):
            offsets, lengths = self._spans(kind, some)
            yield from read_spans(path, list(zip(offsets.tolist(), lengths.tolist(), strict=True)))

    def prompt_places(self, rows: Ints) -> PromptPlaces | None:
        """Where the prompts of these rollouts stand; None when not all are known to, or not in one file that can be read in leaps."""
        files = list(self._by_file("rollouts", rows))
        if len(files) != 1 or is_compressed(files[0][0]):
            return None
        if self._pieces is None:
            self._pieces = parts.pieces(self._sources.by_kind["rollouts"])
        offsets, places = self._pieces
        _check(rows, len(offsets))
        offset, (at, size, agent_at, agent_size) = offsets[rows], places[:, rows].astype(np.int64)
        if not size.all():
            return None
        return PromptPlaces(files[0][0], offset + at, size, offset + agent_at, agent_size)

    def _by_file(self, kind: Kind, rows: Ints) -> Iterator[tuple[Path, Ints]]:
        """Rows that follow each other and stand in one file, in the order asked."""
        sources = self._sources.by_kind[kind]
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            owner = np.searchsorted([source.first_row for source in sources], some, side="right") - 1
            cuts = np.flatnonzero(np.diff(owner)) + 1
            for piece in np.split(np.arange(len(some)), cuts):
                yield sources[int(owner[piece[0]])].path, some[piece]

    def _spans(self, kind: Kind, rows: Ints) -> tuple[Ints, Ints]:
        if kind not in self._spans_by_kind:
            self._spans_by_kind[kind] = parts.spans(self._sources.by_kind[kind])
        offset, length = self._spans_by_kind[kind]
        _check(rows, len(offset))
        return offset[rows], length[rows]


def _check(rows: Ints, count: int) -> None:
    missing = int(((rows < 0) | (rows >= count)).sum())
    if missing:
        raise UsageError(f"{missing} of the rows asked for are not in the index")
