"""This module keeps half-made files out of sight: a hidden folder beside the target, moved into place when all is whole.

A target that does not exist appears in one rename. An earlier data set there is replaced file by file, its stale files removed, its
manifest last. Files that rollforge did not write are never touched.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollforge.errors import RollforgeError, UsageError
from rollforge.steps.prepare.manifest import NAME, read_manifest

COMPANIONS = ("dataset_info.json",)
"""What exporters write beside the data; of an earlier data set it would describe files that are gone."""


class Place:
    """The hidden folder; on leaving without `settle` it is gone."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.folder = target.parent / f".{target.name}.partial-{os.getpid()}"
        self._earlier: list[str] = []
        if target.is_file():
            raise UsageError(f"{target} is a file; prepare writes a folder")
        if target.is_dir():
            self._earlier = _earlier_files(target)

    def __enter__(self) -> Place:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._sweep()
        self.folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        """Begin again with an empty folder."""
        for path in self.folder.iterdir():
            path.unlink()

    def settle(self, data_files: list[str]) -> None:
        """Give everything in the folder its final name."""
        for name in data_files:
            with (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())
        if not self._target.exists():
            self.folder.rename(self._target)
            return
        names = sorted((path.name for path in self.folder.iterdir()), key=lambda name: name == NAME)
        for name in set(self._earlier) - set(names):
            (self._target / name).unlink(missing_ok=True)
        for name in names:
            (self.folder / name).replace(self._target / name)

    def _sweep(self) -> None:
        """Remove what killed preparations of this target left."""
        for left in self._target.parent.glob(f".{self._target.name}.partial-*"):
            process = left.name.rpartition("-")[2]
            if not process.isdigit() or int(process) == os.getpid() or not Path(f"/proc/{process}").exists():
                shutil.rmtree(left, ignore_errors=True)


def _earlier_files(target: Path) -> list[str]:
    """Files of the data set that is there; raises when the folder holds something else that would be mixed with ours."""
    present = [path.name for path in target.iterdir()]
    if not present:
        return []
    if NAME not in present:
        raise UsageError(
            f"{target} holds files that no manifest names ({', '.join(sorted(present)[:5])})",
            hint="choose another folder with -o; a prepared data set has its own",
        )
    return [file.path for file in read_manifest(target / NAME).files] + [
        name for name in COMPANIONS if name in present
    ]


@contextmanager
def naming_the_place(out: Path) -> Iterator[None]:
    """A full or read-only disk is told as what it is; nothing half-made is left."""
    try:
        yield
    except OSError as error:
        raise RollforgeError(
            f"{out}: cannot be written: {error.strerror or error}",
            hint="nothing was left behind; make room, or choose -o DIR",
        ) from error
