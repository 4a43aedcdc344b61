"""Finds runs by path, folder or glob."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import glob, has_magic
from itertools import chain
from pathlib import Path

from rollforge.errors import UsageError
from rollforge.registry import did_you_mean
from rollforge.store.files import RunFiles, file_stem

ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".jsonl.zst")
MANIFEST = "manifest.json"
"""Of a prepared dataset; it has no rows."""
SIBLINGS = (
    "_tasks", "_failures", "_verdicts", "_rf_verdicts", "_repeat_level_metrics",
    "_materialized_inputs", "_reward_profiling", "_run", "_agent_metrics",
    "_aggregate_metrics", "_metrics", "_experiences", "_eval", ".rejects",
)  # fmt: skip
"""Suffixes of sibling files, which a glob over a folder matches too."""
MOST_NAMED = 5
"""Most runs of a folder that an error lists."""


def find_runs(runs: str | Path | Sequence[str | Path]) -> list[RunFiles]:
    """The runs that paths, folders and globs refer to, in the given order; raises if one does not exist."""
    patterns = [runs] if isinstance(runs, str | Path) else list(runs)
    run_by_path: dict[Path, RunFiles] = {}
    for item in patterns:
        for path in _expand(item):
            files = RunFiles(path)
            if not files.rollouts.is_file() and not files.is_sharded:
                raise UsageError(_missing(item, files), hint=what_is_there(Path(item)))
            refuse_devices(files)
            run_by_path.setdefault(files.rollouts.resolve(), files)
    if not run_by_path:
        raise UsageError(
            f"{', '.join(map(str, patterns)) or 'no run given'}: no such file",
            hint="give a rollouts file, its folder, or a glob in quotes",
        )
    return list(run_by_path.values())


def refuse_devices(files: RunFiles) -> None:
    """Raise if a file of the run is a device, a pipe or a link to one: reading it may never end.

    Raises:
        UsageError: naming the first.
    """
    for path in chain(files.files_read(), _files_below(files.index), _files_below(files.shards)):
        with suppress(OSError):
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UsageError(f"{path} is a device or a pipe, not a file", hint="move it out of the run")


def _files_below(folder: Path) -> Iterator[Path]:
    """Everything below a folder but regular files and folders, which are skipped without a call of `stat`."""
    for where, _, _ in os.walk(folder):
        with suppress(OSError), os.scandir(where) as entries:
            yield from (
                Path(entry.path)
                for entry in entries
                if not entry.is_file(follow_symlinks=False) and not entry.is_dir(follow_symlinks=False)
            )


def _expand(item: str | Path) -> list[Path]:
    path = Path(item)
    if path.exists() or not has_magic(str(item)):
        return [path]
    matches = [Path(match) for match in sorted(glob(str(item), recursive=True))]  # noqa: PTH207  (Path.glob takes no absolute pattern)
    run_paths = [match for match in matches if _is_run(match)]
    if not run_paths:
        raise UsageError(
            f"{item}: nothing matches", hint="list the folder, or give the path without wildcards"
        )
    return run_paths


def _is_run(path: Path) -> bool:
    """Whether a match is a rollouts file or a folder with one, rather than a sibling or an index."""
    if path.is_dir():
        files = RunFiles(path)
        return files.rollouts.is_file() or files.is_sharded
    if path.name == MANIFEST:
        return False
    if path.suffix == ".json" and any(folder.name.endswith("_index") for folder in path.parents):
        return False
    return path.name.endswith(ENDINGS) and not file_stem(path).endswith(SIBLINGS)


def _missing(item: str | Path, files: RunFiles) -> str:
    if Path(item).is_dir():
        return f"{item}: there is no {files.rollouts.name} in this folder"
    return f"{files.rollouts}: no such file{near_run(item)}"


def near_run(item: str | Path) -> str:
    """A clause such as `; did you mean 'runs/first'?` for a missing run; empty if no name is similar."""
    path = Path(item)
    prefix = str(path).removesuffix(path.name)
    return did_you_mean(path.name, [run.name for run in runs_in(path.parent)], prefix=prefix)


def what_is_there(item: Path, inside: list[Path] | None = None) -> str:
    """Next step for a folder that is no run: the runs in it, if there are any; `inside`: those that the command reads."""
    inside = runs_in(item) if inside is None else inside
    if not inside:
        return "give a rollouts file, or the folder it is in"
    shown = ", ".join(map(str, inside[:MOST_NAMED])) + (", …" if len(inside) > MOST_NAMED else "")
    return f"give one of the runs in it: {shown}"


def runs_in(folder: Path) -> list[Path]:
    """Rollouts files and run folders in a folder; none if the folder does not exist."""
    try:
        return [path for path in sorted(folder.iterdir()) if _is_run(path)]
    except OSError:
        return []


def tasks_file(files: RunFiles) -> Path | None:
    """The tasks file: rollforge's, else NeMo Gym's materialized inputs."""
    for path in (files.tasks, files.materialized_inputs):
        if path.is_file():
            return path
    return None
