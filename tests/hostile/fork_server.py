"""Runs many command lines quickly: a parent that has imported rollforge forks a child for each, which calls the real `main`.

A start of Python costs more than most commands on a small run. The parent has no other thread when it forks, so a child is what a
fresh process would be after its imports. Reads one case per line from stdin and writes one result per line to stdout.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import msgspec

ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Libraries start no thread when they are imported."""
MEMORY_BYTES = 6 << 30
"""Address space of a child: a few times what any command reserves on a small run."""
KEPT_CHARACTERS = 6000
ALWAYS = ("tasks.jsonl", "run")
"""What commands read without naming it on their line."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A command line on a folder in which one file is damaged."""

    number: int
    words: list[str]
    file: str = ""
    data: str = ""
    """The damaged file's bytes, as hexadecimal digits."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How one command ended."""

    number: int
    code: int
    """Negative: the signal that ended it."""
    seconds: float
    is_hung: bool
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What a user must never see: empty when the command ended as commands do."""
        if self.is_hung:
            return "no end"
        if "Traceback (most recent call last)" in self.err + self.out:
            return "traceback"
        if self.code < 0:
            return f"signal {-self.code}"
        return "exit code 1" if self.code == 1 else ""


class Limits(NamedTuple):
    """What a child may take."""

    seconds: float
    memory_bytes: int = MEMORY_BYTES


def damaged_copy(whole: Path, work: Path, case: Case) -> None:
    """Make `work` a copy of what the command names in `whole`, with the case's one file replaced."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name in sorted({word.partition("/")[0] for word in [*case.words, case.file, *ALWAYS]}):
        source = whole / name
        if name and source.is_dir():
            shutil.copytree(source, work / name)
        elif name and source.is_file():
            shutil.copyfile(source, work / name)
    if case.file:
        (work / case.file).write_bytes(bytes.fromhex(case.data))


def run_forked(
    function: Callable[[], object], folder: Path, limits: Limits
) -> tuple[int, float, bool, str, str]:
    """Call the function in a child; return its exit code, its seconds, whether it hung, and what it printed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _be_child(function, folder, out.fileno(), err.fileno(), limits)
        is_hung = not _ends_within(pid, limits.seconds)
        if is_hung:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        seconds = time.monotonic() - started
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # what it left behind
        return os.waitstatus_to_exitcode(status), seconds, is_hung, _text(out), _text(err)


def _text(file: Iterable[bytes]) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return b"".join(file).decode(errors="replace")


def _ends_within(pid: int, seconds: float) -> bool:
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(seconds * 1000) or poll.poll(0))  # it may have ended while we were stopped
    finally:
        os.close(handle)


def _be_child(
    function: Callable[[], object], folder: Path, out: int, err: int, limits: Limits
) -> NoReturn:  # pragma: no cover  (it runs in a child)
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, handle in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(handle, number)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115  (as Python does)
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            function()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001  (as Python itself would print it)
            traceback.print_exc()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def command(words: list[str]) -> Callable[[], object]:
    """What a child calls: the real `main` on the real `sys.argv`, or a client of a buffer."""

    def call() -> None:
        sys.argv = ["rollforge", *words]
        if words[0] == "claim":
            _claim_all(words[1])
            return
        if words[0] == "-c":  # as Python's own option
            sys.argv = ["-c", *words[2:]]
            exec(compile(words[1], "-c", "exec"), {"__name__": "__main__"})
            return
        from rollforge.cli import main

        main()

    return call


def _claim_all(place: str) -> None:
    """Read a buffer to its end, as a trainer does; a refusal is a message, as in a command."""
    from rollforge.buffer import open_buffer
    from rollforge.errors import RollforgeError

    try:
        with open_buffer(place) as buffer:
            while batch := buffer.claim(5, timeout=0):
                buffer.acknowledge(batch)
    except RollforgeError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def import_what_commands_need(whole: Path, work: Path, lines: list[list[str]], limits: Limits) -> None:
    """Run each kind of command once in a child, and import here what it imported there."""
    names: dict[str, None] = {}
    listing = work.with_name("modules")
    for words in lines:
        damaged_copy(whole, work, Case(number=0, words=words))
        run_forked(listing_modules(command(words), listing), work, limits)
        names.update(dict.fromkeys(listed(listing)))
    import_all(names)


def listing_modules(function: Callable[[], object], listing: Path) -> Callable[[], object]:
    """The function, which also writes which modules were imported at its end."""

    def call() -> None:
        try:
            function()
        finally:
            listing.write_text("\n".join(sys.modules))

    return call


def listed(listing: Path) -> list[str]:
    """What the last child imported; nothing if it was killed."""
    names = listing.read_text().split() if listing.exists() else []
    listing.unlink(missing_ok=True)
    return names


def import_all(names: Iterable[str]) -> None:
    """Import in the order of the child: `_asyncio` before `asyncio` would leave half of it in Python."""
    for name in names:
        if not name.rpartition(".")[2].startswith("_"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    _assert_no_thread()


def _assert_no_thread() -> None:
    tasks = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert len(tasks) == 1, f"the parent must not have threads when it forks: {tasks}"


def results(whole: Path, work: Path, cases: Iterable[Case], limits: Limits) -> Iterator[Ended]:
    """Run the cases one after another, each on a copy of its own."""
    for case in cases:
        damaged_copy(whole, work, case)
        code, seconds, is_hung, out, err = run_forked(command(case.words), work, limits)
        yield Ended(
            number=case.number, code=code, seconds=seconds, is_hung=is_hung,
            out=out[-KEPT_CHARACTERS:], err=err[-KEPT_CHARACTERS:],
        )  # fmt: skip


def serve_commands(listing: Path) -> None:
    """`fork_server.py commands LISTING`: for each line of words, print the child's process id and then its exit code.

    Whoever asked may kill the child in between, and it alone: what a command started must end by itself. What a child that
    ended imported, the next one finds imported.
    """
    for line in sys.stdin:
        words = json.loads(line)
        pid = os.fork()
        if pid == 0:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            _be_child(listing_modules(command(words), listing), Path.cwd(), nowhere, nowhere, Limits(0))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        import_all(listed(listing))


def serve() -> None:
    """`fork_server.py WHOLE WORK SECONDS KINDS`: KINDS is a JSON list of command lines to import for."""
    whole, work, limits = Path(sys.argv[1]), Path(sys.argv[2]), Limits(float(sys.argv[3]))
    import_what_commands_need(whole, work, json.loads(sys.argv[4]), limits)
    cases = (msgspec.json.decode(line, type=Case) for line in sys.stdin)
    for ended in results(whole, work, cases, limits):
        sys.stdout.buffer.write(msgspec.json.encode(ended) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve_commands(Path(sys.argv[2])) if sys.argv[1] == "commands" else serve()
