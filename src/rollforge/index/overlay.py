"""This module decides what counts where the rows alone do not say: keys, duplicates, and whose verdict.

The decisions are stored as a small table beside the parts (one row per rollout that counts) and joined to them; a run whose rows
carry unique keys and inline verdicts needs none. It is keyed to the builds it was made from.

Whose verdict counts: the named verifier's newest (rows it never judged are unjudged, not zero, and lack every other field that
verdicts bring: no mean mixes two verifiers); with no name, the inline verdict,
and for rows without one the newest later verdict of any verifier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa

from rollforge.errors import UsageError
from rollforge.index.keys import Keys, resolve
from rollforge.index.kinds import stored_name
from rollforge.index.sql import literal, quoted
from rollforge.registry import did_you_mean

if TYPE_CHECKING:
    import duckdb

MAX_DUPLICATES = 10_000
KEPT = 8
"""Overlays kept beside the parts, newest first."""


class Duplicate(msgspec.Struct):
    """A row that does not count, because a later one has the same key."""

    row: int
    overruled_by: int
    task: int
    rollout: int
    file: str
    line: int


class Overlay(msgspec.Struct, kw_only=True):
    """What was decided, and how it is joined to the rows."""

    path: str | None = None
    """The table of decisions, or None when the rows stand as they are."""
    verifier: str | None = None
    has_verdicts: bool = False
    numbers: list[str] = []
    """Numbers that verdicts bring."""
    texts: list[str] = []
    duplicates: list[Duplicate] = []
    duplicate_count: int = 0
    renamed: dict[int, dict[int, int]] = {}
    """Per file, of several, the task numbers that mean another task elsewhere, each with the one it has here."""
    joins_tasks: bool = True
    """The rows name the tasks by the numbers that the tasks files have."""
    shifts: dict[int, int] = {}
    """Per file, of several runs, what is added to the numbers of its rollouts."""

    def join(self) -> str:
        """The join that brings the decisions to the rows `b`."""
        if self.path is None:
            return ""
        return f"JOIN read_parquet({literal(self.path)}, hive_partitioning = false) o ON b.row = o.row"

    def fixed(self, name: str) -> str:
        """The SQL for a fixed column."""
        if self.path and name in ("task", "rollout"):
            return f"o.{name}"
        if self.path and self.has_verdicts and name in ("verifier", "fingerprint", "mode", "verify_seconds"):
            return f"CASE WHEN o.applies THEN o.{name} ELSE b.{name} END"
        return f"b.{quoted(name)}"

    def value(self, prefix: str, name: str, is_in_rows: bool) -> str:
        """The SQL for a discovered column: the verdict's value where one applies, else the row's."""
        inline = f"b.{quoted(stored_name(prefix, name))}" if is_in_rows else "NULL"
        if not self.path or not self.has_verdicts or name not in {"reward", *self.numbers, *self.texts}:
            return inline
        known = self.numbers if prefix == "n" else self.texts
        later = f"o.{quoted(stored_name(prefix, name))}" if name in known else "NULL"
        is_one_verifiers = name == "reward" or self.verifier is not None
        kept = later if is_one_verifiers else f"coalesce({later}, {inline})"
        return f"CASE WHEN o.applies THEN {kept} ELSE {inline} END"


def make_overlay(
    connect: Callable[[], duckdb.DuckDBPyConnection],
    read_keys: Callable[[], pa.Table],
    read_task_keys: Callable[[], pa.Table],
    *,
    are_keys_plain: Callable[[], bool],
    runs: Sequence[int],
    folder: Path,
    state_digest: str,
    has_verdicts: bool,
    has_inline_reward: bool,
    verdict_numbers: dict[str, int],
    verdict_texts: dict[str, int],
    verifier: str | None,
) -> Overlay:
    """The overlay for these builds and this verifier, made now or found beside the parts."""
    if verifier is not None:
        _check_verifier(connect(), verifier)
    digest = hashlib.sha256(f"{state_digest}/{verifier}/{runs}/5".encode()).hexdigest()[:16]
    stored = folder / "views" / f"{digest}.json"
    try:
        overlay = msgspec.json.decode(stored.read_bytes(), type=Overlay)
        if overlay.path is None:
            return overlay
        overlay.path = str(stored.with_suffix(".parquet").resolve())  # the run may have been copied since
        if Path(overlay.path).is_file():
            return overlay
    except (OSError, msgspec.DecodeError):
        pass
    overlay = Overlay(
        verifier=verifier,
        has_verdicts=has_verdicts or verifier is not None,
        numbers=list(verdict_numbers),
        texts=[name for name in verdict_texts if name not in verdict_numbers],
    )
    stored.parent.mkdir(parents=True, exist_ok=True)
    if overlay.has_verdicts or not are_keys_plain():
        keys = resolve(read_keys(), read_task_keys(), runs)
        overlay.renamed, overlay.joins_tasks, overlay.shifts = keys.renamed, keys.joins_tasks, keys.shifts
        _note_duplicates(connect, keys, overlay)
        if not keys.is_plain or overlay.has_verdicts:
            overlay.path = str(stored.with_suffix(".parquet").resolve())
            _write(connect(), keys, overlay, has_inline_reward=has_inline_reward)
    partial = stored.with_name(f"{uuid4().hex}.tmp")
    partial.write_bytes(msgspec.json.encode(overlay))
    partial.replace(stored)
    _sweep(stored.parent)
    return overlay


def _check_verifier(connection: duckdb.DuckDBPyConnection, verifier: str) -> None:
    known = [
        name
        for (name,) in connection.execute(
            "SELECT DISTINCT verifier FROM (SELECT verifier FROM base_rollouts UNION ALL SELECT verifier FROM base_verdicts) "
            "WHERE verifier IS NOT NULL ORDER BY 1"
        ).fetchall()
    ]
    if verifier not in known:
        said = f"verdicts are from: {', '.join(known)}" if known else "the run names no verifier"
        raise UsageError(
            f"no verdict in this run is from {verifier!r}{did_you_mean(verifier, known)}",
            hint=f"{said}; to get some: rollforge verify RUN --verifier {verifier}",
        )


def _note_duplicates(connect: Callable[[], duckdb.DuckDBPyConnection], keys: Keys, overlay: Overlay) -> None:
    places = np.flatnonzero(keys.overruled_by >= 0)
    overlay.duplicate_count = len(places)
    if not len(places):
        return
    places = places[:MAX_DUPLICATES]
    connection = connect()
    connection.register("overruled", pa.table({"row": keys.row[places], "place": places}))
    found = connection.execute(
        "SELECT w.place, b.file, b.line FROM base_rollouts b JOIN overruled w ON b.row = w.row ORDER BY w.place"
    ).fetchall()
    connection.unregister("overruled")
    overlay.duplicates = [
        Duplicate(
            int(keys.row[place]),
            int(keys.overruled_by[place]),
            int(keys.task[place]),
            int(keys.rollout[place]),
            file,
            line,
        )
        for place, file, line in found
    ]


def _write(
    connection: duckdb.DuckDBPyConnection, keys: Keys, overlay: Overlay, *, has_inline_reward: bool
) -> None:
    """The decisions as Parquet: one row per rollout that counts."""
    counts = keys.overruled_by < 0
    table = pa.table(
        {
            name: getattr(keys, name)[counts]
            for name in ("row", "file", "local_task", "local_rollout", "task", "rollout")
        }
    )
    connection.register("kept_rows", table)
    assert overlay.path is not None
    partial = Path(overlay.path).with_name(f"{uuid4().hex}.tmp")
    sql = (
        _verdict_sql(overlay, has_inline_reward=has_inline_reward)
        if overlay.has_verdicts
        else "SELECT row, task, rollout FROM kept_rows"
    )
    connection.execute(f"COPY ({sql} ORDER BY 1) TO {literal(str(partial))} (FORMAT parquet)")
    connection.unregister("kept_rows")
    partial.replace(overlay.path)


def _verdict_sql(overlay: Overlay, *, has_inline_reward: bool) -> str:
    """Each kept row with the verdict that counts, if one from the verdicts file does."""
    columns = [stored_name("n", name) for name in overlay.numbers]
    columns += [stored_name("t", name) for name in overlay.texts]
    later = "".join(f", v.{quoted(column)}" for column in columns)
    chosen = f"WHERE verifier = {literal(overlay.verifier)}" if overlay.verifier else ""
    inline = "b.verifier"
    reward = 'b."n:reward"' if has_inline_reward else "NULL"
    applies = (
        f"v.row IS NOT NULL OR {inline} IS DISTINCT FROM {literal(overlay.verifier)}"
        if overlay.verifier
        else f"v.row IS NOT NULL AND {reward} IS NULL"
    )
    return (
        f"WITH newest AS (SELECT * FROM base_verdicts {chosen} QUALIFY row_number() OVER "
        '(PARTITION BY file_no, task, rollout ORDER BY "at" DESC NULLS LAST, row DESC) = 1) '
        f"SELECT k.row, k.task, k.rollout, ({applies}) AS applies, v.verifier, v.fingerprint, v.mode, "
        f"v.seconds AS verify_seconds{later} "
        "FROM kept_rows k JOIN base_rollouts b ON b.row = k.row "
        "LEFT JOIN newest v ON v.file_no = k.file AND v.task = k.local_task AND v.rollout = k.local_rollout"
    )


def _sweep(folder: Path) -> None:
    stored = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in stored[KEPT:]:
        path.unlink(missing_ok=True)
        path.with_suffix(".parquet").unlink(missing_ok=True)
