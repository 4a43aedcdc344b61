"""DuckDB connections over the parts of an index, with bounded memory and without access to other files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from rollforge.index import parts
from rollforge.index.arrow import arrow_array
from rollforge.index.overlay import Overlay
from rollforge.index.schema import literal
from rollforge.index.state import IndexedFiles
from rollforge.index.user_sql import lock_down
from rollforge.index.views_sql import Views

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "256MB"
"""DuckDB's memory limit before it spills to disk."""
SMALL_MEMORY = "64MB"
"""Memory limit in a long-running server; larger sorts and joins spill to disk."""


def connect(
    files: IndexedFiles, overlay: Overlay, views: Views, *, is_small: bool
) -> duckdb.DuckDBPyConnection:
    """A connection with the tables `rollouts`, `tasks` and `failures`, which can read nothing but the index.

    With `is_small`, SQL takes little memory and one thread.
    """
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute(f"SET memory_limit = '{SMALL_MEMORY if is_small else MEMORY_LIMIT}'")
    if is_small:
        connection.execute("SET threads = 1")
        connection.execute("SET allocator_flush_threshold = '4MB'")  # return freed memory at once
    for kind in files.by_kind:
        connection.execute(f"CREATE VIEW base_{kind} AS {parts.base_sql(files, kind)}")
    connection.execute(f"CREATE VIEW rollouts AS {views.rollouts()}")
    _create_renamed(connection, overlay)
    connection.execute(f"CREATE VIEW tasks AS {views.tasks()}")
    connection.execute(f"CREATE VIEW failures AS {views.failures()}")
    folders = files.folders()
    connection.execute(f"SET temp_directory = {literal(str(folders[0] / 'spill'))}")
    lock_down(connection, [str(folder.resolve()) for folder in folders])
    return connection


def _create_renamed(connection: duckdb.DuckDBPyConnection, overlay: Overlay) -> None:
    """Create the table that renumbers tasks whose number means another task in an earlier file of the run."""
    renamed = [
        (file, local, task) for file, named in overlay.renamed.items() for local, task in named.items()
    ]
    columns = zip(*renamed, strict=True) if renamed else ((), (), ())
    names = ["file_no", "local", "task"]
    numbers = pa.table([arrow_array(np.array(column, dtype=np.int64)) for column in columns], names=names)
    connection.register("task_numbers", numbers)
    connection.execute("CREATE TABLE renamed AS SELECT * FROM task_numbers")
    connection.unregister("task_numbers")
