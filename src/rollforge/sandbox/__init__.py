"""This module runs Python that nobody has read, in a process that can do little harm.

With bubblewrap the program has no network, no environment, no view of the home directory or of other
processes, a read-only system (the interpreter and its packages), one scratch directory in memory, and limits
on CPU time, memory, file size, open files and processes; everything it started dies with it. Run by root, it
also gets a user id of its own.

Where bubblewrap is missing or not allowed, only the limits, the empty environment and (for root, where the
interpreter can be read by others) the user id remain: the program can then reach the network and read what
its user may read. `require` refuses that; the kind in use is in `Sandbox.kind`.

It does not stop: a hole in the kernel; timing and other side channels; use of the limits to the full (so many
processes times so much memory); a program that reads the installed packages.
"""

from __future__ import annotations

import logging
import marshal
import os
import random
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.sandbox.bubblewrap import confinements, python, python_inside
from rollforge.sandbox.confined import Confined, SandboxReply

__all__ = ["WEAKER", "Confined", "Kind", "Limits", "Mode", "Sandbox", "SandboxReply", "find_bubblewrap"]

logger = logging.getLogger(__name__)

Mode = Literal["auto", "require", "off"]
"""`auto` takes bubblewrap if it works, `require` refuses to go without, `off` does not use it."""

Kind = Literal["bubblewrap", "limits"]
"""What holds the program: namespaces and limits, or limits alone."""

WEAKER = "they can reach the network, read what their user may read, and see other processes"
"""What limits alone do not stop."""

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""All the program sees of an environment; one thread for numpy, since threads count as processes."""

# Runs first inside: gives up the user id, sets the limits for good, then runs the code from the pipe.
_BOOTSTRAP = """
import os, sys, marshal, resource as r
inside, outside, uid, cpu, memory, file, files, processes = map(int, sys.argv[1:9])
if uid:
    os.setgroups([])
    try:
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    except OSError:  # a container may know no user ids as high
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
def limit(kind, value):
    hard = r.getrlimit(kind)[1]
    value = value if hard == r.RLIM_INFINITY else min(value, hard)
    r.setrlimit(kind, (value, value))
for kind, value in (
    (r.RLIMIT_CORE, 0), (r.RLIMIT_CPU, cpu), (r.RLIMIT_AS, memory), (r.RLIMIT_FSIZE, file),
    (r.RLIMIT_NOFILE, files), (r.RLIMIT_NPROC, processes), (r.RLIMIT_STACK, min(memory // 2, 1 << 30)),
):
    if value or kind == r.RLIMIT_CORE:
        limit(kind, value)
def read(size):
    parts = []
    while size:
        part = os.read(inside, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
def receive():
    return read(int.from_bytes(read(8), "big"))
def send(data):
    data = memoryview(len(data).to_bytes(8, "big") + data)
    while data:
        data = data[os.write(outside, data):]
sys.path += sys.argv[9:]
given = {"__name__": "runner", "receive": receive, "send": send, "pipes": (inside, outside)}
exec(marshal.loads(receive()), given)
"""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a program may use."""

    cpu_seconds: int = 60
    """CPU time of each of its processes."""
    memory_bytes: int = 2 << 30
    """Address space of each of its processes."""
    file_bytes: int = 64 << 20
    """Largest file it may write; its scratch directory holds as much in all."""
    open_files: int = 128
    """Files open at once, per process."""
    processes: int = 32
    """Processes and threads at once; without bubblewrap limited only where root gives it a user of its own."""
    output_bytes: int = 16 << 20
    """Bytes it may print, and the longest message it may send."""


class Sandbox:
    """A way to confine programs that was tried and works here."""

    def __init__(self, mode: Mode = "auto", *, packages: bool = True) -> None:
        """Find out what works.

        Args:
            mode: Whether bubblewrap is wanted, asked for, or not to be used.
            packages: Let programs import the installed packages (read-only), as numpy.

        Raises:
            UsageError: bubblewrap is required and does not work.
        """
        self._site = _site_packages() if packages else None
        found = _Found() if mode == "off" else find_bubblewrap()
        self._prefix, why = found.prefix, found.why_not
        self._drops_user = os.geteuid() == 0 and (self._prefix is not None or _can_drop_user())
        self._counts_processes = found.counts_processes if self._prefix else self._drops_user
        if self._prefix is None and mode == "require":
            raise UsageError(
                f"the sandbox is required, and bubblewrap does not work here: {why}",
                hint="install it (apt-get install bubblewrap), or allow limits alone: sandbox=auto",
            )
        if self._prefix is None and mode == "auto":
            logger.warning(
                "programs run with limits only%s, network and files in reach: bubblewrap does not work (%s)",
                " and as root" if os.geteuid() == 0 and not self._drops_user else "",
                why,
            )
        self.kind: Kind = "limits" if self._prefix is None else "bubblewrap"

    def start(self, code: CodeType, limits: Limits) -> Confined:
        """Run `code` inside; it finds `receive()`, `send(bytes)` and `pipes` among its globals."""
        to_read, from_us = os.pipe()
        from_it, to_write = os.pipe()
        uid = random.SystemRandom().randrange(1 << 30, 1 << 31) if self._drops_user else 0
        scratch = None if self._prefix else tempfile.mkdtemp(prefix="rollforge-scratch-")
        if scratch and uid:
            os.chown(scratch, uid, uid)
        try:
            process = subprocess.Popen(
                self._command(limits, to_read, to_write, uid),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(to_read, to_write),
                env=_ENVIRONMENT,
                cwd=scratch or "/",
                start_new_session=True,
            )
        except BaseException:
            os.close(from_us)
            os.close(from_it)
            raise
        finally:
            os.close(to_read)
            os.close(to_write)
        confined = Confined(process, from_us, from_it, limits.output_bytes, scratch)
        confined.begin(marshal.dumps(code))
        return confined

    def _command(self, limits: Limits, to_read: int, to_write: int, uid: int) -> list[str]:
        numbers = (
            to_read,
            to_write,
            uid,
            limits.cpu_seconds,
            limits.memory_bytes,
            limits.file_bytes,
            limits.open_files,
            limits.processes if self._counts_processes else 0,
        )
        command = ["-I", "-S", "-B", "-X", "utf8", "-c", _BOOTSTRAP, *map(str, numbers)]
        if self._prefix is None:
            return [str(python()), *command, *([self._site] if self._site else [])]
        scratch = ["--perms", "1777", "--size", str(limits.file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
        site = ["--ro-bind", self._site, "/packages"] if self._site else []
        inside = [python_inside(), *command, *(["/packages"] if self._site else [])]
        return [*self._prefix, *scratch, *site, "--", *inside]


def _site_packages() -> str:
    """Where the installed packages are, found by one that is always there."""
    import msgspec as known

    return str(Path(known.__file__).resolve().parents[1])


class _Found(msgspec.Struct, frozen=True):
    """Which bubblewrap command works here, if any."""

    prefix: list[str] | None = None
    counts_processes: bool = False
    """Whether the limit on processes counts only the program's own; older kernels count all of the user's."""
    why_not: str = ""


@lru_cache(maxsize=1)
def find_bubblewrap() -> _Found:
    """The command that confines, once it was seen to work; else why not."""
    why_not = "no bwrap in PATH"
    for prefix in confinements():
        for counts_processes in (True, False):
            why_not = _why_not(prefix, counts_processes)
            if not why_not:
                return _Found(prefix, counts_processes)
    return _Found(why_not=why_not)


@lru_cache(maxsize=1)
def _can_drop_user() -> bool:
    """Whether another user can run the interpreter, which is not so when it stands in root's home."""
    return not _why_not(None, counts_processes=True)


_PROBE = compile(
    "import os, colorsys\nif not os.fork(): os._exit(0)\nos.wait()\nsend(b'works')", "<probe>", "exec"
)


def _why_not(prefix: list[str] | None, counts_processes: bool) -> str:
    """Nothing when a program that imports and forks once runs under the prefix; else what went wrong."""
    candidate = object.__new__(Sandbox)
    candidate._prefix, candidate._site = prefix, None
    candidate._drops_user, candidate._counts_processes = os.geteuid() == 0, counts_processes
    with candidate.start(_PROBE, Limits()) as confined:
        reply = confined.wait(20.0)
        if reply.message == b"works":
            return ""
        confined.wait(0.2)
        return confined.errors.strip().rpartition("\n")[2] or f"a trial run came to nothing ({reply.ended})"
