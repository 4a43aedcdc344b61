"""This module writes the SQL that makes tables of the parts: each kind as it stands, `rollouts` and `tasks` as people see them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from rollforge.index.cache import State
from rollforge.index.kinds import COLUMNS, PLACES, ColumnType, Kind
from rollforge.index.overlay import Overlay
from rollforge.index.sql import literal, quoted

_SQL_TYPES: dict[ColumnType, str] = {"int": "BIGINT", "float": "DOUBLE", "bool": "BOOLEAN", "text": "VARCHAR"}
_RESERVED = frozenset({"row", "file", "file_no", *PLACES, *COLUMNS["rollouts"]})


class Source(msgspec.Struct):
    """One file of one kind, indexed."""

    file_no: int
    """Which of the run's files it is, or belongs to."""
    path: Path
    folder: Path
    state: State
    first_row: int
    """Rows of the files before it."""
    footers: dict[str, Any] = {}
    """What parts read before say about themselves, for a few of them: finding out takes longer than reading a column."""


class Sources:
    """The indexed files of a run, by kind."""

    def __init__(self) -> None:
        self.by_kind: dict[Kind, list[Source]] = {"rollouts": [], "tasks": [], "failures": [], "verdicts": []}

    def add(self, kind: Kind, file_no: int, path: Path, folder: Path, state: State) -> None:
        """One more file; its rows are numbered after those before it."""
        before = self.by_kind[kind]
        first_row = before[-1].first_row + before[-1].state.counts("rows") if before else 0
        before.append(Source(file_no, path, folder, state, first_row))

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

    def folders(self) -> list[Path]:
        """Where the parts are."""
        return list(dict.fromkeys(source.folder.parent for source in self.by_kind["rollouts"]))

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
        return f"SELECT CAST(NULL AS BIGINT) AS row, 0 AS file_no, '' AS file, {fixed} WHERE false"

    def column_names(self, table: str, overlay: Overlay) -> list[str]:
        """Columns of `rollouts`, `tasks` or `failures`, in the order in which the SQL below makes them."""
        if table == "failures":
            return ["row", "file", *PLACES, *COLUMNS["failures"]]
        if table == "tasks":
            fixed = ["task", "agent", "prompt_hash", "source_row"]
            extra = [*self.discovered("tasks", "numbers"), *self.discovered("tasks", "texts")]
            return list(dict.fromkeys([*fixed, *extra])) if self.has_tasks_file() else fixed
        numbers, texts = self.with_verdicts("numbers", overlay), self.with_verdicts("texts", overlay)
        found = [
            column_name(name) for name in sorted({"reward": 0} | numbers, key=lambda name: name != "reward")
        ]
        found += [column_name(name) for name in texts if name not in numbers]
        return list(dict.fromkeys(["row", "file", *PLACES, *COLUMNS["rollouts"], *found]))

    def has_tasks_file(self) -> bool:
        """There is one for the whole run, not none, and not one per file of several."""
        is_one = len(self.by_kind["tasks"]) == 1 and len(self.by_kind["rollouts"]) == 1
        return is_one and self.count("tasks") > 0

    def rollouts_sql(self, overlay: Overlay) -> str:
        """The rollouts that count, with the verdicts that count."""
        columns = ["b.row", "b.file", "b.line", 'b."offset"', "b.length"]
        columns += [f"{overlay.fixed(name)} AS {quoted(name)}" for name in COLUMNS["rollouts"]]
        numbers, texts = self.with_verdicts("numbers", overlay), self.with_verdicts("texts", overlay)
        if "reward" not in numbers:
            columns.append("CAST(NULL AS DOUBLE) AS reward")
        in_rows = self.discovered("rollouts", "numbers")
        for name in sorted(numbers, key=lambda name: name != "reward"):
            columns.append(f"{overlay.value('n', name, name in in_rows)} AS {quoted(column_name(name))}")
        in_rows = self.discovered("rollouts", "texts")
        for name in texts:
            if name not in numbers:
                columns.append(f"{overlay.value('t', name, name in in_rows)} AS {quoted(column_name(name))}")
        return f"SELECT {', '.join(columns)} FROM base_rollouts b {overlay.join()}"

    def tasks_sql(self) -> str:
        """One row per task: from the tasks file, or from the rollouts when there is none (or one per file of several)."""
        if not self.has_tasks_file():
            return (
                "SELECT task, first(agent ORDER BY row) AS agent, first(prompt_hash ORDER BY row) AS prompt_hash, "
                "CAST(NULL AS BIGINT) AS source_row FROM rollouts GROUP BY task"
            )
        taken = {"task", "agent", "prompt_hash", "source_row"}
        numbers, texts = self.discovered("tasks", "numbers"), self.discovered("tasks", "texts")
        extra = [f"{quoted('n:' + name)} AS {quoted(name)}" for name in numbers if name not in taken]
        extra += [
            f"{quoted('t:' + name)} AS {quoted(name)}" for name in texts if name not in {*taken, *numbers}
        ]
        columns = ", ".join(
            ["coalesce(task, row) AS task", "agent", "prompt_hash", "row AS source_row", *extra]
        )
        first = "row_number() OVER (PARTITION BY coalesce(task, row) ORDER BY row) = 1"
        return f"SELECT {columns} FROM base_tasks QUALIFY {first}"


def _select(source: Source) -> str:
    """One file's rows; the path of each part says at which row and line it starts."""
    parts = ", ".join(literal(str((source.folder / part).resolve())) for part in source.state.all_parts())
    return (
        f"SELECT CAST({source.first_row} + row0 + file_row_number AS BIGINT) AS row, {source.file_no} AS file_no, "
        f"{literal(str(source.path))} AS file, * EXCLUDE (line, line0, row0, file_row_number), line0 + line AS line "
        f"FROM read_parquet([{parts}], union_by_name = true, file_row_number = true, hive_partitioning = true, "
        "hive_types = {'row0': BIGINT, 'line0': BIGINT})"
    )


def column_name(name: str) -> str:
    """The column of a discovered field: its own name, unless a column of the index is called that."""
    return f"fields.{name}" if name in _RESERVED else name
