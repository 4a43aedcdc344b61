"""The executor protocol: start workers, pass small messages to them, report lost ones.

An executor has no durable state: results are in the run's files. A message is a path, a number or a setting, never a rollout.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import socket
from typing import Protocol

import msgspec

from rollforge import __version__
from rollforge.errors import Exit, RollforgeError, UsageError
from rollforge.executors import EXECUTORS
from rollforge.runtime.native import load_native
from rollforge.runtime.typed_decoding import decode_msgpack

Message = bytes

MOST_WORKERS = 1024


class WorkerLost(Exception):
    """The worker no longer answers: its process, its node or the connection is gone."""


class Worker(Protocol):
    """Protocol of the code that runs in a worker. Its class is instantiated without arguments."""

    async def handle(self, message: Message) -> Message:
        """Answer one message. A `RollforgeError` is raised again in the calling process."""
        ...

    async def close(self) -> None:
        """Stop at once and leave everything resumable: the caller is gone, or has no more work."""
        ...


class Hand(Protocol):
    """Handle of a worker in the calling process."""

    name: str
    """Where the worker runs, for messages."""

    async def ask(self, message: Message) -> Message:
        """Send a message and return the worker's answer; one message at a time.

        Raises:
            WorkerLost: the worker is gone. RollforgeError: raised by the worker.
        """
        ...

    async def close(self) -> None:
        """End the worker."""
        ...


class ExecutorOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to start workers."""

    workers: int | None = None
    """Number of workers; None means one, or one per node."""
    address: str | None = None
    """Address of the cluster; None means the one that the environment variables name."""


class Executor(Protocol):
    """Starts workers; made from `ExecutorOptions`."""

    async def start(self, target: str) -> list[Hand]:
        """Start the workers; `target` is `module:Class` of a `Worker`."""
        ...

    async def replace(self, lost: Hand) -> Hand | None:
        """A replacement for a lost worker; None if there is no room for one now.

        Raises:
            WorkerLost: no more workers are possible, now or later.
        """
        ...

    async def close(self) -> None:
        """End every worker that still runs."""
        ...


class Introduction(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that must be the same for all workers of a run."""

    rollforge: str
    python: str
    """Major and minor version."""
    has_compiled_reader: bool
    verifier: str | None = None
    """Fingerprint of the verifier as loaded by this worker."""
    has_key: bool = False
    """Whether the API key variable is set here."""

    @classmethod
    def of_this_process(cls, *, verifier: str | None = None, key_variable: str | None = None) -> Introduction:
        """The introduction of the current process."""
        return cls(
            rollforge=__version__,
            python=".".join(platform.python_version_tuple()[:2]),
            has_compiled_reader=load_native("rollforge.index._rows") is not None,
            verifier=verifier,
            has_key=bool(key_variable and os.environ.get(key_variable)),
        )


_NAMES = {
    "rollforge": "rollforge's version",
    "python": "Python's version",
    "has_compiled_reader": "the compiled reader",
    "verifier": "the verifier's fingerprint",
    "has_key": "the API key's variable",
}


def refuse_differences(mine: Introduction, others: dict[str, Introduction]) -> None:
    """Raise unless all workers match this process; called before any work is handed out."""
    differences = []
    for name, other in others.items():
        for field, what in _NAMES.items():
            here, there = getattr(mine, field), getattr(other, field)
            if here != there:
                differences.append(f"  {name}: {what} is {_shown(there)}, here {_shown(here)}")
    if differences:
        raise UsageError(
            "the workers differ from this process; nothing was sent\n" + "\n".join(differences[:20]),
            hint="install the same versions and set the same variables on every node",
        )


def _shown(value: object) -> str:
    match value:
        case True:
            return "there"
        case False | None:
            return "missing"
        case _:
            return str(value)


def check_workers(workers: int) -> None:
    """Refuse an implausible number of workers."""
    if not 1 <= workers <= MOST_WORKERS:
        bound = "at least 1" if workers < 1 else f"at most {MOST_WORKERS:,}"
        raise UsageError(f"--workers must be {bound}, not {workers:,}", hint="one per core is a good start")


def make_executor(on: str, workers: int | None) -> Executor:
    """The executor that `--on` and `--workers` ask for, as NAME or NAME:ADDRESS: `local`, `processes`, `ray:HOST:PORT`, a plugin's.

    Raises:
        UsageError: no executor has that name. Nothing is started before the executor's context is entered.
    """
    name, _, address = on.partition(":")
    if workers is not None:
        check_workers(workers)
    if "?" in address or "@" in address:
        raise UsageError(
            "--on contains a user, a password or a query, which would be written to the run's files",
            hint=f"write --on {name}:HOST:PORT",
        )
    if address and name in ("local", "processes"):
        raise UsageError(
            f"--on {on}: {name} has no address", hint=f"write --on {name}; a cluster is --on ray:HOST:PORT"
        )
    if name == "local" and workers is not None:
        name = "processes"
    executor: Executor = EXECUTORS.load(name)(ExecutorOptions(workers=workers, address=address or None))
    return executor


def host_name(number: int) -> str:
    """The name of workers on this machine."""
    return f"worker {number} on {socket.gethostname()}"


def fault(error: BaseException) -> Message:
    """An exception as a message."""
    is_ours = isinstance(error, RollforgeError)
    return msgspec.msgpack.encode(
        WorkerFault(
            text=str(error) if is_ours else f"{type(error).__name__}: {error}",
            hint=error.hint if isinstance(error, RollforgeError) else None,
            kind=type(error).__name__ if is_ours else "",
            exit_code=int(getattr(error, "exit_code", 1)) if is_ours else 1,
        )
    )


class WorkerFault(msgspec.Struct, frozen=True, kw_only=True):
    """An exception of a worker, as a message."""

    text: str
    hint: str | None
    kind: str
    exit_code: int


def raise_fault(message: Message, name: str) -> None:
    """Raise a worker's exception, with its location in the message."""
    fault = decode_msgpack(message, WorkerFault)
    error = RollforgeError(f"{name}: {fault.text}", hint=fault.hint)
    error.exit_code = Exit(fault.exit_code)
    raise error


async def dismiss(worker: Worker) -> None:
    """Close a worker that has no more work."""
    with contextlib.suppress(Exception):  # the asker is gone: nobody reads how a worker's tear-down failed
        await worker.close()


async def answered(worker: Worker, message: Message) -> tuple[bool, Message]:
    """The message for a worker's answer or its exception, and whether it is an answer."""
    try:
        return True, await worker.handle(message)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever it is, the asker must learn of it)
        return False, fault(error)
