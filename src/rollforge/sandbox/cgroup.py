"""A control group (cgroup v2) for each sandboxed program: kernel-enforced limits over all its processes together.

Used where this process may make groups with the controllers `memory` and `pids`: as root on a host, or where systemd or a
container delegates them. Elsewhere only limits per process and the watch on resident memory apply. The program enters its group
before it is executed, so no process is ever outside.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from functools import lru_cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
_NEEDED = {"memory", "pids"}
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
_END_S = 2.0


class ControlGroup:
    """The control group of one program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entering(self, command: list[str]) -> list[str]:
        """A command that joins the group and then runs `command`."""
        return ["/bin/sh", "-c", _ENTER, str(self.folder), *command]

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the group for its memory use."""
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (self.folder / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def end(self) -> None:
        """Kill all remaining processes in the group and remove it."""
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        while self.folder.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.01)


def make_group(*, memory_bytes: int, processes: int, parent: Path | None = None) -> ControlGroup | None:
    """A group with these limits; None if groups cannot be made here."""
    parent = parent or usable_parent()
    if parent is None:
        return None
    folder = parent / f"rollforge-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    try:
        folder.mkdir()
        (folder / "pids.max").write_text(str(processes))
        if memory_bytes:
            (folder / "memory.max").write_text(str(memory_bytes))
            (folder / "memory.oom.group").write_text("1")
            with contextlib.suppress(OSError):  # a kernel without swap accounting
                (folder / "memory.swap.max").write_text("0")
    except OSError:
        ControlGroup(folder).end()
        return None
    return ControlGroup(folder)


@lru_cache(maxsize=1)
def usable_parent() -> Path | None:
    """The directory in which groups can be made, tested by making one."""
    try:
        own = own_group(Path("/proc/self/cgroup").read_text())
    except OSError:
        return None
    return None if own is None else find_parent(ROOT / own)


def own_group(text: str) -> str | None:
    """This process's cgroup path from `/proc/self/cgroup`; None without cgroup v2."""
    for line in text.splitlines():
        if line.startswith("0::/"):
            return line[4:]
    return None


def find_parent(own: Path) -> Path | None:
    """This process's group or its parent, if both controllers are delegated to children and a trial group can be made."""
    for folder in (own, own.parent):
        try:
            handed = set((folder / "cgroup.subtree_control").read_text().split())
        except OSError:
            continue
        if handed >= _NEEDED:
            trial = make_group(memory_bytes=1 << 30, processes=8, parent=folder)
            if trial is not None:
                trial.end()
                return folder
    return None
