"""SQL of the three user-visible tables `rollouts`, `tasks` and `failures`, over the parts and the overlay."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from rollforge.index.overlay import Overlay, overlay_folder
from rollforge.index.schema import COLUMNS, LINE_COLUMNS, Kind, literal, quoted, stored_name
from rollforge.index.state import IndexedFiles

_RESERVED = frozenset({"row", "file", "file_no", *LINE_COLUMNS, *COLUMNS["rollouts"]})
_TASK_COLUMNS = ("task", "agent", "prompt_hash", "source_row")
_VERDICT_COLUMNS = ("verifier", "fingerprint", "mode", "verify_seconds")


class Views:
    """Columns and SQL of the tables of one run."""

    def __init__(self, files: IndexedFiles, overlay: Overlay) -> None:
        self._files = files
        self._overlay = overlay

    # Columns

    def numbers(self) -> dict[str, int]:
        """Number fields of rollouts, including those that only later verdicts have → how many rows have them."""
        return dict.fromkeys(self._overlay.numbers, 0) | self._files.discovered("rollouts", "numbers")

    def texts(self) -> dict[str, int]:
        """Text fields of rollouts, including those that only later verdicts have → how many rows have them."""
        return dict.fromkeys(self._overlay.texts, 0) | self._files.discovered("rollouts", "texts")

    def fields(self) -> dict[str, str]:
        """All discovered fields of rollouts → their column: `reward` first, then numbers, then texts."""
        return _columns_of({"reward": 0} | self.numbers() | self.texts(), _RESERVED)

    def _task_fields(self) -> dict[str, str]:
        """All discovered fields of the tasks file → their column."""
        names = self._files.discovered("tasks", "numbers") | self._files.discovered("tasks", "texts")
        return _columns_of(names, _TASK_COLUMNS)

    def column_names(self, table: str) -> list[str]:
        """Columns of `rollouts`, `tasks` or `failures`, in the order in which the SQL produces them."""
        if table == "failures":
            return ["row", "file", *LINE_COLUMNS, *COLUMNS["failures"]]
        if table == "tasks":
            return [*_TASK_COLUMNS, *(self._task_fields().values() if self.has_tasks_file() else ())]
        return ["row", "file", *LINE_COLUMNS, *COLUMNS["rollouts"], *self.fields().values()]

    def has_tasks_file(self) -> bool:
        """Whether there is a tasks file whose numbers the rollouts use."""
        return self._files.count("tasks") > 0 and self._overlay.joins_tasks

    # Tables

    def rollouts(self) -> str:
        """SQL for the rollouts and verdicts that count."""
        columns = ["b.row", "b.file", "b.line", 'b."offset"', "b.length"]
        columns += [f"{self._fixed(name)} AS {quoted(name)}" for name in COLUMNS["rollouts"]]
        numbers = {"reward": 0} | self.numbers()
        for name, column in self.fields().items():
            columns.append(f"{self._value('n' if name in numbers else 't', name)} AS {quoted(column)}")
        return f"SELECT {', '.join(columns)} FROM base_rollouts b {self._join()}"

    def overlay_path(self) -> Path | None:
        """Path of the overlay's table."""
        table = self._overlay.table
        return None if table is None else overlay_folder(self._files) / table.name

    def _join(self) -> str:
        """SQL that joins the overlay to the rows `b`."""
        path = self.overlay_path()
        if path is None:
            return ""
        return (
            f"JOIN read_parquet({literal(str(path.resolve()))}, hive_partitioning = false) o ON b.row = o.row"
        )

    def _fixed(self, name: str) -> str:
        overlay = self._overlay
        if overlay.table is not None and name in ("task", "rollout"):
            return f"o.{name}"
        if overlay.table is not None and overlay.has_verdicts and name in _VERDICT_COLUMNS:
            return f"CASE WHEN o.applies THEN o.{name} ELSE b.{name} END"
        return f"b.{quoted(name)}"

    def _value(self, prefix: str, name: str) -> str:
        """SQL for a discovered column: the later verdict's value if one counts, else the row's."""
        overlay = self._overlay
        in_rows = self._files.discovered("rollouts", "numbers" if prefix == "n" else "texts")
        inline = f"b.{quoted(stored_name(prefix, name))}" if name in in_rows else "NULL"
        is_brought = name in {"reward", *overlay.numbers, *overlay.texts}
        if overlay.table is None or not overlay.has_verdicts or not is_brought:
            return inline
        later_names = overlay.numbers if prefix == "n" else overlay.texts
        later = f"o.{quoted(stored_name(prefix, name))}" if name in later_names else "NULL"
        is_verifiers_alone = name == "reward" or overlay.verifier is not None
        # A verdict that displaces an inline one brings all its fields; one for a row without a reward adds its own.
        displaces = (
            f"b.{quoted(stored_name('n', 'reward'))} IS NOT NULL" if self._has_inline_reward() else "false"
        )
        applied_value = (
            later
            if is_verifiers_alone
            else f"CASE WHEN {displaces} THEN {later} ELSE coalesce({later}, {inline}) END"
        )
        return f"CASE WHEN o.applies THEN {applied_value} ELSE {inline} END"

    def _has_inline_reward(self) -> bool:
        return "reward" in self._files.discovered("rollouts", "numbers")

    def tasks(self) -> str:
        """SQL with one row per task: from the tasks files, and from the rollouts for tasks in no file."""
        from_rollouts = (
            "SELECT task, first(agent ORDER BY row) AS agent, first(prompt_hash ORDER BY row) AS prompt_hash, "
            "CAST(NULL AS BIGINT) AS source_row FROM rollouts"
        )
        if not self.has_tasks_file():
            return f"{from_rollouts} GROUP BY task"
        numbers = self._files.discovered("tasks", "numbers")
        extra = [
            f"{quoted(stored_name('n' if name in numbers else 't', name))} AS {quoted(column)}"
            for name, column in self._task_fields().items()
        ]
        number = self.task_number("tasks", "coalesce(base_tasks.task, row - first_row)")
        columns = ", ".join([f"{number} AS task", "agent", "prompt_hash", "row AS source_row", *extra])
        first = f"row_number() OVER (PARTITION BY {number} ORDER BY row) = 1"
        from_files = f"SELECT {columns} FROM base_tasks QUALIFY {first}"
        if len(self._files.by_kind["rollouts"]) == len(self._files.by_kind["tasks"]):
            return from_files
        return (
            f"WITH sent AS ({from_files}) SELECT * FROM sent UNION ALL BY NAME "
            f"{from_rollouts} WHERE task NOT IN (SELECT task FROM sent) GROUP BY task"
        )

    def failures(self) -> str:
        """SQL for the failures, with task numbers of the whole run."""
        fixed = {name: quoted(name) for name in ("row", "file", *LINE_COLUMNS, *COLUMNS["failures"])}
        fixed["task"] = f"{self.task_number('failures', 'base_failures.task')} AS task"
        fixed["rollout"] = f"{self.rollout_number('base_failures')} AS rollout"
        return f"SELECT {', '.join(fixed.values())} FROM base_failures"

    def task_number(self, kind: Kind, local: str) -> str:
        """SQL for a task's number in the whole run, from its number in its file."""
        if len(self._files.by_kind["rollouts"]) == 1:
            return local
        renamed = f"SELECT n.task FROM renamed n WHERE n.file_no = base_{kind}.file_no AND n.local = {local}"
        return f"coalesce(({renamed}), {local})"

    def rollout_number(self, table: str) -> str:
        """SQL for a rollout's number in the whole run, from its number in its file."""
        cases = "".join(f" WHEN {file} THEN {shift}" for file, shift in self._overlay.shifts.items())
        return f"{table}.rollout + CASE file_no{cases} ELSE 0 END" if cases else f"{table}.rollout"


def _columns_of(names: Collection[str], taken: Iterable[str]) -> dict[str, str]:
    """The column of each field: its own name, or `fields.NAME` if a column already has that name (SQL ignores case)."""
    used = set(taken)
    columns = dict.fromkeys(names, "")
    for name in sorted(names, key=lambda name: (name != "reward", name != name.lower(), name)):
        column = name
        while not column or column.lower() in used:
            column = f"fields.{column}"
        used.add(column.lower())
        columns[name] = column
    return columns
