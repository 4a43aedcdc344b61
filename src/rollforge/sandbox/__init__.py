"""Confines untrusted Python programs.

With bubblewrap a program has no network, no environment, no view of the home directory, the working directory or other processes,
a read-only system (libraries, the interpreter, its packages), one scratch directory in memory, and limits on CPU time, memory,
file size, open files and processes. It cannot create user namespaces. All its child processes are killed with it. Started by
root, it gets a user id of its own.

Without bubblewrap programs are refused, unless the user asks for `off`. Then a program has the same limits, an empty environment
and no inherited files; if the kernel supports it, Landlock blocks TCP and all files but the system's; a seccomp filter is set;
and programs started by root get a user id of their own, or lose all capabilities if another user cannot run the interpreter.
`Sandbox.weakness` describes what remains possible.

Not prevented by any mode: a hole in the kernel, timing and other side channels, a program that reads the installed packages.
"""

from __future__ import annotations

import marshal
import os
import random
import subprocess
import tempfile
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.sandbox import bootstrap
from rollforge.sandbox.bubblewrap import (
    confinements,
    holds_private,
    python,
    python_files,
    python_inside,
    system_paths,
)
from rollforge.sandbox.cgroup import make_group
from rollforge.sandbox.confined import Confined, SandboxReply
from rollforge.sandbox.seccomp import seccomp_filter
from rollforge.store.scratch import PRIVATE_UIDS, make_scratch, remove_scratch

__all__ = ["Confined", "Limits", "Mode", "Sandbox", "SandboxKind", "SandboxReply", "find_bubblewrap"]

Mode = Literal["auto", "require", "off"]
"""`auto` and `require` confine with bubblewrap or refuse to run; `off` runs programs with limits only."""

SandboxKind = Literal["bubblewrap", "limits"]
"""How programs are confined: with namespaces and limits, or with limits only."""

INSTALL_HINT = (
    "install it (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap) and allow user namespaces; "
    "--sandbox off runs programs with limits only"
)

_ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The complete environment of a program. numpy gets one thread, since threads count as processes."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a program."""

    cpu_seconds: int = 60
    """CPU time of each of its processes."""
    memory_bytes: int = 2 << 30
    """Address space of each of its processes."""
    total_memory_bytes: int = 4 << 30
    """Resident memory of all its processes together, measured ten times a second; 0 for no limit."""
    file_bytes: int = 64 << 20
    """Size limit of a file that it writes, and of its scratch directory as a whole."""
    open_files: int = 128
    """Files open at once, per process."""
    processes: int = 32
    """Processes and threads at a time. Without bubblewrap, enforced only if root gives the program its own user."""
    output_bytes: int = 16 << 20
    """Bytes that it may print, and size limit of a message."""


OWN_PROCESSES = 4
"""Number of the sandbox's own processes (shell, bubblewrap, reaper) inside a program's control group."""


class Sandbox:
    """A tested way to confine programs on this machine."""

    def __init__(self, mode: Mode = "auto", *, packages: bool = True) -> None:
        """Determine by trial runs which confinement works here.

        Args:
            mode: `off` for limits only; the other modes need bubblewrap.
            packages: Let programs import the installed packages (read-only), as numpy.

        Raises:
            UsageError: bubblewrap does not work, and the mode is not `off`.
        """
        self._site = _site_packages() if packages else None
        trial = _Trial() if mode == "off" else find_bubblewrap()
        if trial.prefix is None and mode != "off":
            raise UsageError(
                f"untrusted programs are not run without a sandbox, and bubblewrap does not work here: {trial.why_not}",
                hint=INSTALL_HINT,
            )
        self._prefix = trial.prefix
        self._drops_user = os.geteuid() == 0 and (self._prefix is not None or _can_drop_user())
        self._counts_processes = trial.counts_processes if self._prefix else self._drops_user
        self.kind: SandboxKind = "limits" if self._prefix is None else "bubblewrap"

    @property
    def weakness(self) -> str | None:
        """What programs can do without bubblewrap; None with bubblewrap."""
        if self._prefix is not None:
            return None
        files = (
            "they can reach the network"
            if hides_files()
            else "they can reach the network, read every file that their user may read (the tasks with their expected outputs too)"
        )
        user = " and run as root" if os.geteuid() == 0 and not self._drops_user else ""
        return f"{files}, see other processes{user}"

    def start(self, code: CodeType, limits: Limits) -> Confined:
        """Run `code` in the sandbox; its globals include `receive()`, `send(bytes)` and `pipes`."""
        to_read, from_us = os.pipe()
        from_it, to_write = os.pipe()
        uid = random.SystemRandom().choice(PRIVATE_UIDS) if self._drops_user else 0
        scratch = None if self._prefix else str(make_scratch("scratch"))
        filter_file = _filter_file() if self._prefix is not None else None
        group = make_group(memory_bytes=limits.total_memory_bytes, processes=limits.processes + OWN_PROCESSES)
        command = self._command(limits, to_read, to_write, uid, scratch, filter_file)
        try:
            with ExitStack() as undo:  # no descriptor leaks
                undo.callback(os.close, from_us)
                undo.callback(os.close, from_it)
                if group is not None:
                    undo.callback(group.end)
                if scratch:
                    undo.callback(remove_scratch, Path(scratch))
                    if uid:
                        os.chown(scratch, uid, uid)
                process = subprocess.Popen(
                    group.entering(command) if group is not None else command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=[fd for fd in (to_read, to_write, filter_file) if fd is not None],
                    env=_ENVIRONMENT,
                    cwd=scratch or "/",
                    start_new_session=True,
                )
                undo.pop_all()
        finally:
            os.close(to_read)
            os.close(to_write)
            if filter_file is not None:
                os.close(filter_file)
        confined = Confined(
            process,
            from_us,
            from_it,
            output_bytes=limits.output_bytes,
            total_memory_bytes=limits.total_memory_bytes,
            scratch=scratch,
            uid=uid if scratch else 0,
            group=group,
        )
        confined.begin(marshal.dumps(code))
        return confined

    def _command(
        self,
        limits: Limits,
        to_read: int,
        to_write: int,
        uid: int,
        scratch: str | None,
        filter_file: int | None,
    ) -> list[str]:
        settings: dict[str, object] = {
            "pipes": (to_read, to_write),
            "uid": uid,
            "limits": _rlimits(limits, counts_processes=self._counts_processes),
            "restrict": scratch is not None,
        }
        words = ["-I", "-S", "-B", "-X", "utf8", "-c", _bootstrap_source()]
        if self._prefix is None:
            settings["path"] = [self._site] if self._site else []
            settings["seccomp"] = seccomp_filter()
            settings["readable"] = [str(path) for path in _readable_paths(self._site)]
            settings["writable"] = [scratch, "/dev/null"]
            return [str(python()), *words, marshal.dumps(settings, 4).hex()]
        settings["path"] = ["/packages"] if self._site else []
        room = ["--perms", "1777", "--size", str(limits.file_bytes), "--tmpfs", "/tmp", "--chdir", "/tmp"]
        site = ["--ro-bind", self._site, "/packages"] if self._site else []
        filters = ["--seccomp", str(filter_file)] if filter_file is not None else []
        inside = [python_inside(), *words, marshal.dumps(settings, 4).hex()]
        return [*self._prefix, *room, *site, *filters, "--", *inside]


def _rlimits(limits: Limits, *, counts_processes: bool) -> list[tuple[str, int]]:
    rlimits = [
        ("RLIMIT_CORE", 0),
        ("RLIMIT_CPU", limits.cpu_seconds),
        ("RLIMIT_AS", limits.memory_bytes),
        ("RLIMIT_FSIZE", limits.file_bytes),
        ("RLIMIT_NOFILE", limits.open_files),
        ("RLIMIT_STACK", min(limits.memory_bytes // 2, 1 << 30)),
    ]
    return [*rlimits, ("RLIMIT_NPROC", limits.processes)] if counts_processes else rlimits


def _filter_file() -> int | None:
    """The seccomp filter as an open file for bubblewrap."""
    filters = seccomp_filter()
    if filters is None:
        return None
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("rollforge-seccomp")
    else:
        handle, path = tempfile.mkstemp()
        os.unlink(path)  # noqa: PTH108  (only the open file is needed)
    os.write(handle, filters)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _readable_paths(site: str | None) -> list[Path]:
    """Paths that a program without bubblewrap may read."""
    links = [Path("/lib"), Path("/lib64"), Path("/bin"), Path("/etc/ld.so.cache"), Path("/dev/null")]
    return [*system_paths(), *python_files(), *links, *([Path(site)] if site else [])]


@lru_cache(maxsize=1)
def _bootstrap_source() -> str:
    return Path(bootstrap.__file__).read_text(encoding="utf-8")


def _site_packages() -> str | None:
    """Directory of the installed packages; None if the run could be inside it too (`pip -t .`)."""
    import msgspec as known

    path = Path(known.__file__).resolve().parents[1]
    return None if holds_private(path) else str(path)


class _Trial(msgspec.Struct, frozen=True):
    """The working bubblewrap command on this machine, if any."""

    prefix: list[str] | None = None
    counts_processes: bool = False
    """Whether the process limit counts only the program's own processes; older kernels count all of the user's."""
    why_not: str = ""


@lru_cache(maxsize=1)
def find_bubblewrap() -> _Trial:
    """A confining command that passed a trial run, or the reason why none does."""
    why_not = "no bwrap in PATH"
    for prefix in confinements():
        for counts_processes in (True, False):
            reply, why_not = _trial_run(prefix, _WORKS, drops_user=True, counts_processes=counts_processes)
            if reply == b"works":
                return _Trial(prefix, counts_processes)
    return _Trial(why_not=why_not)


@lru_cache(maxsize=1)
def _can_drop_user() -> bool:
    """Whether another user can run the interpreter; not possible if it is in root's home directory, or if this root has no
    capabilities, as in many containers.
    """
    try:
        return _trial_run(None, _WORKS, drops_user=True)[0] == b"works"
    except PermissionError:  # its scratch directory cannot be given away
        return False


@lru_cache(maxsize=1)
def hides_files() -> bool:
    """Whether programs without bubblewrap cannot read files other than the system's, tested by a trial run."""
    with tempfile.TemporaryDirectory(prefix="rollforge-trial-") as directory:
        secret = Path(directory) / "secret"
        secret.write_text("secret")
        secret.chmod(0o644)  # another user alone does not close it
        Path(directory).chmod(0o755)
        code = compile(_READS.format(path=str(secret)), "<trial>", "exec")
        drops_user = os.geteuid() == 0 and _can_drop_user()
        return _trial_run(None, code, drops_user=drops_user)[0] == b"closed"


_WORKS = compile(
    "import os, colorsys\nif not os.fork(): os._exit(0)\nos.wait()\nsend(b'works')", "<trial>", "exec"
)
_READS = "try:\n    open({path!r}).read()\n    send(b'open')\nexcept OSError:\n    send(b'closed')"


def _trial_run(
    prefix: list[str] | None, code: CodeType, *, drops_user: bool, counts_processes: bool = True
) -> tuple[bytes | None, str]:
    """Message of a trial program run with this command prefix, and the error if there is none."""
    candidate = object.__new__(Sandbox)
    candidate._prefix, candidate._site = prefix, None
    candidate._drops_user = drops_user and os.geteuid() == 0
    candidate._counts_processes = counts_processes and (prefix is not None or candidate._drops_user)
    with candidate.start(code, Limits()) as confined:
        reply = confined.wait(20.0)
        if reply.message is not None:
            return reply.message, ""
        confined.wait(0.2)
        why = confined.errors.strip().rpartition("\n")[2]
        return None, why or f"a trial run came to nothing ({reply.ended})"
