"""Read access of the viewer to a prepared dataset: rows, the rollouts behind them, and the fates of their siblings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct, field

from rollforge.errors import DataError
from rollforge.index import ints
from rollforge.steps.report import dataset_turns, jsonl_rows, parquet_rows
from rollforge.store import read_json
from rollforge.store.lineage_table import lineage_batches
from rollforge.store.reading import FILE_NAME
from rollforge.text_safety.visible import visible
from rollforge.view.book import Book
from rollforge.view.opened import TurnHead, heads_of, plain

LINEAGE = "lineage.parquet"
FATES = "fates.parquet"


class ViewedManifest(Struct, kw_only=True):
    """The manifest fields that the viewer shows."""

    recipe: str
    to: str
    kind: str
    counts: dict[str, Any]
    splits: dict[str, int]


class RowOrigin(Struct, frozen=True):
    """The rollout behind a row."""

    run: str
    task: int | None
    rollout: int | None
    reward: float | None


class Sibling(Struct, frozen=True, kw_only=True):
    """Another rollout of the same task."""

    run: int
    """Index of its run among the open runs."""
    row: int
    rollout: int
    reward: float | None
    used_in: list[tuple[int, str]]
    """Dataset rows that use it, as (position, FILE:LINE)."""
    fate: str | None
    """Why no row uses it."""


class DatasetRow(Struct, frozen=True, kw_only=True):
    """One row of the list."""

    position: int = field(name="place")
    file: str
    line: int
    origins: Sequence[RowOrigin]
    """Rollouts behind the row; for a pair, the chosen one first."""


class OpenedRow(Struct, frozen=True, kw_only=True):
    """A row with its text and its rollouts' siblings."""

    row: DatasetRow
    turns: Sequence[TurnHead]
    siblings: Sequence[Sibling]
    """Rollouts of the same task, if the run is open."""


class DatasetBook:
    """An open dataset folder."""

    def __init__(self, path: str) -> None:
        self.folder = Path(path)
        self.name = path
        self.manifest = read_json(self.folder / "manifest.json", ViewedManifest)
        if not (self.folder / LINEAGE).is_file():
            raise DataError(f"{self.folder}: there is no {LINEAGE}", hint="prepare the dataset again")
        self._lineage = pa.concat_tables(lineage_batches(self.folder / LINEAGE, ("file", "line")))

    def page(self, start: int, count: int) -> tuple[int, list[DatasetRow]]:
        """(number of rows in the dataset, a part of them)."""
        rows = self._lineage.slice(max(0, start), count).to_pylist()
        return self._lineage.num_rows, [_row(number, one) for number, one in enumerate(rows, max(0, start))]

    def open(self, number: int, books: Sequence[Book]) -> OpenedRow:
        """A row with the rollouts behind it."""
        if not 0 <= number < self._lineage.num_rows:
            raise DataError(f"{self.name} has no row {number}")
        row = _row(number, self._lineage.slice(number, 1).to_pylist()[0])
        path = self.folder / row.file
        if re.match(FILE_NAME, row.file) is None or not path.is_file():
            raise DataError(
                f"{self.folder / LINEAGE}: {row.file!r} is no file of the dataset",
                hint="prepare the dataset again",
            )
        read = parquet_rows if path.suffix == ".parquet" else jsonl_rows
        text = next((value for _, value in read(path, [row.line])), None)
        return OpenedRow(
            row=row,
            turns=heads_of(dataset_turns(text)),
            siblings=self._siblings(row, books),
        )

    def _siblings(self, row: DatasetRow, books: Sequence[Book]) -> list[Sibling]:
        """Samples of the row's task, each with the dataset rows that use it."""
        if not row.origins:
            return []
        origin = row.origins[0]
        number = _book_of(books, origin.run)
        if number is None or not isinstance(origin.task, int):
            return []
        used: dict[int, list[tuple[int, str]]] = {}
        for prefix in ("", "rejected_"):
            if f"{prefix}task" not in self._lineage.column_names:
                continue
            tasks = ints(self._lineage.column(f"{prefix}task"), -1)
            for position in (tasks == origin.task).nonzero()[0].tolist():
                one = self._lineage.slice(position, 1).to_pylist()[0]
                if one[f"{prefix}run"] == origin.run:  # tasks of several runs have the same numbers
                    where = position, f"{one['file']}:{one['line']}"
                    used.setdefault(one[f"{prefix}rollout"], []).append(where)
        fates = self._fates(origin)
        of_task = sorted({row for rows in used.values() for row in rows})

        def rows_of(rollout: int) -> list[tuple[int, str]]:
            if self.manifest.kind == "prompt" and rollout not in fates:
                return of_task  # a prompt's row is made from all samples that were kept
            return used.get(rollout, [])

        samples = books[number].index.select(
            f"SELECT row, rollout, reward FROM rollouts WHERE task = {origin.task} ORDER BY rollout, row"
        )
        return [
            Sibling(
                run=number,
                row=one["row"],
                rollout=one["rollout"],
                reward=plain(one["reward"]),
                used_in=rows_of(one["rollout"]),
                fate=None if rows_of(one["rollout"]) else fates.get(one["rollout"]),
            )
            for one in samples.to_pylist()
        ]

    def _fates(self, origin: RowOrigin) -> dict[int, str]:
        """Why samples of a task are in no row, if the dataset records it."""
        import pyarrow.compute as pc

        path = self.folder / FATES
        if not path.is_file():
            return {}
        is_sibling = (pc.field("task") == origin.task) & (pc.field("run") == origin.run)
        return {
            one["rollout"]: visible(one["fate"])
            for table in lineage_batches(path, ("run", "task", "rollout", "fate"))
            for one in table.filter(is_sibling).to_pylist()
        }


def _book_of(books: Sequence[Book], named: str) -> int | None:
    """The open run that a dataset calls `named`: the one at this path, else the one whose path ends alike in most folders."""
    paths = [Path(book.name).resolve() for book in books]
    if Path(named).resolve() in paths:
        return paths.index(Path(named).resolve())
    alike = [_shared_ending(path, Path(named)) for path in paths]
    most = max(alike, default=0)
    return alike.index(most) if most and alike.count(most) == 1 else None


def _shared_ending(one: Path, other: Path) -> int:
    """Number of equal path parts, counted from the end."""
    pairs = zip(reversed(one.parts), reversed(other.parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _row(number: int, one: dict[str, Any]) -> DatasetRow:
    origins = [
        RowOrigin(*(plain(one.get(prefix + key)) for key in ("run", "task", "rollout", "reward")))
        for prefix in ("", "rejected_")
        if one.get(f"{prefix}run") is not None
    ]
    return DatasetRow(position=number, file=one["file"], line=one["line"], origins=origins)


def manifest_facts(book: DatasetBook) -> dict[str, Any]:
    """Manifest facts shown above the rows."""
    return {"name": book.name, **msgspec.to_builtins(book.manifest)}
