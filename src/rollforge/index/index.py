"""A run as tables: `rollouts`, `tasks`, `failures`, over the parts of its index and never over the text.

Opening a run brings its index up to date first. What counts (the last of two rows with one key, the chosen verifier's verdict) is
decided here, so that every command sees the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rollforge.errors import UsageError
from rollforge.index import parts
from rollforge.index.arrow import arrow_array, floats, ints
from rollforge.index.build import reader_count
from rollforge.index.cache import IndexCache
from rollforge.index.identity import resolve
from rollforge.index.jsonl import read_spans
from rollforge.index.overlay import Duplicate, find_overlay
from rollforge.index.row_facts import split_line
from rollforge.index.schema import Kind, literal, quoted
from rollforge.index.state import BadLineAt, IndexedFiles
from rollforge.index.user_sql import TABLES, check_sort, check_where, fetch, lock_down, run_select
from rollforge.index.views_sql import Views
from rollforge.records import TASK_KEY, JsonFields
from rollforge.stats import Floats, Ints, distinct, first_places
from rollforge.store import RunFiles, read_json
from rollforge.store.find import find_runs, tasks_file
from rollforge.typed_rows import classic_line

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "256MB"
"""What DuckDB may hold before it spills to disk."""

NO_METRICS = frozenset({parts.MASKED})
"""Number fields that say something about the reward and are no measurement themselves."""

NESTED = ("reward_components.", "input_tokens_details.", "output_tokens_details.")
"""Prefixes of fields that are known to be nested."""

AT_ONCE = 65_536
"""Rows whose places are converted to Python numbers together."""


def open_index(
    runs: str | Path | Sequence[str | Path], *, verifier: str | None = None, workers: int | None = None
) -> Index:
    """The run (or several files as one run) as tables; builds or extends what is not up to date.

    Args:
        verifier: whose verdicts count; else the manifest's verdict of record, else the inline ones and, for rows without one,
            the newest later one.
        workers: threads that read the text; by default one per core for large files.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"there cannot be {workers} workers", hint="give 1 or more, or leave it out")
    return Index(find_runs(runs), verifier=verifier, workers=workers)


class Index:
    """A run as tables. Close it, or use it in a `with` statement, to release its files."""

    def __init__(
        self, runs: Sequence[RunFiles], *, verifier: str | None = None, workers: int | None = None
    ) -> None:
        self.runs = list(runs)
        self._facts = [_run_facts(files) for files in self.runs]
        self._held = ExitStack()
        self._files = IndexedFiles()
        self.readers = reader_count(sum(files.rollouts.stat().st_size for files in self.runs), workers)
        """Threads for work that releases the interpreter lock."""
        try:
            for number, files in enumerate(self.runs):
                for kind, path in _files_of(files):
                    cache = IndexCache(path, kind, files.index)
                    held = cache.update(workers)
                    self._held.callback(held.release)
                    self._files.add(kind, number, path, cache.folder, held.state)
            of_record = next((facts.verifier for facts in self._facts if facts.verifier), None)
            self._overlay = find_overlay(self._files, _run_numbers(self._facts), verifier or of_record)
            self._views = Views(self._files, self._overlay)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *failure: Any) -> None:
        if "_base" in self.__dict__:
            self._base.close()
        self._held.__exit__(*failure)

    def close(self) -> None:
        """Release the files; the index itself stays on disk."""
        self.__exit__(None, None, None)

    @cached_property
    def _base(self) -> duckdb.DuckDBPyConnection:
        """A connection to the rows as the parts have them; made when SQL is first needed, which is often never."""
        import duckdb

        connection = duckdb.connect(":memory:")
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        for kind in self._files.by_kind:
            connection.execute(f"CREATE VIEW base_{kind} AS {parts.base_sql(self._files, kind)}")
        return connection

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """A connection to the rows that count, which can read nothing but the index."""
        connection = self._base
        connection.execute(f"CREATE VIEW rollouts AS {self._views.rollouts()}")
        self._create_renamed()
        connection.execute(f"CREATE VIEW tasks AS {self._views.tasks()}")
        connection.execute(f"CREATE VIEW failures AS {self._views.failures()}")
        folders = self._files.folders()
        connection.execute(f"SET temp_directory = {literal(str(folders[0] / 'spill'))}")
        lock_down(connection, [str(folder.resolve()) for folder in folders])
        return connection

    def _create_renamed(self) -> None:
        """The table of task numbers that mean another task in an earlier file of the run."""
        found = [
            (file, local, task)
            for file, named in self._overlay.renamed.items()
            for local, task in named.items()
        ]
        columns = zip(*found, strict=True) if found else ((), (), ())
        names = ("file_no", "local", "task")
        given = pa.table([pa.array(column, pa.int64()) for column in columns], names=list(names))
        self._base.register("given", given)
        self._base.execute("CREATE TABLE renamed AS SELECT * FROM given")
        self._base.unregister("given")

    # What the run holds

    @property
    def digest(self) -> str:
        """Changes whenever a file of the run was indexed anew or has grown."""
        rows = "-".join(str(self._files.count(kind)) for kind in self._files.by_kind)
        return f"{self._files.digest()}-{rows}"

    @property
    def verifier(self) -> str | None:
        """Whose verdicts count, when one was chosen."""
        return self._overlay.verifier

    @property
    def rejects(self) -> list[BadLineAt]:
        """Lines that are not rows, and rows with something odd (`is_kept`), each with its place.

        Those of the rollouts first, then those of the tasks, failures and verdicts.
        """
        return [
            msgspec.structs.replace(bad, file=str(file.path))  # it may have been indexed under another path
            for files in self._files.by_kind.values()
            for file in files
            for bad in file.state.listed()
        ]

    @property
    def rejected_lines(self) -> int:
        """How many lines of the run's files are not rows."""
        return sum(self._files.count(kind, "rejected") for kind in self._files.by_kind)

    @property
    def noted_lines(self) -> int:
        """How many rows of the run's files count although something about them is odd."""
        return sum(self._files.count(kind, "noted") for kind in self._files.by_kind)

    @property
    def duplicates(self) -> list[Duplicate]:
        """Rows overruled by a later one with the same (task, rollout)."""
        return self._overlay.duplicates

    @cached_property
    def has_own_keys(self) -> bool:
        """Whether every rollout came with a task and a rollout number; others are numbered in the order of lines."""
        rollouts = self._files.by_kind["rollouts"]
        if all(file.state.has_own_keys for file in rollouts):
            return True
        keys = parts.rollout_keys(rollouts)
        return not (keys.column("task").null_count or keys.column("rollout").null_count)

    @property
    def duplicate_count(self) -> int:
        """How many rows are overruled (`duplicates` lists the first ones)."""
        return self._overlay.duplicate_count

    @property
    def expected(self) -> int | None:
        """Rollouts the run was asked for; None for files that rollforge did not collect."""
        return sum(self._asked_for("expected")) or None

    @property
    def samples(self) -> int | None:
        """Rollouts asked for per task, where that is one number; summed over several runs of the same tasks."""
        samples = self._asked_for("samples")
        if not self._overlay.shifts:
            return samples[0] if len(set(samples)) == 1 else None
        inputs = {facts.input_digest for facts in self._facts}
        return (sum(samples) or None) if len(inputs) == 1 else None

    def _asked_for(self, name: str) -> list[int]:
        """A number of each run's manifest, counted once per run; empty when a file has no such number."""
        by_run: dict[int, int] = {}
        for run, facts in zip(_run_numbers(self._facts), self._facts, strict=True):
            number = getattr(facts, name)
            if number is None:
                return []
            by_run.setdefault(run, number)
        return [*by_run.values()]

    def failed(self) -> dict[str, int]:
        """Rollouts that failed and never finished: class of the last failure → how many."""
        found = self._lost("coalesce(class, 'unknown'), count(*)", "GROUP BY 1 ORDER BY 2 DESC, 1")
        return {str(kind): int(count) for kind, count in found}

    def failed_tasks(self) -> list[int]:
        """The task of each of them."""
        return [int(task) for (task,) in self._lost("last.task", "ORDER BY 1")]

    def _lost(self, columns: str, rest: str) -> list[tuple[Any, ...]]:
        if not self._files.count("failures"):
            return []
        # A failure in one file may be a rollout in another: both under the numbers of the whole run.
        number = self._views.task_number("rollouts", "base_rollouts.task")
        rollout = self._views.rollout_number("base_rollouts")
        found: list[tuple[Any, ...]] = self._connection.execute(
            "WITH last AS (SELECT task, rollout, class FROM failures WHERE task IS NOT NULL QUALIFY "
            "row_number() OVER (PARTITION BY task, rollout ORDER BY row DESC) = 1), "
            f"made AS (SELECT {number} AS task, {rollout} AS rollout FROM base_rollouts) "
            f"SELECT {columns} FROM last ANTI JOIN made ON made.task = last.task "
            f"AND made.rollout IS NOT DISTINCT FROM last.rollout {rest}"
        ).fetchall()
        return found

    @cached_property
    def _fields(self) -> dict[str, str]:
        return self._views.fields()

    @cached_property
    def numbers(self) -> list[str]:
        """Number columns of `rollouts` that are measurements: `reward` first, then in order of appearance."""
        found = self._views.numbers()
        return [column for name, column in self._fields.items() if name in found and name not in NO_METRICS]

    @cached_property
    def whole_numbers(self) -> frozenset[str]:
        """Number columns that no rollout lacks; none where later verdicts or duplicates decide what counts."""
        if not self._is_plain:
            return frozenset()
        rows, found = self._files.count("rollouts"), self._files.discovered("rollouts", "numbers")
        return frozenset(self._fields[name] for name, count in found.items() if count == rows)

    @cached_property
    def texts(self) -> list[str]:
        """Discovered text columns of `rollouts`."""
        numbers = {"reward": 0} | self._views.numbers()
        return [column for name, column in self._fields.items() if name not in numbers]

    @cached_property
    def name_by_column(self) -> dict[str, str]:
        """Discovered column → field of the rows: `fields.turns` is their `turns`."""
        return {column: name for name, column in self._fields.items()}

    @property
    def mixed(self) -> dict[str, int]:
        """Number fields that are text in some rows, where they count as missing: name → how many."""
        numbers = self._views.numbers()
        return {name: count for name, count in self._views.texts().items() if name in numbers}

    def is_of_rows(self, name: str) -> bool:
        """Whether no later verdict brings this field."""
        return self._is_plain or name not in {*self._overlay.numbers, *self._overlay.texts}

    def judged_later(self) -> Ints:
        """The rows for which a later verdict counts, not the one they came with."""
        path = self._views.overlay_path()
        if path is None or not self._overlay.has_verdicts:
            return np.zeros(0, dtype=np.int64)
        with parts.damage_reported(path.parent):
            found = pq.read_table(path, columns=["row"], filters=[("applies", "=", True)])
        return ints(found.column(0))

    def columns(self, table: str = "rollouts") -> list[str]:
        """Column names of `rollouts`, `tasks` or `failures`."""
        return self._views.column_names(table)

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        return {table: self.columns(table) for table in TABLES}

    def __len__(self) -> int:
        """Rollouts that count."""
        return self._files.count("rollouts") - self._overlay.duplicate_count

    def doubt(self) -> str | None:
        """What is doubtful about the file as a run: rows without any response or reward look like tasks."""
        if not len(self) or self._views.numbers().get("reward") or self._overlay.has_verdicts:
            return None
        if np.nansum(self.floats(["turns"])["turns"]) > 0:
            return None
        return f"none of the {len(self):,} rows has a response or a reward: is this a file of tasks?"

    @property
    def scratch(self) -> Path:
        """A folder for files that end with the process, on the disk that holds the index."""
        return self._files.folders()[0]

    # Reading it

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A connection that reads `rollouts`, `tasks`, `failures` and no other file."""
        return self._connection.cursor()

    def table(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        order_by: str | None = None,
        *,
        may_code: bool = False,
    ) -> pa.Table:
        """Rollouts as an Arrow table: the columns asked for, filtered by an expression, in the order of the file.

        With `may_code`, texts may come dictionary-encoded, which takes less time and memory.
        """
        if (
            columns is not None
            and order_by is None
            and (stored := self._as_stored(columns, where)) is not None
        ):
            if may_code:
                stored = {name: (at, _coded(kind)) for name, (at, kind) in stored.items()}
            return parts.read_columns(self._files.by_kind["rollouts"], stored)
        chosen = "*" if columns is None else ", ".join(quoted(name) for name in columns)
        sql = f"SELECT {chosen} FROM rollouts"
        if where is not None:
            sql += f" WHERE {self.checked(where)}"
        if order_by is not None or self._overlay.table is not None or len(self.runs) > 1:
            sql += f" ORDER BY {order_by or 'row'}"
        label = "index" if where is None else f"--where {where!r}"
        return run_select(self._connection, sql, columns=self._columns, label=label)

    def floats(self, columns: Sequence[str], where: str | None = None) -> dict[str, Floats]:
        """Number columns as arrays, NaN for missing; read-only."""
        if (stored := self._as_stored(columns, where)) is not None:
            return parts.read_floats(self._files.by_kind["rollouts"], stored)
        table = self.table(columns, where)
        return {name: floats(table.column(name)) for name in columns}

    def _as_stored(
        self, columns: Sequence[str], where: str | None
    ) -> dict[str, tuple[str, pa.DataType]] | None:
        """The names and types of columns in the parts; None when some cannot be read from there as they are."""
        if where is not None or not self._is_plain or not self._stored.keys() >= set(columns):
            return None
        return {name: self._stored[name] for name in columns}

    @property
    def _is_plain(self) -> bool:
        """The rows of the parts are the rows that count, in their order."""
        return self._overlay.table is None

    @cached_property
    def _stored(self) -> dict[str, tuple[str, pa.DataType]]:
        return parts.stored_columns(self._fields, self._files.discovered("rollouts", "numbers"))

    def checked(self, where: str) -> str:
        """A user's expression over `rollouts`, in parentheses; raises when it is not one expression over known columns."""
        return check_where(self._connection, where, columns=self._columns, table="rollouts")

    def checked_order(self, sort: str) -> str:
        """A user's order, to be followed by more terms; raises when it is more than a list of terms."""
        return check_sort(self._connection, sort)

    def select(self, sql: str, *, label: str = "query") -> pa.Table:
        """One SELECT over `rollouts`, `tasks` and `failures`; messages call it `label` and suggest names near to wrong ones."""
        return run_select(self._connection, sql, columns=self._columns, label=label)

    def interrupt(self) -> None:
        """End the query that another thread runs on this index; that thread gets an error."""
        if "_base" in self.__dict__:
            self._base.interrupt()

    def verdicts_of(self, task: int, rollout: int) -> list[JsonFields]:
        """Later verdicts on one rollout, oldest first: verifier, reward and every number they gave."""
        if not self._files.count("verdicts"):
            return []
        found: list[JsonFields] = fetch(
            self._connection.cursor(),
            f"SELECT * FROM base_verdicts WHERE task = {int(task)} AND rollout = {int(rollout)} ORDER BY row",
        ).to_pylist()
        return found

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        """The lines of these rows, in the order asked, typed rollouts in the classic shape."""
        yield from map(classic_line, self._lines("rollouts", np.asarray(rows, dtype=np.int64)))

    def _lines(self, kind: Kind, rows: Ints) -> Iterator[bytes]:
        offsets, lengths = self._spans(kind)
        missing = int(((rows < 0) | (rows >= len(offsets))).sum())
        if missing:
            raise UsageError(f"{missing} of the rows asked for are not in the index")
        files = self._files.by_kind[kind]
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            owner = np.searchsorted([file.first_row for file in files], some, side="right") - 1
            for piece in np.split(np.arange(len(some)), np.flatnonzero(np.diff(owner)) + 1):
                mine = some[piece]
                spans = list(zip(offsets[mine].tolist(), lengths[mine].tolist(), strict=True))
                yield from read_spans(files[int(owner[piece[0]])].path, spans)

    def _spans(self, kind: Kind) -> tuple[Ints, Ints]:
        """Where each row begins in its file, and how long it is; remembered."""
        if kind not in self._spans_by_kind:
            found = parts.read_ints(self._files.by_kind[kind], "offset", "length")
            self._spans_by_kind[kind] = ints(found.column("offset")), ints(found.column("length"))
        return self._spans_by_kind[kind]

    @cached_property
    def _spans_by_kind(self) -> dict[Kind, tuple[Ints, Ints]]:
        return {}

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, JsonFields]]:
        """The task rows as sent, for those of `tasks` that the run has a row for."""
        for task, line in self.raw_task_rows(tasks):
            row: JsonFields = msgspec.json.decode(line)
            row[TASK_KEY] = task
            yield task, row

    def raw_task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The lines of task rows as sent, for those of `tasks` that the run has a row for."""
        places = self.task_places
        if places is None:
            return
        found, rows = places.rows(tasks)
        yield from zip(found.tolist(), self._lines("tasks", rows), strict=True)

    @cached_property
    def task_places(self) -> parts.TaskPlaces | None:
        """Where each task is in the run's tasks files; None when there are none."""
        if not self._views.has_tasks_file():
            return None
        return parts.task_places(self._files.by_kind["tasks"], self._overlay.renamed)

    def first_rows(self, tasks: Sequence[int], where: str | None = None) -> pa.Table:
        """The first row of each of these tasks (task, row), of those that an expression keeps, in the order of the file."""
        if self._is_plain or where is not None:
            known, first = self._first_rows(where)
            wanted = distinct(np.asarray(tasks, dtype=np.int64))
            place = np.searchsorted(known, wanted)
            place = place[known[np.minimum(place, len(known) - 1)] == wanted] if len(known) else place[:0]
            place = place[np.argsort(first[place])]
            return pa.table({"task": arrow_array(known[place]), "row": arrow_array(first[place])})
        return self._join(
            tasks,
            "SELECT r.task, min(r.row) AS row FROM rollouts r JOIN wanted w ON r.task = w.task GROUP BY 1 ORDER BY 2",
        )

    def _first_rows(self, where: str | None) -> tuple[Ints, Ints]:
        """The tasks, ascending, and the first row of each; remembered."""
        if where not in self._firsts:
            if where is None:
                self._firsts[where] = first_places(ints(self.table(["task"]).column(0)))
            else:
                found = self.table(["task", "row"], where, order_by="row")
                tasks, places = first_places(ints(found.column("task")))
                self._firsts[where] = tasks, ints(found.column("row"))[places]
        return self._firsts[where]

    @cached_property
    def _firsts(self) -> dict[str | None, tuple[Ints, Ints]]:
        return {}

    def inputs_per_task(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The tasks of NeMo Gym's materialized inputs and how often each is there; None when there are none."""
        places = self.task_places
        if places is None or not all(
            file.path == self.runs[file.file_no].materialized_inputs for file in self._files.by_kind["tasks"]
        ):
            return None
        return places.tasks[places.named > 0], places.named[places.named > 0]

    def _join(self, tasks: Sequence[int], sql: str) -> pa.Table:
        """Our own SQL with the distinct `tasks` as the table `wanted`."""
        cursor = self._connection.cursor()
        cursor.register("wanted", pa.table({"task": pa.array(sorted(set(tasks)), pa.int64())}))
        try:
            return fetch(cursor, sql)
        finally:
            cursor.unregister("wanted")


def _coded(kind: pa.DataType) -> pa.DataType:
    return parts.CODED if pa.types.is_string(kind) else kind


def _files_of(files: RunFiles) -> list[tuple[Kind, Path]]:
    """The files of a run that are there."""
    found: list[tuple[Kind, Path]] = [("rollouts", files.rollouts)]
    tasks = tasks_file(files)
    if tasks is not None:
        found.append(("tasks", tasks))
    others: list[tuple[Kind, Path]] = [("failures", files.failures), ("verdicts", files.verdicts)]
    return found + [(kind, path) for kind, path in others if path.is_file()]


# What the manifest says


class _RunFacts(NamedTuple):
    """What reading needs of a run's manifest; None for a run that rollforge did not collect."""

    created: float | None = None
    expected: int | None = None
    samples: int | None = None
    verifier: str | None = None
    """The verdict of record."""
    input_digest: str | None = None


def _run_facts(files: RunFiles) -> _RunFacts:
    """Values of an unexpected type count as missing: the manifest may be another tool's."""
    try:
        manifest = read_json(files.manifest, hint="delete it to read the rollouts alone")
    except FileNotFoundError:
        return _RunFacts()
    if not isinstance(manifest, dict):
        return _RunFacts()
    created, verifier, given = (manifest.get(name) for name in ("created", "verdict_of_record", "input"))
    return _RunFacts(
        created=created if isinstance(created, int | float) and created else None,
        expected=_whole(manifest.get("expected")),
        samples=_whole(manifest.get("samples")),
        verifier=str(verifier) if verifier else None,
        input_digest=str(given.get("digest")) if isinstance(given, dict) else None,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _run_numbers(facts: Sequence[_RunFacts]) -> list[int]:
    """Which run each file belongs to: files of one collection share a run, and so do files without a manifest."""
    created = [one.created for one in facts]
    return [created.index(one) if one else 0 for one in created]


# Keys by line


class LineKeys(NamedTuple):
    """The (task, rollout) of every row of a file, by line."""

    line: Ints
    task: Ints
    rollout: Ints

    @property
    def last(self) -> int:
        """The last line that is a row."""
        return int(self.line[-1]) if len(self.line) else 0

    def get(self, line: int) -> tuple[int, int] | None:
        """The (task, rollout) of the row in this line, counted from 1; None when there is none."""
        place = int(np.searchsorted(self.line, line))
        if place == len(self.line) or self.line[place] != line:
            return None
        return int(self.task[place]), int(self.rollout[place])


def line_keys(files: RunFiles) -> LineKeys:
    """The keys of a run's rollouts as the file is now, also of rows that a later one overrules.

    Readers of the text need it where rows do not carry their keys. A number of their own making would differ from the index's,
    and a verdict would be attached to another answer.
    """
    indexed = IndexedFiles()
    with ExitStack() as held:
        for kind, path in _files_of(files)[:2]:
            if kind in ("rollouts", "tasks"):
                cache = IndexCache(path, kind, files.index)
                index = cache.update()
                held.callback(index.release)
                indexed.add(kind, 0, path, cache.folder, index.state)
        rollouts = indexed.by_kind["rollouts"]
        keys = resolve(parts.rollout_keys(rollouts), parts.task_keys(indexed.by_kind["tasks"]))
        line = ints(parts.read_ints(rollouts, "line").column(0))
    return LineKeys(line, keys.local_task, keys.local_rollout)


def top_level_numbers(index: Index) -> list[str]:
    """The number columns that are not nested in the rows, in the order of `index.numbers`.

    A field of the row may have a dot in its own name. The index stores only names, so the first row with such a field decides.
    """
    names = index.name_by_column
    return [
        column
        for column in index.numbers
        if "." not in names[column] or _is_top_level(index, column, names[column])
    ]


def _is_top_level(index: Index, column: str, name: str) -> bool:
    if name.startswith(NESTED):
        return False
    found = index.select(f"select min(row) as row from rollouts where {quoted(column)} is not null")
    row = found.column("row")[0].as_py()
    return row is not None and name in split_line(next(index.read([row])))[0]
