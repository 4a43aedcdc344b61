"""This module finds the files of a run, or of several read as one: paths, folders, globs, and each one's siblings."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

import msgspec

from rollforge.errors import DataError, UsageError
from rollforge.records import JsonObject
from rollforge.store import RunFiles

ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".jsonl.zst")
SIBLINGS = ("_tasks", "_failures", "_verdicts", "_materialized_inputs", "_reward_profiling")
"""What a glob over a folder also matches, and is no rollouts file."""


def find_runs(runs: str | Path | Sequence[str | Path]) -> list[RunFiles]:
    """The runs meant by paths, folders and globs, in the order given; raises when one of them is not there."""
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    found: dict[Path, RunFiles] = {}
    for item in given:
        for path in _expand(item):
            files = RunFiles(path)
            if not files.rollouts.is_file():
                raise UsageError(_missing(item, files), hint="give a rollouts file, or the folder it is in")
            found.setdefault(files.rollouts.resolve(), files)
    if not found:
        raise UsageError(f"{', '.join(map(str, given)) or 'no run given'}: no such file")
    return list(found.values())


def _expand(item: str | Path) -> list[Path]:
    path = Path(item)
    if path.exists() or not has_magic(str(item)):
        return [path]
    matches = [Path(match) for match in sorted(glob(str(item), recursive=True))]  # noqa: PTH207  (Path.glob takes no absolute pattern)
    kept = [match for match in matches if match.is_dir() or _is_rollouts(match)]
    if not kept:
        raise UsageError(f"{item}: nothing matches")
    return kept


def _is_rollouts(path: Path) -> bool:
    stem = path.name.split(".")[0]
    return path.name.endswith(ENDINGS) and not stem.endswith(SIBLINGS) and not path.name.endswith("_run.json")


def _missing(item: str | Path, files: RunFiles) -> str:
    if Path(item).is_dir():
        return f"{item}: there is no {files.rollouts.name} in this folder"
    return f"{files.rollouts}: no such file"


def tasks_file(files: RunFiles) -> Path | None:
    """The tasks as sent: rollforge's file, else NeMo Gym's materialized inputs."""
    stem = files.rollouts.name.split(".")[0]
    for path in (files.tasks, files.rollouts.with_name(f"{stem}_materialized_inputs.jsonl")):
        if path.is_file():
            return path
    return None


def read_manifest(files: RunFiles) -> JsonObject:
    """`rollouts_run.json`, or nothing for a run that rollforge did not collect."""
    try:
        manifest = msgspec.json.decode(files.manifest.read_bytes())
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise DataError(f"{files.manifest}: {error}", hint="delete it to read the rollouts alone") from error
    return manifest if isinstance(manifest, dict) else {}
