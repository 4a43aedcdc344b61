"""Whole programs (agents, test scripts) in a sandbox, or with limits only: the command, the run, and the termination of all child
processes.

With bubblewrap a program sees the system's files read-only, its own directories, and explicitly shown paths; its only network is
one Unix socket. Without it (`off`) it can do whatever the user can; only its process tree is tracked, so that all of it can be
killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from rollforge.errors import UsageError
from rollforge.sandbox import supervisor
from rollforge.sandbox.bubblewrap import holds_private, private_paths, python, python_files
from rollforge.sandbox.cgroup import ControlGroup, make_group
from rollforge.sandbox.seccomp import seccomp_filter
from rollforge.sandbox.usage import descendants, memory_exceeds
from rollforge.store.scratch import make_scratch, remove_scratch
from rollforge.text_safety.outgoing import cut

Network = Literal["none", "host"]

RELAY_PORT = 8642
"""Address of the proxy inside a sandbox without network; no other address is reachable."""

WORK, HOME, CONTROL = "/work", "/home/agent", "/rollforge"
"""Paths of a program's directories in the sandbox: the same for every rollout, so that prompts do not vary. A path that would
hide files needed by the program (such as a checkout in /work) is replaced, see `_hiding_nothing`.
"""

OUTPUT_KEPT = 64 << 10
"""Bytes kept of each of stdout and stderr: half from the beginning, half from the end."""

END_S = 5.0
"""How long the supervisor may take to end a program's processes, before the supervisor itself is killed."""

_PARTS = ("bin", "lib", "lib64", "shims", "versions", "pyvenv.cfg")
"""Subfolders of an installation that programs may read."""

_ETC = (
    *(
        "ssl",
        "ca-certificates",
        "pki",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "alternatives",
        "localtime",
    ),
    *("nsswitch.conf", "mime.types", "magic", "terminfo", "services", "protocols", "host.conf"),
)
_ACCOUNTS = {
    "passwd": f"agent:x:1000:1000:agent:{HOME}:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n",
    "group": "agent:x:1000:\nroot:x:0:\n",
}
"""Replacement account files that name only the program's user."""
_EMPTY = ("--size", str(1 << 20), "--tmpfs")
"""Options of an empty tmpfs that hides a directory; it has room for mount points."""
_INSTALL = (
    "install it (Debian, Ubuntu: apt-get install bubblewrap; Fedora: dnf install bubblewrap) and allow user namespaces; "
    "--sandbox off runs the program as you, with your files and your network"
)


LOOK_S = 0.25
"""Interval at which a program's memory and processes are measured."""

OWN_PROCESSES = 4
"""Number of the sandbox's own processes: a shell that joins the control group, bubblewrap, its reaper, the supervisor."""

Exceeded = Literal["", "memory", "processes"]
"""The limit for which a program was ended."""


class ProgramLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of a program and all its child processes."""

    memory_bytes: int = 4 << 30
    """Resident memory in bytes; 0 for no limit."""
    processes: int = 512
    """Number of processes at a time; 0 for no limit."""
    file_bytes: int = 2 << 30
    """Size limit of a file that it writes."""
    open_files: int = 4096
    tmp_bytes: int = 1 << 30
    """Size of its /tmp; only in the sandbox."""


class ProgramRun(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a program: exit code, output, limits exceeded."""

    exit_code: int | None
    """None if it was killed before it exited."""
    seconds: float
    stdout: str
    stderr: str
    """Beginning and end of the output, with a line in between that reports the omitted part. This also applies to stdout."""
    exceeded: Exceeded = ""

    @property
    def last_words(self) -> str:
        """The last line of stderr, or of stdout if stderr is empty."""
        for text in (self.stderr, self.stdout):
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            if lines:
                return cut(lines[-1], 300)
        return ""


class ProgramOutput:
    """Output of a program so far; readable after the program was killed."""

    def __init__(self) -> None:
        self.stdout, self.stderr = _Kept(), _Kept()
        self._started: float | None = None

    def begin(self) -> None:
        """Record that the program starts now."""
        self._started = time.monotonic()

    def run(self, exit_code: int | None = None, exceeded: Exceeded = "") -> ProgramRun | None:
        """The program's result so far; None before it was started."""
        if self._started is None:
            return None
        return ProgramRun(
            exit_code=exit_code,
            seconds=time.monotonic() - self._started,
            stdout=self.stdout.text(),
            stderr=self.stderr.text(),
            exceeded=exceeded,
        )


class ProgramFolders(msgspec.Struct, frozen=True, kw_only=True):
    """The directories of one program on this machine."""

    root: Path

    @classmethod
    def make(cls) -> ProgramFolders:
        """Create empty directories that only this user may enter."""
        scratch = cls(root=make_scratch("program").resolve())
        for path in (scratch.work, scratch.home, scratch.control):
            path.mkdir()
        for name, text in _ACCOUNTS.items():
            (scratch.root / name).write_text(text)
        return scratch

    @property
    def work(self) -> Path:
        """The working directory."""
        return self.root / "work"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def control(self) -> Path:
        """Directory for exchanging files between rollforge and the program."""
        return self.root / "rollforge"

    def remove(self) -> None:
        """Delete the directories, even if the program removed read permission."""
        remove_scratch(self.root)


class ProgramSandbox:
    """A tested way to run programs on this machine."""

    def __init__(
        self,
        mode: Literal["auto", "require", "off"] = "auto",
        *,
        network: Network | None = None,
        shown: tuple[str, ...] = (),
        command: list[str] | None = None,
    ) -> None:
        """Determine by trial runs which confinement works here.

        Args:
            shown: Files and directories that programs may read in addition to the system's.
            command: The user's command, if all programs run it. Programs may read the files that it names. Task text that is
                inserted later must not select files of this machine.

        Raises:
            UsageError: bubblewrap does not work and the mode is not `off`, or the requested network mode is not available.
        """
        self.is_confined = mode != "off"
        if not self.is_confined and network == "none":
            raise UsageError(
                "--network none needs the sandbox: without it a program has your network",
                hint="leave out --sandbox off, or give --network host",
            )
        self.network: Network = network or ("none" if self.is_confined else "host")
        self._shown = tuple(str(Path(path).absolute()) for path in shown)
        for path in self._shown:
            if not Path(path).exists():
                raise UsageError(
                    f"{path}: no such file or directory",
                    hint="--mount takes a file or folder of this machine",
                )
        self._files = None if command is None else _files_of(command)
        needed = [*self._shown, *(self._files or map(str, _python_paths()))]
        self._work, self._home, self._control = (
            _hiding_nothing(name, needed) for name in (WORK, HOME, CONTROL)
        )
        self._prefix: list[str] = []
        if self.is_confined:
            prefix, why_not = find_program_bubblewrap()
            if prefix is None:
                raise UsageError(
                    f"programs are not run without a sandbox, and bubblewrap does not work here: {why_not}",
                    hint=_INSTALL,
                )
            self._prefix = prefix

    def inside(self, scratch: ProgramFolders, path: Path) -> str:
        """The path under which the program sees one of its own paths."""
        if not self.is_confined:
            return str(path)
        folders = (scratch.work, self._work), (scratch.home, self._home), (scratch.control, self._control)
        for outer, inner in folders:
            if path == outer or path.is_relative_to(outer):
                return str(Path(inner) / path.relative_to(outer))
        return str(path)

    @property
    def weakness(self) -> str | None:
        """What a program can do despite confinement; None in the sandbox without a network."""
        if not self.is_confined:
            return "they can read and write what you can, reach the network and see other processes"
        return "they can reach the network" if self.network == "host" else None

    async def run(
        self,
        argv: list[str],
        scratch: ProgramFolders,
        *,
        environment: Mapping[str, str],
        stdin: bytes | None = None,
        socket: Path | None = None,
        limits: ProgramLimits | None = None,
        output: ProgramOutput | None = None,
    ) -> ProgramRun:
        """Run a program to its end. Cancellation kills the program and all its child processes before it returns.

        Args:
            output: Receives the program's output, for callers that need it after a cancellation.
        """
        limits = limits or ProgramLimits()
        has_relay = self.is_confined and self.network == "none" and socket is not None
        plan = {
            "argv": argv,
            "limits": [
                ("RLIMIT_CORE", 0),
                ("RLIMIT_FSIZE", limits.file_bytes),
                ("RLIMIT_NOFILE", limits.open_files),
            ],
            "relay": {"port": RELAY_PORT, "socket": f"{CONTROL}.sock"} if has_relay else None,
        }
        supervised = [str(python()), "-I", "-S", "-B", "-X", "utf8", "-c", _supervisor_source()]
        supervised.append(msgspec.json.encode(plan).decode())
        handle = _filter_file() if self.is_confined else None
        command = supervised
        if self.is_confined:
            command = [*self._prefix, *self._view(argv, scratch, socket if has_relay else None, limits)]
            command += ["--seccomp", str(handle)] if handle is not None else []
            command += ["--", *supervised]
        group = _make_group(limits)
        output = output or ProgramOutput()
        output.begin()
        try:
            process = await asyncio.create_subprocess_exec(
                *(group.entering(command) if group is not None else command),
                stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(environment),
                cwd=str(scratch.work),
                start_new_session=True,
                pass_fds=[handle] if handle is not None else [],
            )
        finally:
            if handle is not None:
                os.close(handle)
        noticed: list[Exceeded] = []
        watching = asyncio.ensure_future(self._watch(process, limits, noticed))
        try:
            await asyncio.gather(
                _feed(process.stdin, stdin),
                output.stdout.read(process.stdout),
                output.stderr.read(process.stderr),
            )
            code = await process.wait()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            if process.returncode is None:
                await self._end(process)
            if group is not None:
                noticed += ["memory"] if group.ran_out_of_memory() else []
                await asyncio.shield(asyncio.to_thread(group.end))
        ended = output.run(code, noticed[0] if noticed else "")
        assert ended is not None, "it was started"
        return ended

    async def _watch(
        self, process: asyncio.subprocess.Process, limits: ProgramLimits, noticed: list[Exceeded]
    ) -> None:
        """End the program as soon as it exceeds a limit, and record which. Measured from outside, where the program cannot
        interfere.
        """
        while not noticed and process.returncode is None:
            await asyncio.sleep(LOOK_S)
            pids = descendants(process.pid)
            if limits.processes and len(pids) > limits.processes + OWN_PROCESSES:
                noticed.append("processes")
            elif limits.memory_bytes and memory_exceeds(pids, limits.memory_bytes):
                noticed.append("memory")
        if process.returncode is None:
            await self._end(process)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Kill the sandbox as a whole; without a sandbox, let the supervisor kill the processes that it tracks."""
        with contextlib.suppress(ProcessLookupError):
            if self.is_confined:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                os.kill(process.pid, signal.SIGTERM)
        waiting = asyncio.ensure_future(process.wait())
        done, _ = await asyncio.shield(asyncio.wait([waiting], timeout=END_S))
        if not done:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.shield(waiting)

    def _view(
        self, argv: list[str], scratch: ProgramFolders, socket: Path | None, limits: ProgramLimits
    ) -> list[str]:
        """bubblewrap arguments for the program's file system."""
        words = ["--size", str(limits.tmp_bytes), "--tmpfs", "/tmp"]
        files = _files_of(argv) if self._files is None else self._files
        for path in [*files, *self._shown]:
            words += ["--ro-bind", path, path]
        words += ["--bind", str(scratch.work), self._work, "--bind", str(scratch.home), self._home]
        words += ["--bind", str(scratch.control), self._control]
        for name in _ACCOUNTS:
            words += ["--ro-bind", str(scratch.root / name), f"/etc/{name}"]
        if socket is not None:
            words += ["--bind", str(socket), f"{CONTROL}.sock"]
        if self.network == "host":
            words += ["--share-net", "--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
            words += ["--ro-bind-try", "/etc/hosts", "/etc/hosts"]
        # Every other directory lies in memory without a bound, or would hide a change that the program believes in.
        words += ["--size", str(limits.tmp_bytes), "--perms", "1777", "--tmpfs", "/dev/shm"]
        words += ["--remount-ro", "/dev", "--remount-ro", "/"]
        return [*words, "--chdir", self._work]


def _make_group(limits: ProgramLimits) -> ControlGroup | None:
    """A control group that enforces the limits at every moment, if the kernel and this user's permissions allow it."""
    if not limits.memory_bytes or not limits.processes:
        return None
    return make_group(memory_bytes=limits.memory_bytes, processes=limits.processes + OWN_PROCESSES)


def absolute_words(words: list[str]) -> list[str]:
    """The command with absolute paths of the files that it names, because programs run in separate directories.

    Directories are left unchanged, because a word such as `run` is usually a subcommand, not a directory.
    """
    resolved = []
    for position, word in enumerate(words):
        if position == 0 and "/" not in word:
            resolved.append(shutil.which(word) or word)
        elif word and not word.startswith("-") and _is_file(word):
            resolved.append(str(Path(word).absolute()))
        else:
            resolved.append(word)
    return resolved


def _hiding_nothing(name: str, needed: list[str]) -> str:
    """Path of a directory in the sandbox; a different one if it would cover, or lie inside, a shown path."""
    path = Path(name)
    is_free = not any(path.is_relative_to(other) or Path(other).is_relative_to(path) for other in needed)
    return name if is_free else f"/rollforge-{path.name}"


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # a prompt is too long to be a name
        return False


def _files_of(argv: list[str]) -> list[str]:
    """Paths that a command needs to read: the files it names, and the installation of its executable."""
    paths: dict[str, None] = {str(path): None for path in _python_paths()}
    for position, word in enumerate(argv):
        if not word.startswith("/") or not _is_file(word):
            continue
        for path in (Path(word), Path(word).resolve()):
            if position == 0:
                paths.update(dict.fromkeys(map(str, _installation(path))))
            elif not path.is_relative_to("/usr"):
                paths[str(path)] = None
    return [path for path in paths if not Path(path).is_relative_to("/usr")]


def _installation(path: Path) -> list[Path]:
    """The virtual environment or node modules tree of an executable; otherwise only the executable."""
    outermost = [parent for parent in path.parents if parent.name == "node_modules"]
    if outermost:
        return [outermost[-1]]
    prefix = path.parents[1] if len(path.parents) > 1 else path
    if path.parent.name == "shims":  # pyenv, asdf: a script that finds the real one below the same root
        return _shown_parts(prefix)
    if (prefix / "pyvenv.cfg").exists():
        base = (prefix / "bin" / "python").resolve()
        own = [] if base.is_relative_to("/usr") else _shown_parts(base.parents[1])
        return [*_shown_parts(prefix), *own]
    return [path]


def _shown_parts(prefix: Path) -> list[Path]:
    """Paths of an installation; only its definite parts if it contains the home directory or the run (`~/bin/python3`)."""
    if not holds_private(prefix):
        return [prefix]
    return [part for name in _PARTS if (part := prefix / name).exists()]


@lru_cache(maxsize=1)
def _python_paths() -> list[Path]:
    """Paths of the interpreter that runs the supervisor, if it is not the system's."""
    return [] if python().is_relative_to("/usr") else python_files()


class _Kept:
    """Keeps the beginning and the end of a stream."""

    def __init__(self, most: int = OUTPUT_KEPT) -> None:
        self._half = most // 2
        self._head, self._tail = bytearray(), bytearray()
        self._size = 0

    async def read(self, stream: asyncio.StreamReader | None) -> None:
        """Read the stream to its end, whatever its length."""
        while stream is not None and (data := await stream.read(1 << 16)):
            self._size += len(data)
            room = self._half - len(self._head)
            self._head += data[: max(0, room)]
            self._tail += data[max(0, room) :]
            del self._tail[: -self._half]

    def text(self) -> str:
        missing = self._size - len(self._head) - len(self._tail)
        middle = f"\n… {missing:,} bytes are left out …\n".encode() if missing else b""
        return bytes(self._head + middle + self._tail).decode("utf-8", "replace")


async def _feed(stream: asyncio.StreamWriter | None, data: bytes | None) -> None:
    if stream is None or data is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stream.write(data)
        await stream.drain()
    stream.close()


@lru_cache(maxsize=1)
def _supervisor_source() -> str:
    return Path(supervisor.__file__).read_text(encoding="utf-8")


def _filter_file() -> int | None:
    """The seccomp filter as an open file for bubblewrap."""
    filters = seccomp_filter()
    if filters is None or not hasattr(os, "memfd_create"):
        return None
    handle = os.memfd_create("rollforge-seccomp")
    os.write(handle, filters)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def _prefixes() -> list[list[str]]:
    """Confining commands to try, best first. In a user namespace a program has an ordinary user id, even if root starts it."""
    command = shutil.which("bwrap")
    if command is None:
        return []
    shared = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    shared += ["--die-with-parent", "--cap-drop", "ALL"]
    user = ["--unshare-user", "--uid", "1000", "--gid", "1000"]
    tries = [[command, *user, *shared, *_proc()], [command, *user, *shared]]
    if os.geteuid() == 0:
        tries += [[command, *shared, *_proc()], [command, *shared]]
    return [[*words, *_system_view()] for words in tries]


def _proc() -> list[str]:
    """A /proc with only the program's own processes; files that root could write are hidden, because the kernel checks only the
    user id.
    """
    words = ["--proc", "/proc"]
    for name in ("sys", "irq", "bus", "fs", "scsi", "acpi"):
        if Path(f"/proc/{name}").is_dir():
            words += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    if Path("/proc/sysrq-trigger").exists():
        words += ["--ro-bind", "/dev/null", "/proc/sysrq-trigger"]
    return words


def _system_view() -> list[str]:
    words = ["--ro-bind", "/usr", "/usr", "--dev", "/dev"]
    if Path("/usr/src").is_dir():
        words += [*_EMPTY, "/usr/src"]
    for path in private_paths():
        if path.is_relative_to("/usr") and path.is_dir() and not python().is_relative_to(path):
            words += [*_EMPTY, str(path)]
    for name in ("lib", "lib32", "lib64", "bin", "sbin"):
        path = Path("/") / name
        if path.is_symlink():
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return words


@lru_cache(maxsize=1)
def find_program_bubblewrap() -> tuple[list[str] | None, str]:
    """A confining command that passed a trial run, or the reason why none does."""
    import subprocess

    why_not = "no bwrap in PATH"
    for prefix in _prefixes():
        interpreter = [word for path in _python_paths() for word in ("--ro-bind", str(path), str(path))]
        words = [*prefix, *interpreter, "--", str(python()), "-I", "-S", "-c", "print('works')"]
        try:
            done = subprocess.run(
                words, capture_output=True, timeout=30, check=False, env={"PATH": os.defpath}
            )
        except (OSError, subprocess.SubprocessError) as error:
            why_not = str(error)
            continue
        if done.stdout.strip() == b"works":
            return prefix, ""
        why_not = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2] or "a trial run failed"
    return None, why_not


__all__ = [
    "CONTROL",
    "HOME",
    "RELAY_PORT",
    "WORK",
    "Network",
    "ProgramFolders",
    "ProgramLimits",
    "ProgramOutput",
    "ProgramRun",
    "ProgramSandbox",
    "absolute_words",
    "find_program_bubblewrap",
]
