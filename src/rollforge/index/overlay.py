"""Decides which rows and verdicts count where the rows alone do not determine it: keys, duplicates, choice of verifier.

The decisions are stored as a small table beside the parts (one row per rollout that counts) and joined to them. A run whose rows
have unique keys and inline verdicts needs none. An overlay is only valid for the index builds it was made from.

Whose verdict counts: with a named verifier, its newest. Rows that it never judged are unjudged, not zero, and lack every other field
that verdicts bring, so that no mean mixes two verifiers. Without a name, the newest verdict of the verifier that gave the inline one,
and for rows without a reward the newest later verdict of any verifier: a verdict with a reward before one without, whichever is newer.
With `recorded` for a name, inline rewards stay as they are; the rest as without a name.
"""

from __future__ import annotations

import hashlib
import shlex
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa

from rollforge.errors import UsageError
from rollforge.index.arrow import arrow_array, codes, ints
from rollforge.index.identity import RowKeys, resolve
from rollforge.index.parts import (
    CODED,
    base_sql,
    is_intact,
    make_folder,
    read_columns,
    read_ints,
    rollout_keys,
    task_keys,
)
from rollforge.index.schema import literal, quoted, stored_name
from rollforge.index.state import IndexedFile, IndexedFiles, PartFile, checksum, encode_checked, read_checked
from rollforge.records import RECORDED
from rollforge.registry import did_you_mean
from rollforge.store import write_atomically

MAX_DUPLICATES = 10_000
"""Most duplicates that are listed; all of them are counted."""

KEPT = 8
"""Number of overlays kept beside the parts; the newest are kept."""

VERSION = 10
"""Raised when the decisions or their table change."""


class Duplicate(msgspec.Struct):
    """A row that does not count, because a later one has the same key."""

    row: int
    overruled_by: int
    task: int
    rollout: int
    file: str
    line: int


class Overlay(msgspec.Struct, kw_only=True):
    """The decisions about a run."""

    digest: str
    """Digest of its inputs, which identifies the file among other overlays."""
    table: PartFile | None = None
    """The table of decisions; None if all rows count unchanged."""
    verifier: str | None = None
    keeps_inline: bool = False
    """Whether no later verdict displaces an inline reward, not even one of the same verifier."""
    has_verdicts: bool = False
    numbers: list[str] = []
    """Number fields that come from verdicts."""
    texts: list[str] = []
    duplicates: list[Duplicate] = []
    duplicate_count: int = 0
    renamed: dict[int, dict[int, int]] = {}
    """Per file: numbers of tasks that conflict with an earlier file → their number in the whole run."""
    joins_tasks: bool = True
    """Whether task numbers of rollouts match those of the tasks files."""
    shifts: dict[int, int] = {}
    """Per file: offset added to its rollout numbers."""


def overlay_folder(files: IndexedFiles) -> Path:
    """Folder of a run's overlays."""
    return files.folders()[0] / "views"


def find_overlay(files: IndexedFiles, runs: Sequence[int], verifier: str | None) -> Overlay:
    """The overlay for these builds and this verifier, loaded or computed.

    Args:
        runs: run number of each rollouts file.
    """
    if verifier not in (None, RECORDED):
        _check_verifier(files, verifier)
    digest = hashlib.sha256(f"{files.digest()}/{verifier}/{runs}/{VERSION}".encode()).hexdigest()[:16]
    folder = overlay_folder(files)
    stored = folder / f"{digest}.json"
    overlay = read_checked(stored, Overlay)
    if (
        overlay is not None
        and overlay.digest == digest
        and (overlay.table is None or is_intact(folder, overlay.table))
    ):
        return overlay
    make_folder(folder)
    overlay = _made(files, runs, verifier, folder / f"{digest}.parquet", digest)
    write_atomically(stored, encode_checked(overlay))
    _sweep(folder)
    return overlay


def _made(files: IndexedFiles, runs: Sequence[int], verifier: str | None, path: Path, digest: str) -> Overlay:
    numbers = files.discovered("verdicts", "numbers")
    keeps_inline = verifier == RECORDED
    if keeps_inline:
        verifier = None
    overlay = Overlay(
        digest=digest,
        verifier=verifier,
        keeps_inline=keeps_inline,
        has_verdicts=bool(files.count("verdicts")) or verifier is not None,
        numbers=list(numbers),
        texts=[name for name in files.discovered("verdicts", "texts") if name not in numbers],
    )
    rollouts = files.by_kind["rollouts"]
    if not overlay.has_verdicts and _have_own_keys(rollouts):
        return overlay
    keys = resolve(rollout_keys(rollouts), task_keys(files.by_kind["tasks"]), runs)
    overlay.renamed, overlay.joins_tasks, overlay.shifts = keys.renamed, keys.joins_tasks, keys.shifts
    overlay.duplicate_count = int((keys.overruled_by != -1).sum())
    overlay.duplicates = _duplicates(files, keys) if overlay.duplicate_count else []
    if overlay.has_verdicts or not keys.is_plain:
        overlay.table = _write_table(files, keys, overlay, path)
    return overlay


def _have_own_keys(rollouts: Sequence[IndexedFile]) -> bool:
    """Whether all rows of a run have unique keys: a single file, or parts whose key ranges do not overlap."""
    if len({file.file_no for file in rollouts}) != 1 or not all(file.state.has_own_keys for file in rollouts):
        return False
    if len(rollouts) == 1:
        return True
    spans = [part.keys for file in rollouts for part in file.state.parts()]
    whole = sorted((span for span in spans if span is not None), key=lambda span: span.first)
    return len(whole) == len(spans) and all(one.last < two.first for one, two in pairwise(whole))


def _check_verifier(files: IndexedFiles, verifier: str) -> None:
    columns = {"verifier": ("verifier", CODED)}
    verifier_names = sorted(
        {
            name
            for kind in ("rollouts", "verdicts")
            for name in codes(read_columns(files.by_kind[kind], columns).column(0))[1]
        }
    )
    if verifier not in verifier_names:
        run = shlex.quote(str(files.by_kind["rollouts"][0].path)) if files.by_kind["rollouts"] else "RUN"
        sources = (
            f"verdicts are from: {', '.join(verifier_names)}"
            if verifier_names
            else "the run names no verifier"
        )
        raise UsageError(
            f"no verdict in this run is from {verifier!r}{did_you_mean(verifier, verifier_names)}",
            hint=f"{sources}; to get some: rollforge verify {run} --verifier {shlex.quote(verifier)}",
        )


def _duplicates(files: IndexedFiles, keys: RowKeys) -> list[Duplicate]:
    """The first overruled rows, with their location."""
    rollouts = files.by_kind["rollouts"]
    line = ints(read_ints(rollouts, "line").column(0))
    first_rows = [file.first_row for file in rollouts]
    return [
        Duplicate(
            row=int(keys.row[position]),
            overruled_by=int(keys.overruled_by[position]),
            task=int(keys.task[position]),
            rollout=int(keys.rollout[position]),
            file=str(rollouts[bisect_right(first_rows, int(keys.row[position])) - 1].path),
            line=int(line[position]),
        )
        for position in np.flatnonzero(keys.overruled_by != -1)[:MAX_DUPLICATES].tolist()
    ]


def _write_table(files: IndexedFiles, keys: RowKeys, overlay: Overlay, path: Path) -> PartFile:
    """The decisions as Parquet: one row per rollout that counts."""
    import duckdb  # most commands need no SQL, and it is slow to import

    counts = keys.overruled_by == -1
    names = ("row", "file", "local_task", "local_rollout", "task", "rollout")
    table = pa.table({name: arrow_array(getattr(keys, name)[counts]) for name in names})
    partial = path.with_name(f"{uuid4().hex}.tmp")
    with duckdb.connect(":memory:") as connection:
        connection.register("kept_rows", table)
        sql = "SELECT row, task, rollout FROM kept_rows"
        if overlay.has_verdicts:
            for kind in ("rollouts", "verdicts"):
                connection.execute(f"CREATE VIEW base_{kind} AS {base_sql(files, kind)}")
            sql = _verdict_sql(overlay, has_inline_reward="reward" in files.discovered("rollouts", "numbers"))
        connection.execute(f"COPY ({sql} ORDER BY 1) TO {literal(str(partial))} (FORMAT parquet)")
    data = partial.read_bytes()
    partial.replace(path)
    return PartFile(path.name, int(counts.sum()), len(data), checksum(data))


def _verdict_sql(overlay: Overlay, *, has_inline_reward: bool) -> str:
    """SQL for each row that counts with its later verdict, if any."""
    columns = [stored_name("n", name) for name in overlay.numbers]
    columns += [stored_name("t", name) for name in overlay.texts]
    later = "".join(f", v.{quoted(column)}" for column in columns)
    chosen = f"WHERE verifier = {literal(overlay.verifier)}" if overlay.verifier else ""
    column = quoted(stored_name("n", "reward"))
    reward = f"b.{column}" if has_inline_reward else "NULL"
    has_reward = f"v.{column} IS NOT NULL" if "reward" in overlay.numbers else "false"
    newest_first = '"at" DESC NULLS LAST, row DESC'
    newest = (
        f"SELECT * FROM base_verdicts {chosen} QUALIFY row_number() OVER "
        f"(PARTITION BY file_no, task, rollout, verifier ORDER BY {newest_first}) = 1"
    )
    # One from before the rollout began is about an answer that was made again since.
    is_own = 'coalesce(v.verifier = b.verifier AND NOT coalesce(v."at" < b.started, false), false)'
    if overlay.keeps_inline:
        is_own = "false"
    if overlay.verifier:
        applies = f"v.row IS NOT NULL OR b.verifier IS DISTINCT FROM {literal(overlay.verifier)}"
        first_choice = ""
    else:
        applies = f"v.row IS NOT NULL AND ({reward} IS NULL OR {is_own})"
        first_choice = (
            f" QUALIFY row_number() OVER (PARTITION BY k.row ORDER BY "
            f"CASE WHEN {reward} IS NULL THEN {has_reward} ELSE {is_own} END DESC, "
            'v."at" DESC NULLS LAST, v.row DESC) = 1'
        )
    return (
        f"WITH newest AS ({newest}) "
        f"SELECT k.row, k.task, k.rollout, ({applies}) AS applies, v.verifier, v.fingerprint, v.mode, "
        f"v.seconds AS verify_seconds{later} "
        "FROM kept_rows k JOIN base_rollouts b ON b.row = k.row "
        "LEFT JOIN newest v ON v.file_no = k.file AND v.task = k.local_task AND v.rollout = k.local_rollout"
        f"{first_choice}"
    )


def _sweep(folder: Path) -> None:
    """Remove old overlays."""
    stored = sorted(folder.glob("*.json"), key=lambda path: path.lstat().st_mtime, reverse=True)
    for path in stored[KEPT:]:
        path.unlink(missing_ok=True)
        path.with_suffix(".parquet").unlink(missing_ok=True)
