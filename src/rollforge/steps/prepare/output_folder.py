"""The folder that a dataset is written into: hidden beside the target, moved into place when everything is complete.

A new target appears in one rename. An earlier dataset and the new one swap names atomically, and the old one is then removed, so
the target never mixes both and is never missing. If the system cannot swap, the old one is renamed away before the new one is
renamed in, and after a kill in between the next preparation restores or cleans up. A folder with foreign files is refused.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollforge.errors import RollforgeError, UsageError
from rollforge.steps.prepare import lineage
from rollforge.steps.prepare.dataset_manifest import NAME, read_manifest
from rollforge.store import RunFiles
from rollforge.store.atomic import make_directory, sync_directory, sync_file

BESIDE = (NAME, "README.md", lineage.NAME, lineage.FATES, "dataset_info.json")
"""Names of files beside the data."""

_HERE, _EXCHANGE = -100, 2
"""Linux constants for renameat2: paths relative to the working directory, and atomic exchange."""


class OutputFolder:
    """The hidden folder; it is deleted if its context ends without `settle`."""

    def __init__(self, target: Path) -> None:
        self._target = target.resolve()  # a link to a dataset stays a link
        if self._target == Path.cwd():
            raise UsageError(
                f"{target} is where you stand", hint="give the dataset a folder of its own: -o DIR"
            )
        self.path = self._target.with_name(f".{self._target.name}.partial-{os.getpid()}")
        self._old = self._target.with_name(f".{self._target.name}.old-{os.getpid()}")

    def __enter__(self) -> OutputFolder:
        make_directory(self._target.parent)
        self._sweep()
        if self._target.is_file():
            raise UsageError(
                f"{self._target} is a file; prepare writes a folder", hint="name a folder: -o data/NAME"
            )
        if self._target.is_dir():
            _refuse_others(self._target)
        self.path.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._sweep()

    def settle(self) -> None:
        """Give the folder its final name."""
        for file in self.path.iterdir():
            with file.open("rb") as opened:
                sync_file(opened.fileno())
        sync_directory(self.path)
        if self._target.exists():
            shutil.copymode(self._target, self.path)
            if _exchange(self.path, self._target):
                sync_directory(self._target.parent)
                return  # the old dataset is now the hidden folder, which goes when the context ends
            self._target.rename(self._old)
        self.path.rename(self._target)
        sync_directory(self._target.parent)

    def _sweep(self) -> None:
        """Restore an earlier dataset that was not replaced; delete the remains of this and killed preparations."""
        for old in self._left("old"):
            if not self._target.exists():
                old.rename(self._target)
        for left in self._left("old") + self._left("partial"):
            shutil.rmtree(left, ignore_errors=True)

    def _left(self, what: str) -> list[Path]:
        """Hidden folders of this preparation and of ended ones."""
        start = f".{self._target.name}.{what}-"
        return [
            path
            for path in self._target.parent.iterdir()
            if path.name.startswith(start) and not path.is_symlink() and _is_left(path)
        ]


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folder names atomically; False if the system or the file system does not support it."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except AttributeError:  # not Linux, or an old one
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _is_left(folder: Path) -> bool:
    """Whether the process in the folder's name is this one, or has ended."""
    process = folder.name.rpartition("-")[2]
    return not process.isdigit() or int(process) == os.getpid() or not Path(f"/proc/{process}").exists()


def _refuse_others(target: Path) -> None:
    """Raise if the folder contains anything but a dataset, since it would be lost."""
    if not os.access(target, os.W_OK):
        raise UsageError(f"{target} is read-only", hint="choose another folder with -o")
    present = {path.name for path in target.iterdir()}
    ours: set[str] = set()
    if NAME in present:
        files = [file.path for file in read_manifest(target / NAME).files]
        ours = {*BESIDE, *files, *(RunFiles(target / file).index.name for file in files)}
    if others := sorted(present - ours):
        raise UsageError(
            f"{target} holds files that no manifest names ({', '.join(others[:5])})",
            hint="choose another folder with -o; a prepared dataset has its own",
        )


@contextmanager
def reporting_disk_errors(out: Path) -> Iterator[None]:
    """Report full and read-only disks as such; no incomplete dataset is left."""
    try:
        yield
    except OSError as error:
        raise RollforgeError(
            f"{out}: cannot be written: {error.strerror or error}",
            hint="nothing was left behind; make room, or choose -o DIR",
        ) from error
