"""This module opens a run as tables: `rollouts`, `tasks`, `failures`, over the parts and never over the text.

The parts are brought up to date first. What counts (the last of two rows with one key, the chosen verifier's verdict) is
decided here, so that every command sees the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from rollforge.index import parts
from rollforge.index.arrays import arrow_array, floats, ints
from rollforge.index.cache import Cache, OpenCache
from rollforge.index.fetching import Fetcher, PromptPlaces
from rollforge.index.fresh import Room
from rollforge.index.grammar import TABLES
from rollforge.index.kinds import Kind
from rollforge.index.overlay import Duplicate, Overlay, make_overlay
from rollforge.index.ranges import readers
from rollforge.index.scanned import BadLineAt
from rollforge.index.sources import read_manifest, tasks_file
from rollforge.index.sql import check_sort, check_where, fetch, literal, lock_down, quoted, run_select
from rollforge.index.tables import Sources
from rollforge.records import TASK_KEY, JsonObject
from rollforge.stats import Floats, Ints, distinct, first_places
from rollforge.store import RunFiles

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "256MB"
"""What DuckDB may hold before it spills to disk."""


class Index:
    """A run as tables. Close it, or use it in a `with` statement, to let go of its files."""

    def __init__(
        self,
        runs: Sequence[RunFiles],
        *,
        verifier: str | None = None,
        workers: int | None = None,
        opened: Mapping[Path, OpenCache] | None = None,
        room: Room | None = None,
    ) -> None:
        """`opened` are indexes of some rollouts files that were brought up to date before; there is still `room` for the others."""
        self.runs = list(runs)
        self.manifests = [read_manifest(files) for files in self.runs]
        self._held = ExitStack()
        self._caches: list[OpenCache] = []
        self._room = room or Room(0)
        self._sources = Sources()
        self._lines = Fetcher(self._sources)
        try:
            for number, files in enumerate(self.runs):
                for kind, path in _files(files):
                    begun = (opened or {}).get(path) if kind == "rollouts" else None
                    self._open(number, kind, path, files.index, workers, begun)
            self.readers = readers(sum(files.rollouts.stat().st_size for files in self.runs), workers)
            """Threads at once for what lets go of the interpreter: as many as read the text when the index was made."""
            self._overlay = self._make_overlay(verifier)
        except BaseException:
            self.close()
            raise

    @cached_property
    def _base(self) -> duckdb.DuckDBPyConnection:
        """The rows as they stand in the parts; made when SQL is first needed, because many profiles never do."""
        import duckdb

        for cache in self._caches:
            cache.settle()
        connection = duckdb.connect(":memory:")
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
        for kind in self._sources.by_kind:
            connection.execute(f"CREATE VIEW base_{kind} AS {self._sources.base_sql(kind)}")
        return connection

    @cached_property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        """The rows that count; from here on nothing but the parts can be read."""
        sources, connection = self._sources, self._base
        connection.execute(f"CREATE VIEW rollouts AS {sources.rollouts_sql(self._overlay)}")
        self._create_renamed()
        connection.execute(f"CREATE VIEW tasks AS {sources.tasks_sql(self._overlay)}")
        connection.execute(f"CREATE VIEW failures AS {sources.failures_sql(self._overlay)}")
        folders = sources.folders()
        connection.execute(f"SET temp_directory = {literal(str(folders[0] / 'spill'))}")
        lock_down(connection, [str(folder.resolve()) for folder in folders])
        return connection

    def _create_renamed(self) -> None:
        """The task numbers that mean another task in another file of the run, as a table."""
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

    def _make_overlay(self, verifier: str | None) -> Overlay:
        sources = self._sources
        of_record = (manifest.get("verdict_of_record") for manifest in self.manifests)
        return make_overlay(
            lambda: self._base,
            lambda: parts.keys(sources.by_kind["rollouts"]),
            lambda: parts.task_keys(sources.by_kind["tasks"]),
            are_keys_plain=lambda: parts.have_plain_keys(sources.by_kind["rollouts"]),
            runs=_run_numbers(self.manifests),
            folder=sources.folders()[0],
            state_digest=sources.digest(),
            has_verdicts=bool(sources.count("verdicts")),
            has_inline_reward="reward" in sources.discovered("rollouts", "numbers"),
            verdict_numbers=sources.discovered("verdicts", "numbers"),
            verdict_texts=sources.discovered("verdicts", "texts"),
            verifier=verifier or next((str(name) for name in of_record if name), None),
        )

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *failure: Any) -> None:
        if "_base" in self.__dict__:
            self._base.close()
        self._held.__exit__(*failure)

    def close(self) -> None:
        """Let go of the files; the index itself stays."""
        self.__exit__(None, None, None)

    def _open(
        self, number: int, kind: Kind, path: Path, folder: Path, workers: int | None, opened: OpenCache | None
    ) -> None:
        cache = Cache(path, kind, folder)
        found = opened or cache.open(workers, self._room)
        self._held.callback(found.close)
        self._caches.append(found)
        self._sources.add(kind, number, path, cache.folder, found)

    # What the run holds

    @property
    def verifier(self) -> str | None:
        """Whose verdicts count, when one was chosen."""
        return self._overlay.verifier

    @property
    def rejects(self) -> list[BadLineAt]:
        """Lines that are no rows, and rows with something odd, each with its place (`is_kept` tells them apart).

        Those of the rollouts first, then those of the tasks, failures and verdicts beside them.
        """
        return [
            msgspec.structs.replace(bad, file=str(source.path))  # it may have been indexed under another path
            for sources in self._sources.by_kind.values()
            for source in sources
            for bad in source.state.all_listed()
        ]

    @property
    def rejected_lines(self) -> int:
        """How many lines of the run's files are no rows."""
        return sum(self._sources.count(kind, "rejected") for kind in self._sources.by_kind)

    @property
    def noted_lines(self) -> int:
        """How many rows of the run's files count although something about them is odd."""
        return sum(self._sources.count(kind, "noted") for kind in self._sources.by_kind)

    @property
    def duplicates(self) -> list[Duplicate]:
        """Rows overruled by a later one with the same (task, rollout)."""
        return self._overlay.duplicates

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
        """Rollouts asked for per task, where that is one number: of several runs over the same tasks all that they were asked for."""
        samples = self._asked_for("samples")
        if not self._overlay.shifts:
            return samples[0] if len(set(samples)) == 1 else None
        inputs = {str((manifest.get("input") or {}).get("digest")) for manifest in self.manifests}
        return (sum(samples) or None) if len(inputs) == 1 else None

    def _asked_for(self, name: str) -> list[int]:
        """A number of each run's manifest, though a run may have been copied; nothing when a file has no such number."""
        by_run: dict[int, int] = {}
        for run, manifest in zip(_run_numbers(self.manifests), self.manifests, strict=True):
            if not isinstance(number := manifest.get(name), int):
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
        if not self._sources.count("failures"):
            return []
        # One file's failure may be another one's rollout: both go by the numbers of the whole run.
        number = self._sources.number_sql("rollouts", "base_rollouts.task")
        rollout = self._sources.rollout_sql("base_rollouts", self._overlay)
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
        return self._sources.fields(self._overlay)

    @cached_property
    def numbers(self) -> list[str]:
        """Discovered number columns of `rollouts`: `reward` first, then in order of appearance."""
        found = self._sources.with_verdicts("numbers", self._overlay)
        return [column for name, column in self._fields.items() if name in found]

    @cached_property
    def whole_numbers(self) -> frozenset[str]:
        """Those that every rollout is known to have; none where later verdicts or repeated rows decide what counts."""
        if not self._is_plain:
            return frozenset()
        rows, found = self._sources.count("rollouts"), self._sources.discovered("rollouts", "numbers")
        return frozenset(self._fields[name] for name, count in found.items() if count == rows)

    @cached_property
    def texts(self) -> list[str]:
        """Discovered text columns of `rollouts`."""
        numbers = {"reward": 0} | self._sources.with_verdicts("numbers", self._overlay)
        return [column for name, column in self._fields.items() if name not in numbers]

    @cached_property
    def name_by_column(self) -> dict[str, str]:
        """What the rows call a discovered column: `fields.turns` is their `turns`."""
        return {column: name for name, column in self._fields.items()}

    @property
    def mixed(self) -> dict[str, int]:
        """Number fields that are text in some rows, where they count as missing: name → how many."""
        numbers = self._sources.with_verdicts("numbers", self._overlay)
        return {
            name: count
            for name, count in self._sources.with_verdicts("texts", self._overlay).items()
            if name in numbers
        }

    def is_of_rows(self, name: str) -> bool:
        """Every value of this field is the rows' own: no later verdict brings it."""
        return self._is_plain or name not in {*self._overlay.numbers, *self._overlay.texts}

    def judged_later(self) -> Ints:
        """The rows for which a later verdict counts, not the one they came with."""
        if self._overlay.path is None or not self._overlay.has_verdicts:
            return np.zeros(0, dtype=np.int64)
        import pyarrow.parquet as pq  # only a run that was judged again waits for it

        found = pq.read_table(self._overlay.path, columns=["row"], filters=[("applies", "=", True)])
        return ints(found.column(0))

    def columns(self, table: str = "rollouts") -> list[str]:
        """Column names of `rollouts`, `tasks` or `failures`."""
        return self._sources.column_names(table, self._overlay)

    @cached_property
    def _columns(self) -> dict[str, list[str]]:
        return {table: self.columns(table) for table in TABLES}

    def __len__(self) -> int:
        """Rollouts that count."""
        return self._sources.count("rollouts") - self._overlay.duplicate_count

    @property
    def scratch(self) -> Path:
        """A folder for files that end with the process, on the disk that holds the index."""
        return self._sources.folders()[0]

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

        With `may_code`, texts come as numbers and a dictionary where that is how they are stored, which takes less of everything.
        """
        if (
            columns is not None
            and order_by is None
            and (stored := self._as_stored(columns, where)) is not None
        ):
            if may_code:
                stored = {name: (at, _coded(kind)) for name, (at, kind) in stored.items()}
            return parts.read_columns(self._sources.by_kind["rollouts"], stored)
        chosen = "*" if columns is None else ", ".join(quoted(name) for name in columns)
        sql = f"SELECT {chosen} FROM rollouts"
        if where is not None:
            sql += f" WHERE {self.checked(where)}"
        if order_by is not None or self._overlay.path is not None or len(self.runs) > 1:
            sql += f" ORDER BY {order_by or 'row'}"
        told = "index" if where is None else f"--where {where!r}"
        return run_select(self._connection, sql, columns=self._columns, told=told)

    def floats(self, columns: Sequence[str], where: str | None = None) -> dict[str, Floats]:
        """The same of number columns, as arrays in which NaN is missing; they may not be written to."""
        if (stored := self._as_stored(columns, where)) is not None:
            return parts.read_floats(self._sources.by_kind["rollouts"], stored)
        table = self.table(columns, where)
        return {name: floats(table.column(name)) for name in columns}

    def _as_stored(
        self, columns: Sequence[str], where: str | None
    ) -> dict[str, tuple[str, pa.DataType]] | None:
        """The names and types of columns that can be read from the parts as they stand there; None when not all can."""
        if where is not None or not self._is_plain or not self._stored.keys() >= set(columns):
            return None
        return {name: self._stored[name] for name in columns}

    @property
    def _is_plain(self) -> bool:
        """The rows of the parts are the rows that count, in their order."""
        return self._overlay.path is None

    @cached_property
    def is_at_hand(self) -> bool:
        """The columns of rollouts are in memory, because their index was just made: reading one again costs next to nothing."""
        sources = self._sources.by_kind["rollouts"]
        return self._is_plain and all(
            source.tables.keys() >= set(source.state.all_parts()) for source in sources
        )

    @cached_property
    def _stored(self) -> dict[str, tuple[str, pa.DataType]]:
        return parts.stored_names(self._fields, self._sources.discovered("rollouts", "numbers"))

    def checked(self, where: str) -> str:
        """A user's expression over `rollouts`, in parentheses; raises when it is not one expression over known columns."""
        return check_where(self._connection, where, columns=self._columns, table="rollouts")

    def checked_order(self, sort: str) -> str:
        """A user's order, to be followed by more terms; raises when it is more than a list of terms."""
        return check_sort(self._connection, sort)

    def select(self, sql: str, *, told: str = "query") -> pa.Table:
        """One SELECT over `rollouts`, `tasks` and `failures`; a wrong name is told with the nearest right ones.

        `told` is what the user knows the text as.
        """
        return run_select(self._connection, sql, columns=self._columns, told=told)

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        """The lines of these rows, in the order asked; neighbouring ones are read together."""
        yield from self._lines.lines("rollouts", np.asarray(rows, dtype=np.int64))

    def prompt_places(self, rows: Ints) -> PromptPlaces | None:
        """Where the prompts of these rows stand in the text; None when that is not known of all, or they are not in one plain file."""
        return self._lines.prompt_places(rows)

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, JsonObject]]:
        """The task rows as sent, for those of `tasks` that the run has a row for."""
        for task, line in self.raw_task_rows(tasks):
            row: JsonObject = msgspec.json.decode(line)
            row[TASK_KEY] = task
            yield task, row

    def raw_task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The same as lines, unread."""
        places = self.task_places
        if places is None:
            return
        found, rows = places.rows(tasks)
        yield from zip(found.tolist(), self._lines.lines("tasks", rows), strict=True)

    @cached_property
    def task_places(self) -> parts.TaskPlaces | None:
        """Where each task stands in the run's tasks files; None when there are none."""
        if not self._sources.has_tasks_file(self._overlay):
            return None
        return parts.task_places(self._sources.by_kind["tasks"], self._overlay.renamed)

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
        """The tasks, ascending, and the first row of each; remembered, because they are asked for a few tasks at a time."""
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
        """The tasks of NeMo Gym's materialized inputs and how often each stands there; None when there are none."""
        places = self.task_places
        if places is None or not all(
            source.path == self.runs[source.file_no].materialized_inputs
            for source in self._sources.by_kind["tasks"]
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


def _run_numbers(manifests: Sequence[JsonObject]) -> list[int]:
    """The run that each file is of, as a number: what rollforge began to collect at one time is one, a plain file is of the first."""
    begun = [manifest.get("created") for manifest in manifests]
    return [begun.index(one) if one else 0 for one in begun]


def _files(files: RunFiles) -> list[tuple[Kind, Path]]:
    found: list[tuple[Kind, Path]] = [("rollouts", files.rollouts)]
    tasks = tasks_file(files)
    if tasks is not None:
        found.append(("tasks", tasks))
    for kind, path in (("failures", files.failures), ("verdicts", files.verdicts)):
        if path.is_file():
            found.append((kind, path))  # type: ignore[arg-type]
    return found
