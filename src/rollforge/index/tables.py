"""This module writes the SQL that makes tables of the parts: each kind as it stands, `rollouts` and `tasks` as people see them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rollforge.index.cache import OpenCache
from rollforge.index.kinds import COLUMNS, PLACES, ColumnType, Kind, stored_name
from rollforge.index.overlay import Overlay
from rollforge.index.sql import literal, quoted
from rollforge.index.state import State

_SQL_TYPES: dict[ColumnType, str] = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}
_RESERVED = frozenset({"row", "file", "file_no", *PLACES, *COLUMNS["rollouts"]})
_TASK_COLUMNS = ("task", "agent", "prompt_hash", "source_row")


class Source(msgspec.Struct):
    """One file of one kind, indexed."""

    file_no: int
    """Which of the run's files it is, or belongs to."""
    path: Path
    folder: Path
    state: State
    first_row: int
    """Rows of the files before it."""
    tables: Mapping[str, Any] = {}
    """What parts hold that need not be read, because they were just made."""
    footers: dict[str, Any] = {}
    """What parts read before say about themselves, for a few of them: finding out takes longer than reading a column."""


class Sources:
    """The indexed files of a run, by kind."""

    def __init__(self) -> None:
        self.by_kind: dict[Kind, list[Source]] = {"rollouts": [], "tasks": [], "failures": [], "verdicts": []}

    def add(self, kind: Kind, file_no: int, path: Path, folder: Path, opened: OpenCache) -> None:
        """One more file; its rows are numbered after those before it."""
        before = self.by_kind[kind]
        first_row = before[-1].first_row + before[-1].state.counts("rows") if before else 0
        before.append(Source(file_no, path, folder, opened.state, first_row, opened.tables))

    def count(self, kind: Kind, what: str = "rows") -> int:
        """`rows`, `rejected` or `noted` of all files of a kind."""
        return sum(source.state.counts(what) for source in self.by_kind[kind])

    def discovered(self, kind: Kind, columns: str) -> dict[str, int]:
        """Discovered `numbers` or `texts` of a kind, each with how many rows have it."""
        found: dict[str, int] = {}
        for source in self.by_kind[kind]:
            for name, count in source.state.columns(columns).items():
                found[name] = found.get(name, 0) + count
        return found

    def with_verdicts(self, columns: str, overlay: Overlay) -> dict[str, int]:
        """The same for rollouts, with the columns that only later verdicts bring."""
        later: list[str] = getattr(overlay, columns)
        return dict.fromkeys(later, 0) | self.discovered("rollouts", columns)

    def fields(self, overlay: Overlay) -> dict[str, str]:
        """Every discovered field of rollouts and its column: `reward` first, then numbers, then texts."""
        names = {"reward": 0} | self.with_verdicts("numbers", overlay) | self.with_verdicts("texts", overlay)
        return _columns_of(names, _RESERVED)

    def task_fields(self) -> dict[str, str]:
        """The same for the tasks file."""
        return _columns_of(
            self.discovered("tasks", "numbers") | self.discovered("tasks", "texts"), _TASK_COLUMNS
        )

    def folders(self) -> list[Path]:
        """Where the parts are, those of the rollouts first; files that lie where nothing may be written have a folder each."""
        return list(dict.fromkeys(one.folder.parent for found in self.by_kind.values() for one in found))

    def digest(self) -> str:
        """Differs whenever any file was indexed anew."""
        builds = [
            (kind, one.file_no, one.state.build) for kind, found in self.by_kind.items() for one in found
        ]
        return hashlib.sha256(msgspec.json.encode(builds)).hexdigest()[:16]

    def base_sql(self, kind: Kind) -> str:
        """All rows of a kind as they stand in the parts."""
        selects = [_select(source) for source in self.by_kind[kind] if source.state.counts("rows")]
        if selects:
            return " UNION ALL BY NAME ".join(selects)
        columns = (PLACES | COLUMNS[kind]).items()
        fixed = ", ".join(f"CAST(NULL AS {_SQL_TYPES[column]}) AS {quoted(name)}" for name, column in columns)
        return f"SELECT CAST(NULL AS BIGINT) AS row, 0 AS first_row, 0 AS file_no, '' AS file, {fixed} WHERE false"

    def column_names(self, table: str, overlay: Overlay) -> list[str]:
        """Columns of `rollouts`, `tasks` or `failures`, in the order in which the SQL below makes them."""
        if table == "failures":
            return ["row", "file", *PLACES, *COLUMNS["failures"]]
        if table == "tasks":
            return [*_TASK_COLUMNS, *(self.task_fields().values() if self.has_tasks_file(overlay) else ())]
        return ["row", "file", *PLACES, *COLUMNS["rollouts"], *self.fields(overlay).values()]

    def has_tasks_file(self, overlay: Overlay) -> bool:
        """There are tasks as they were sent, and the rollouts name them by number."""
        return self.count("tasks") > 0 and overlay.joins_tasks

    def rollouts_sql(self, overlay: Overlay) -> str:
        """The rollouts that count, with the verdicts that count."""
        columns = ["b.row", "b.file", "b.line", 'b."offset"', "b.length"]
        columns += [f"{overlay.fixed(name)} AS {quoted(name)}" for name in COLUMNS["rollouts"]]
        numbers = {"reward": 0} | self.with_verdicts("numbers", overlay)
        in_rows = {"n": self.discovered("rollouts", "numbers"), "t": self.discovered("rollouts", "texts")}
        for name, column in self.fields(overlay).items():
            prefix = "n" if name in numbers else "t"
            value = overlay.value(prefix, name, name in in_rows[prefix])
            columns.append(f"{value} AS {quoted(column)}")
        return f"SELECT {', '.join(columns)} FROM base_rollouts b {overlay.join()}"

    def tasks_sql(self, overlay: Overlay) -> str:
        """One row per task: from the tasks files; from the rollouts for tasks that none of them has."""
        from_rollouts = (
            "SELECT task, first(agent ORDER BY row) AS agent, first(prompt_hash ORDER BY row) AS prompt_hash, "
            "CAST(NULL AS BIGINT) AS source_row FROM rollouts"
        )
        if not self.has_tasks_file(overlay):
            return f"{from_rollouts} GROUP BY task"
        numbers = self.discovered("tasks", "numbers")
        extra = [
            f"{quoted(stored_name('n' if name in numbers else 't', name))} AS {quoted(column)}"
            for name, column in self.task_fields().items()
        ]
        number = self.number_sql("tasks", "coalesce(base_tasks.task, row - first_row)")
        columns = ", ".join([f"{number} AS task", "agent", "prompt_hash", "row AS source_row", *extra])
        first = f"row_number() OVER (PARTITION BY {number} ORDER BY row) = 1"
        from_files = f"SELECT {columns} FROM base_tasks QUALIFY {first}"
        if len(self.by_kind["rollouts"]) == len(self.by_kind["tasks"]):
            return from_files
        return (
            f"WITH sent AS ({from_files}) SELECT * FROM sent UNION ALL BY NAME "
            f"{from_rollouts} WHERE task NOT IN (SELECT task FROM sent) GROUP BY task"
        )

    def failures_sql(self, overlay: Overlay) -> str:
        """The failures under the numbers of the whole run."""
        fixed = {name: quoted(name) for name in ("row", "file", *PLACES, *COLUMNS["failures"])}
        fixed["task"] = f"{self.number_sql('failures', 'base_failures.task')} AS task"
        fixed["rollout"] = f"{self.rollout_sql('base_failures', overlay)} AS rollout"
        return f"SELECT {', '.join(fixed.values())} FROM base_failures"

    def number_sql(self, kind: Kind, local: str) -> str:
        """The number a task has in the whole run, from the one it has in its file."""
        if len(self.by_kind["rollouts"]) == 1:
            return local
        renamed = f"SELECT n.task FROM renamed n WHERE n.file_no = base_{kind}.file_no AND n.local = {local}"
        return f"coalesce(({renamed}), {local})"

    def rollout_sql(self, table: str, overlay: Overlay) -> str:
        """The same for the number of a rollout."""
        cases = "".join(f" WHEN {file} THEN {shift}" for file, shift in overlay.shifts.items())
        return f"{table}.rollout + CASE file_no{cases} ELSE 0 END" if cases else f"{table}.rollout"


def _select(source: Source) -> str:
    """One file's rows; the path of each part says at which row and line it starts."""
    parts = ", ".join(literal(str((source.folder / part).resolve())) for part in source.state.all_parts())
    # Not hive_partitioning: it would take a folder `task=math` further up for a column, too.
    start = "CAST(regexp_extract(filename, 'row0=(\\d+)/line0=(\\d+)/[^/]+$', {}) AS BIGINT)"
    return (
        f"SELECT {source.first_row} + {start.format(1)} + file_row_number AS row, "
        f"{source.first_row} AS first_row, {source.file_no} AS file_no, "
        f"{literal(str(source.path))} AS file, * EXCLUDE (line, filename, file_row_number), "
        f"{start.format(2)} + line AS line FROM read_parquet([{parts}], "
        "union_by_name = true, file_row_number = true, filename = true, hive_partitioning = false)"
    )


def _columns_of(names: Collection[str], taken: Iterable[str]) -> dict[str, str]:
    """The column of each field: its own name, or `fields.NAME` where there is a column of that name, but for capitals."""
    used = set(taken)
    columns = dict.fromkeys(names, "")
    for name in sorted(names, key=lambda name: (name != "reward", name != name.lower(), name)):
        column = name
        while not column or column.lower() in used:
            column = f"fields.{column}"
        used.add(column.lower())
        columns[name] = column
    return columns
