"""Protects files that no output may replace: inputs of the command, files of a run, and rollouts of any tool.

Rollouts are irreplaceable and cost days. Other files (a report, a table, a task file) may be overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.records import PARAMS_KEY
from rollforge.store.files import RunFiles, file_stem

OWN_DATA = ("", "_tasks", "_failures", "_verdicts", "_rf_verdicts", "_calls", "_labels", "_batches", "_run")
"""Suffixes of the files that make up a run; other files can be regenerated."""

LOOK_BYTES = 1 << 20
"""Bytes of a first line that are read; rollouts with longer lines are recognised by their beginning."""

_LONG_ROLLOUT = re.compile(rb'"(response|responses_create_params)"\s*:\s*\{')


def refuse_output(path: str | Path, *, reads: Iterable[str | Path] = (), flag: str = "-o") -> None:
    """Raise if a file to be written exists and may not be replaced.

    Args:
        reads: runs and files that the same command reads.
        flag: the option that named the file, for the message.
    """
    hint = f"choose another file with {flag}"
    path = Path(path)
    if not path.is_file():
        return
    for source in reads:
        if any(_is_same(path, file) for file in (Path(source), RunFiles(source).rollouts)):
            raise UsageError(f"{path} is what this command reads and is not written over", hint=hint)
    if belongs_to_run(path):
        raise UsageError(f"{path} belongs to a run and is not written over", hint=hint)
    if holds_rollouts(path):
        raise UsageError(f"{path} holds rollouts and is not written over", hint=f"{hint}, or move it away")


def belongs_to_run(path: Path) -> bool:
    """Whether a manifest beside the file lists it as part of a run."""
    stem = file_stem(path)
    stems = [stem.removesuffix(ending) for ending in OWN_DATA if stem.endswith(ending)]
    return any(path.with_name(f"{one}_run.json").is_file() for one in stems)


def holds_rollouts(path: Path) -> bool:
    """Whether the file's first line is a rollout of any tool."""
    try:
        line = _first_line(path)
    except OSError:
        return False
    try:
        row = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return len(line) == LOOK_BYTES and _LONG_ROLLOUT.search(line) is not None
    if not isinstance(row, dict):
        return False
    has_answer = isinstance(row.get("response"), dict) or "completion" in row or "trajectory" in row
    return has_answer and ("reward" in row or PARAMS_KEY in row)


def _first_line(path: Path) -> bytes:
    if path.suffix not in (".gz", ".zst"):
        with path.open("rb") as file:
            return file.readline(LOOK_BYTES)
    import pyarrow as pa  # only a compressed file needs it

    with pa.input_stream(str(path), compression="detect") as stream:
        data: bytes = stream.read(LOOK_BYTES)
    return data.partition(b"\n")[0]


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False
