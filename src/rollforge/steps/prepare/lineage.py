"""Lineage: which rollouts are behind each row, and how to find them from `FILE:LINE`.

The sidecar `lineage.parquet` has one row per example with its file, its line (from 1), its run, task, rollout, reward, verifier
and line in the run; a pair also has the rejected rollout. It is a separate file, because an extra column in the rows would affect
some loaders.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from rollforge.errors import UsageError
from rollforge.index import arrow_array, arrow_floats, arrow_texts
from rollforge.recipes.base import Ints
from rollforge.statistics.counts import count_of
from rollforge.steps.prepare.dataset_manifest import NAME as MANIFEST
from rollforge.steps.prepare.dataset_manifest import find_run, read_manifest
from rollforge.steps.prepare.dataset_plan import DatasetPlan
from rollforge.steps.prepare.describe import later_fates
from rollforge.steps.prepare.rollout_pool import Pool
from rollforge.steps.prepare.sequences import SEQUENCE, sequences_of
from rollforge.steps.prepare.write_rows import Written
from rollforge.store.lineage_table import lineage_batches

NAME = "lineage.parquet"
FATES = "fates.parquet"
"""File with the reason for each rollout that is in no row."""


class Origin(msgspec.Struct, frozen=True):
    """The rollout behind a row."""

    run: str
    task: int | None
    rollout: int | None
    reward: float | None
    verifier: str | None = None
    source_line: int | None = None
    """Line in the rollouts file, from 1; it identifies rows without task or rollout number."""


class Lineage(msgspec.Struct, frozen=True):
    """The rollouts behind a dataset line: a single one, or the chosen and the rejected one."""

    file: str
    line: int
    origins: list[Origin]


def write_lineage(folder: Path, written: Written, plan: DatasetPlan, pool: Pool, runs: list[str]) -> None:
    """Write the lineage file of these dataset files."""
    import pyarrow.parquet as pq

    numbers = written.numbers
    lines = np.concatenate([np.arange(1, len(file.examples) + 1) for file in written.files])
    codes = np.repeat(np.arange(len(written.files)), [len(file.examples) for file in written.files])
    names = arrow_texts([file.name for file in written.files])
    columns = {"file": _coded(codes, names), "line": arrow_array(lines)}
    picks = plan.selection.picks[numbers]
    sides = [("", picks)] if picks.ndim == 1 else [("", picks[:, 0]), ("rejected_", picks[:, 1])]
    run_names = arrow_texts(runs)
    if SEQUENCE in plan.selection.values:
        columns[SEQUENCE] = arrow_array(sequences_of(plan.selection, numbers))
    for prefix, positions in sides:
        task, rollout = pool.task[positions], pool.rollout[positions]
        reward, verifier = pool.candidates.reward[positions], pool.verifiers.codes[positions]
        columns[f"{prefix}source_line"] = arrow_array(pool.line[positions])
        columns[f"{prefix}run"] = _coded(pool.run[positions], run_names)
        columns[f"{prefix}task"] = arrow_array(task, task < 0)
        columns[f"{prefix}rollout"] = arrow_array(rollout, rollout < 0)
        columns[f"{prefix}reward"] = arrow_floats(reward)
        columns[f"{prefix}verifier"] = _coded(verifier, arrow_texts(pool.verifiers.names))
    pq.write_table(pa.table(columns), folder / NAME)


def write_fates(
    folder: Path, plan: DatasetPlan, pool: Pool, runs: list[str], numbers: Ints, lost: Mapping[int, str]
) -> None:
    """Write why each rollout without a row was dropped; nothing for a recipe that reports only counts."""
    import pyarrow.parquet as pq

    if plan.selection.fate_of is None:
        return
    codes, reasons = later_fates(plan.selection, pool.candidates.group, numbers, lost)
    left = np.flatnonzero(codes)
    task, rollout = pool.task[left], pool.rollout[left]
    columns = {
        "run": _coded(pool.run[left], arrow_texts(runs)),
        "task": arrow_array(task, task < 0),
        "rollout": arrow_array(rollout, rollout < 0),
        "source_line": arrow_array(pool.line[left]),
        "fate": _coded(codes[left], arrow_texts(reasons)),
    }
    pq.write_table(pa.table(columns), folder / FATES)


def _coded(codes: Ints, names: pa.Array) -> pa.DictionaryArray:
    """A dictionary-encoded text column from codes; null for a negative code."""
    return pa.DictionaryArray.from_arrays(arrow_array(codes.astype(np.int32), codes < 0), names)


def trace(address: str) -> Lineage:
    """The rollouts behind `FILE:LINE` of a prepared dataset.

    Raises:
        UsageError: the file has no lineage file, or no such line.
    """
    import pyarrow.compute as pc

    name, _, number = address.rpartition(":")
    if not name or not number.isdigit():
        raise UsageError(f"{address!r} is not FILE:LINE", hint=f"for example {address.rstrip(':')}:1")
    path, line = Path(name), int(number)
    if not path.is_file():
        files = (
            [file.path for file in read_manifest(path.parent).files]
            if (path.parent / MANIFEST).is_file()
            else []
        )
        beside = ", ".join(str(path.parent / file) for file in files)
        raise UsageError(f"{path}: no such file", hint=f"give {beside or 'a file of a prepared dataset'}")
    sidecar = path.parent / NAME
    if not sidecar.is_file():
        raise UsageError(f"{path}: there is no {NAME} beside it", hint="it is written by rollforge prepare")
    rows, last = [], 0
    for table in lineage_batches(sidecar, ("file", "line", "run")):
        own = table.filter(pc.field("file") == path.name)
        last = max(last, pc.max(own["line"]).as_py() or 0)
        rows += own.filter(pc.field("line") == line).to_pylist()
    if not rows:
        raise UsageError(
            f"{path} has no line {line}: its lineage has {count_of(last, 'line')}",
            hint=f"give a line from 1 to {last}: {path}:{last}" if last else "prepare the dataset again",
        )
    row = rows[0]
    prefixes = [prefix for prefix in ("", "rejected_") if row.get(f"{prefix}run") is not None]
    for prefix in prefixes:
        row[f"{prefix}run"] = find_run(row[f"{prefix}run"], path)
    return Lineage(
        path.name,
        line,
        [
            Origin(
                *(
                    row.get(prefix + key)
                    for key in ("run", "task", "rollout", "reward", "verifier", "source_line")
                )
            )
            for prefix in prefixes
        ],
    )
