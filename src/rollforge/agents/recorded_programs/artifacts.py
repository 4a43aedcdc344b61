"""Files that a program leaves behind: its result, the artifacts to keep, and a working directory made safe to read.

Everything in it is the program's: links are never followed, what is no plain file is not kept, sizes are bounded.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from rollforge.json_shapes import ArtifactJson
from rollforge.store import write_atomically
from rollforge.text_safety.outgoing import outgoing_bytes

MAX_RESULT_BYTES = 1 << 20
MOST_ARTIFACTS = 1000
MOST_FILES = 100_000
"""Most files of a working directory that are examined."""


def read_result(path: Path) -> str | None:
    """The text that the program wrote to ROLLFORGE_RESULT; None if it wrote nothing, or no plain file."""
    data = _read_plain(path, MAX_RESULT_BYTES)
    return None if data is None else data.decode("utf-8", "replace")


def make_safe(work: Path) -> None:
    """Remove links that lead out of the directory, and every entry that is no file, directory or link."""
    root = work.resolve()
    for path in _walk(work):
        with contextlib.suppress(OSError):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                if not path.resolve().is_relative_to(root):
                    path.unlink()
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                path.unlink()


def keep_artifacts(
    work: Path, globs: Iterable[str], folder: Path, most_bytes: int, *, matched: set[str]
) -> list[ArtifactJson]:
    """Copy the files that match the globs into the run, named by hash; a file that is too large is listed but not kept. Globs
    that match a file are added to `matched`.
    """
    path_by_name: dict[str, Path] = {}
    for glob in globs:
        for path in sorted(work.glob(glob)):
            if len(path_by_name) >= MOST_ARTIFACTS:
                break
            if _is_plain(work, path):
                path_by_name[path.relative_to(work).as_posix()] = path
                matched.add(glob)
    artifacts: list[ArtifactJson] = []
    left = most_bytes
    for name, path in sorted(path_by_name.items()):
        data = _read_plain(path, left)
        if data is None:
            with contextlib.suppress(OSError):
                size = path.lstat().st_size
                artifacts.append(
                    {"path": name, "bytes": size, "sha256": None, "file": None, "error": "too large"}
                )
            continue
        left -= len(data)
        data = outgoing_bytes(data)  # as it will be written: the hash is that of the kept file
        digest = hashlib.sha256(data).hexdigest()
        target = folder / digest[:2] / digest
        if not target.exists():
            write_atomically(target, data)
        stored = f"{folder.name}/{digest[:2]}/{digest}"
        artifacts.append({"path": name, "bytes": len(data), "sha256": digest, "file": stored})
    return artifacts


def _is_plain(work: Path, path: Path) -> bool:
    """Whether the path is a plain file inside the directory, reached without links."""
    try:
        parents = [parent for parent in path.parents if parent.is_relative_to(work)]
        return stat.S_ISREG(path.lstat().st_mode) and not any(parent.is_symlink() for parent in parents)
    except OSError:
        return False


def _read_plain(path: Path, most: int) -> bytes | None:
    """The bytes of a plain file up to a size limit; None for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.EACCES, errno.ENXIO, errno.ENOTDIR):
            return None
        raise
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        data = file.read(most + 1)
    return data if len(data) <= most else None


def _walk(work: Path) -> Iterator[Path]:
    count = 0
    for folder, names, files in os.walk(work, followlinks=False):
        for name in (*names, *files):
            count += 1
            if count > MOST_FILES:
                return
            yield Path(folder) / name
