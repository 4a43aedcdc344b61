"""This module answers a question in SQL about a run, as an Arrow table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from rollforge.index import open_index


def query_run(
    runs: str | Path | Sequence[str | Path],
    sql: str,
    *,
    verifier: str | None = None,
    workers: int | None = None,
) -> pa.Table:
    """The result of one SELECT over the tables `rollouts`, `tasks` and `failures`; it can read nothing else."""
    with open_index(runs, verifier=verifier, workers=workers) as index:
        return index.select(sql)
