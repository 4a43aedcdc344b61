"""A prepared dataset as the viewer reads it: a row, the rollouts behind it, and what became of their siblings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from msgspec import Struct

from rollforge.errors import DataError
from rollforge.steps.report import dataset_turns, jsonl_rows, parquet_rows
from rollforge.store import read_json
from rollforge.view.book import Book, TurnHead, head_of, plain

LINEAGE = "lineage.parquet"


class ViewedManifest(Struct, kw_only=True):
    """What the viewer shows of a dataset's manifest."""

    recipe: str
    to: str
    kind: str
    counts: dict[str, Any]
    splits: dict[str, int]


class DatasetRow(Struct, frozen=True, kw_only=True):
    """One row of the list."""

    place: int
    file: str
    line: int
    origins: Sequence[dict[str, Any]]
    """run, task, rollout, reward of the rollout behind the row; for a pair the chosen one first."""


class OpenedRow(Struct, frozen=True, kw_only=True):
    """A row with its text and its rollouts' siblings."""

    row: DatasetRow
    turns: Sequence[TurnHead]
    siblings: Sequence[dict[str, Any]]
    """Rollouts of the same task: run number and row where the run is open, and the dataset rows they are in."""


class DatasetBook:
    """A dataset folder that is open for reading."""

    def __init__(self, path: str) -> None:
        import pyarrow.parquet as pq

        self.folder = Path(path)
        self.name = path
        self.manifest = read_json(self.folder / "manifest.json", ViewedManifest)
        if not (self.folder / LINEAGE).is_file():
            raise DataError(f"{self.folder}: there is no {LINEAGE}", hint="prepare the dataset again")
        self._lineage: pa.Table = pq.read_table(self.folder / LINEAGE)

    def page(self, start: int, count: int) -> tuple[int, list[DatasetRow]]:
        """(rows in the dataset, a stretch of them)."""
        found = self._lineage.slice(max(0, start), count).to_pylist()
        return self._lineage.num_rows, [_row(place, one) for place, one in enumerate(found, max(0, start))]

    def open(self, place: int, books: Sequence[Book]) -> OpenedRow:
        """A row with what is behind it."""
        if not 0 <= place < self._lineage.num_rows:
            raise DataError(f"{self.name} has no row {place}")
        row = _row(place, self._lineage.slice(place, 1).to_pylist()[0])
        path = self.folder / row.file
        read = parquet_rows if path.suffix == ".parquet" else jsonl_rows
        text = next((value for _, value in read(path, [row.line])), None)
        return OpenedRow(
            row=row,
            turns=[head_of(turn) for turn in dataset_turns(text)],
            siblings=self._siblings(row, books),
        )

    def _siblings(self, row: DatasetRow, books: Sequence[Book]) -> list[dict[str, Any]]:
        """The samples of the row's task, each with the rows of this dataset that it is in."""
        origin = row.origins[0]
        number = next((number for number, book in enumerate(books) if _is_run(book, origin["run"])), None)
        if number is None or origin["task"] is None:
            return []
        used: dict[int, list[int]] = {}
        for prefix in ("", "rejected_"):
            if f"{prefix}task" not in self._lineage.column_names:
                continue
            tasks = self._lineage.column(f"{prefix}task").to_numpy(zero_copy_only=False)
            rollouts = self._lineage.column(f"{prefix}rollout").to_pylist()
            for place in (tasks == origin["task"]).nonzero()[0].tolist():
                used.setdefault(rollouts[place], []).append(place)
        samples = books[number].index.select(
            f"SELECT row, rollout, reward FROM rollouts WHERE task = {int(origin['task'])} ORDER BY rollout, row"
        )
        return [
            {
                "run": number,
                "row": one["row"],
                "rollout": one["rollout"],
                "reward": plain(one["reward"]),
                "used_in": used.get(one["rollout"], []),
            }
            for one in samples.to_pylist()
        ]


def _is_run(book: Book, named: str) -> bool:
    """Whether a dataset's word for a run means this one: the same folder name at the end of both."""
    return Path(named).name == Path(book.name).name or Path(named).resolve() == Path(book.name).resolve()


def _row(place: int, one: dict[str, Any]) -> DatasetRow:
    origins = [
        {key: plain(one.get(prefix + key)) for key in ("run", "task", "rollout", "reward")}
        for prefix in ("", "rejected_")
        if one.get(f"{prefix}run") is not None
    ]
    return DatasetRow(place=place, file=str(one["file"]), line=int(one["line"]), origins=origins)


def manifest_facts(book: DatasetBook) -> dict[str, Any]:
    """What the page shows above the rows."""
    return {"name": book.name, **msgspec.to_builtins(book.manifest)}
