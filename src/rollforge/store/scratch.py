"""Temporary directories whose names contain their owner, so that the next process can remove those of a killed one.

The owner is machine and process namespace (as a digest), process number and start time. The start time distinguishes processes
with the same number. Directories of other users, machines or boots are never touched.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path

PREFIX = "rollforge"
PRIVATE_UIDS = range(1 << 30, 1 << 31)
"""User ids that root gives to confined programs; directories of such users were made by root."""

_NAME = re.compile(rf"{PREFIX}-[a-z]+-(?P<machine>[0-9a-f]{{8}})-(?P<pid>\d+)-(?P<start>\d+)-\w+")
_cleaned: set[str] = set()


def make_scratch(kind: str) -> Path:
    """Make an empty directory that only this user may enter; the first call also removes directories of killed processes."""
    root = Path(tempfile.gettempdir())
    owner = _machine(), _start_of(os.getpid())
    if None in owner:
        return Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{kind}-"))
    if str(root) not in _cleaned:
        _cleaned.add(str(root))
        remove_orphans(root)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{kind}-{owner[0]}-{os.getpid()}-{owner[1]}-"))


def remove_orphans(root: Path) -> int:
    """Remove this user's directories whose process has ended; return how many."""
    machine, count = _machine(), 0
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            name = _NAME.fullmatch(entry.name)
            if name is None or name["machine"] != machine or not _is_ours(entry):
                continue
            if _start_of(int(name["pid"])) != name["start"]:
                remove_scratch(Path(entry.path))
                count += 1
    return count


def remove_scratch(root: Path) -> None:
    """Delete a directory and its contents, even if a program removed permissions; follows no links.

    Permissions are changed only inside the directory, because its parent, such as /tmp, is shared.
    """

    def make_writable(function: object, path: str, _: object) -> None:
        with contextlib.suppress(OSError):
            if not Path(path).is_symlink():
                if Path(path) != root:
                    Path(path).parent.chmod(0o700)
                Path(path).chmod(0o700)
            if callable(function):
                function(path)

    shutil.rmtree(root, onerror=make_writable)
    shutil.rmtree(root, ignore_errors=True)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    try:
        about = entry.stat(follow_symlinks=False)
    except OSError:
        return False
    is_owner = about.st_uid == os.geteuid() or (os.geteuid() == 0 and about.st_uid in PRIVATE_UIDS)
    return is_owner and stat.S_ISDIR(about.st_mode)


def _machine() -> str | None:
    """Identity of this boot and of the namespace of process numbers; None if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115  (no file is there to resolve)
    except OSError:
        return None
    return hashlib.sha256(boot + space.encode()).hexdigest()[:8]


def _start_of(pid: int) -> str | None:
    """Start time of a process in ticks since boot; None if it does not exist or is a zombie."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if not fields or fields[0] in ("Z", "X") else fields[19]
