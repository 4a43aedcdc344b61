"""The sink protocol, and the fan-out of metrics to the selected sinks.

A sink that cannot start stops the command before any work; a sink that fails later causes one warning and does not affect the
run. Sinks that communicate outside the process run in their own thread behind a short queue, so a hanging server does not slow
the run; steps dropped by a full queue are counted.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from rollforge.errors import RollforgeError, UsageError
from rollforge.metrics.profiles import rename
from rollforge.records import JsonFields, from_json, to_json
from rollforge.sinks import SINKS
from rollforge.text_safety.outgoing import outgoing_bytes
from rollforge.text_safety.redaction import SECRETS

logger = logging.getLogger(__name__)

QUEUE_STEPS = 256
"""Queue length in steps of a slow sink; further steps are dropped and counted."""


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the run that sinks need."""

    directory: Path
    """Directory for files of local sinks."""
    metrics_file: Path | None = None
    """Default file of the jsonl sink; None means `metrics.jsonl` in the directory."""
    run: str = "rollforge"
    """Name of the run, for sinks with named runs."""
    config: JsonFields = {}
    """The resolved config without secrets, for sinks that store it with the metrics."""
    target: str | None = None
    """Text after `NAME=` in `--sink`: a path, an address or a project."""


class Sink(Protocol):
    """Receives the metrics of each step. The constructor opens no connection; `start` does, and raises `UsageError` on failure."""

    is_remote: bool
    """Whether `log` may block on something outside this process."""

    def start(self) -> None:
        """Connect or open files; raises `UsageError` on failure."""

    def log(self, metrics: Mapping[str, float | None], *, step: int, at: float) -> None:
        """Log one step; `at` is its Unix time. None stands for a non-finite value."""

    def close(self) -> None:
        """Flush and release all resources."""


def need_extra(sink: str, extra: str, error: ImportError) -> UsageError:
    """The error for a sink whose package is not installed."""
    return UsageError(
        f"the sink {sink!r} needs a package that is not installed ({error.name})",
        hint=f"pip install 'rollforge[{extra}]'",
    )


def open_sinks(specs: Sequence[str], options: SinkOptions, *, profile: str = "rollforge") -> Sinks:
    """The sinks named by `specs` (`jsonl`, `tensorboard=DIR`, `prometheus=127.0.0.1:9464`), started.

    Raises:
        UsageError: one of them is unknown or cannot start; those already started are closed again.
    """
    rename({}, profile)
    SECRETS.learn_words(specs)
    options = msgspec.structs.replace(options, config=from_json(outgoing_bytes(to_json(options.config))))
    started: list[tuple[str, Sink]] = []
    with contextlib.ExitStack() as undo:
        for spec in dict.fromkeys(specs):
            name, _, target = spec.partition("=")
            sink = SINKS.load(name)(msgspec.structs.replace(options, target=target or None))
            _start(name, sink)
            undo.callback(_quietly_close, name, sink)
            started.append((name, sink))
        undo.pop_all()
    return Sinks(started, profile=profile)


def _start(name: str, sink: Sink) -> None:
    try:
        sink.start()
    except RollforgeError:
        raise
    except Exception as error:  # a sink's library may raise anything; the message names it
        raise UsageError(
            f"the sink {name!r} cannot start: {type(error).__name__}: {error}",
            hint=f"leave it out, or see docs/sinks.md for what {name} needs",
        ) from error


def _quietly_close(name: str, sink: Sink) -> None:
    try:
        sink.close()
    except Exception as error:  # noqa: BLE001  (the boundary to other people's clients)
        logger.warning("the sink %r did not close cleanly: %s: %s", name, type(error).__name__, error)


class Sinks:
    """Several sinks as one; its methods do not raise after the start."""

    def __init__(self, sinks: Sequence[tuple[str, Sink]], *, profile: str = "rollforge") -> None:
        self._members = [
            _Threaded(name, sink) if sink.is_remote else _Member(name, sink) for name, sink in sinks
        ]
        self._profile = profile

    def log(self, metrics: Mapping[str, float], *, step: int, at: float | None = None) -> None:
        """Pass one step's metrics to every sink. Non-finite values become None and are not plotted."""
        named = metrics if self._profile == "rollforge" else rename(metrics, self._profile)
        numbers = {name: (value if math.isfinite(value) else None) for name, value in named.items()}
        moment = time.time() if at is None else at
        for member in self._members:
            member.log(numbers, step, moment)

    def close(self) -> None:
        """Close every sink, within a time limit."""
        for member in self._members:
            member.close()

    @property
    def failures(self) -> dict[str, int]:
        """Sink → number of steps that it failed to log; empty without failures."""
        return {member.name: member.failures for member in self._members if member.failures}

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Member:
    """A guarded sink: its first failure is warned about, all failures are counted, none is raised."""

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self.failures = 0
        self._sink = sink

    def log(self, metrics: Mapping[str, float | None], step: int, at: float) -> None:
        try:
            self._sink.log(metrics, step=step, at=at)
        except Exception as error:  # noqa: BLE001  (telemetry may not take a run down)
            self.count_failure(f"{type(error).__name__}: {error}")

    def count_failure(self, reason: str) -> None:
        self.failures += 1
        if self.failures == 1:
            logger.warning("the sink %r failed: %s (said once; the run goes on)", self.name, reason)

    def close(self) -> None:
        _quietly_close(self.name, self._sink)


class _Threaded(_Member):
    """A guarded sink with its own thread, for sinks that block on other systems."""

    CLOSE_SECONDS = 15.0

    def __init__(self, name: str, sink: Sink) -> None:
        super().__init__(name, sink)
        self._steps: queue.Queue[tuple[Mapping[str, float | None], int, float] | None] = queue.Queue(
            QUEUE_STEPS
        )
        self._thread = threading.Thread(target=self._work, name=f"sink-{name}", daemon=True)
        self._thread.start()

    def log(self, metrics: Mapping[str, float | None], step: int, at: float) -> None:
        if not self._thread.is_alive():
            self.count_failure("its thread has ended")
            return
        try:
            self._steps.put_nowait((metrics, step, at))
        except queue.Full:
            self.count_failure(f"it is {QUEUE_STEPS} steps behind; steps are dropped")

    def _work(self) -> None:
        try:
            while (item := self._steps.get()) is not None:
                super().log(*item)
            super().close()
        except BaseException as error:  # noqa: BLE001  (a client that raises SystemExit ends this thread only)
            # The step it had, and every step still waiting, is lost with the thread.
            for _ in range(1 + self._steps.qsize()):
                self.count_failure(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        deadline = time.monotonic() + self.CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(queue.Full):
                self._steps.put(None, timeout=0.1)
                break
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.count_failure(f"it did not finish within {self.CLOSE_SECONDS:.0f} s")
