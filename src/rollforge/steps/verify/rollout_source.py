"""A run's rollouts: those on disk, or with `--follow` also those to come, until the collecting process has ended.

The run's lock shows whether a process on this machine still collects. A process on another machine counts as dead when its
manifest, normally rewritten every few seconds, has not changed for `SILENT_SECONDS`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

from rollforge.errors import RollforgeError, UsageError
from rollforge.rollouts import GrowingLines, Rollout, RolloutReader
from rollforge.store import RunFiles, is_alive, read_manifest
from rollforge.store.lock import is_held, was_killed

POLL_SECONDS = 0.2
APPEAR_SECONDS = 120.0
"""How long `--follow` waits for a run that does not exist yet."""
RESTART_SECONDS = 3.0
"""How long to wait for a run to be resumed if its collecting process was killed before `--follow` began."""
SILENT_SECONDS = 120.0
"""Time without a manifest update after which a collecting process on another machine counts as dead."""


class RolloutSource:
    """The rollouts of a run that another process may still be collecting."""

    def __init__(self, files: RunFiles, *, is_following: bool) -> None:
        self._files = files
        self._is_following = is_following
        self._is_stopping = False
        self.is_waiting = False
        """Whether all rollouts collected so far were returned."""
        self.note: str | None = None
        """Why following ended, unless the collecting process reported its end."""
        self._heard_at = time.monotonic()
        self._last_heard: tuple[float, int] | None = None

    def stop(self) -> None:
        """Return no further rollouts."""
        self._is_stopping = True

    async def await_file(self) -> None:
        """Wait until the rollouts file exists; without `--follow` it must exist."""
        deadline = time.monotonic() + (APPEAR_SECONDS if self._is_following else 0)
        was_collecting, dead_since = False, None
        while not self._is_there():
            is_collecting = self._is_following and self._is_collecting()
            is_dead = self._is_following and not is_collecting and was_killed(self._files.lock)
            dead_since = (dead_since or time.monotonic()) if is_dead else None
            is_over = dead_since is not None and time.monotonic() - dead_since >= RESTART_SECONDS
            if ((was_collecting and not is_collecting) or is_over) and not self._is_there():
                raise UsageError(
                    f"{self._files.rollouts}: no such run: the process that was to collect it has ended",
                    hint="see why it ended, and collect again: rollforge collect --help",
                )
            was_collecting = is_collecting
            if (time.monotonic() >= deadline and not is_collecting) or self._is_stopping:
                raise UsageError(
                    f"{self._files.rollouts}: no such run", hint="collect one first: rollforge collect --help"
                )
            self.is_waiting = True
            await asyncio.sleep(POLL_SECONDS)

    def _is_there(self) -> bool:
        return self._files.rollouts.exists() or self._files.is_sharded

    async def await_end(self) -> None:
        """Wait until no process collects the run; returns at once without `--follow`."""
        while self._is_following and not self._is_stopping and self._is_collecting():
            self.is_waiting = True
            await asyncio.sleep(POLL_SECONDS)
        self.is_waiting = False

    async def rollouts(self, reader: RolloutReader) -> AsyncIterator[Rollout]:
        """Yield every rollout once, in file order."""
        if not self._is_following:
            for whole in reader:
                yield whole
            return
        lines = GrowingLines(self._files.rollouts)
        try:
            has_ended = False
            while not self._is_stopping:
                was_ended, has_new = has_ended, False
                for number, line in lines.read():
                    has_new, self.is_waiting = True, False
                    rollout = reader.parse(number, line)
                    if rollout is not None:
                        yield rollout
                if was_ended and not has_new:
                    return  # the last look, after the run's end, found nothing more
                has_ended = not self._is_collecting()
                if not has_new and not has_ended:
                    self.is_waiting = True
                    await asyncio.sleep(POLL_SECONDS)
        finally:
            self.is_waiting = False
            lines.close()

    def _is_collecting(self) -> bool:
        try:
            manifest = read_manifest(self._files)
        except RollforgeError:
            manifest = None
        if manifest is None:
            return is_held(self._files.lock)
        if manifest.state != "running" or not is_alive(self._files, manifest):
            return False
        if manifest.host in ("", None, socket.gethostname()):
            return True
        heard, now = (manifest.updated, manifest.finished), time.monotonic()
        if heard != self._last_heard:
            self._last_heard, self._heard_at = heard, now
        if now - self._heard_at < SILENT_SECONDS:
            return True
        self.note = (
            f"the process that collects on {manifest.host} has not reported for {SILENT_SECONDS:g} s: "
            "it counts as dead; follow again when it runs"
        )
        return False
