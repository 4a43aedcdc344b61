"""The simulated server as a child process, with an event loop and interpreter lock of its own.

The child reads its options from standard input and prints its address. It exits when its standard input closes, so it cannot
outlive its parent. It runs in its own session, so that Ctrl-C for the parent does not stop the model while the parent drains.
"""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

from rollforge.errors import RollforgeError
from rollforge.records import from_json, to_json
from rollforge.simulate.simulate_options import SimulateOptions
from rollforge.store.reading import UNREADABLE

_GRACE_SECONDS = 5.0


class SimulatedProcess:
    """The server as a child process: `with SimulatedProcess(options) as server: server.base_url`."""

    def __init__(self, options: SimulateOptions | None = None) -> None:
        self.options = options or SimulateOptions()
        self.options.check()
        self.base_url = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> Self:
        """Start the child and wait until it listens."""
        command = [sys.executable, "-P", "-m", "rollforge.simulate"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(to_json(self.options) + b"\n")
            self._process.stdin.flush()
            self.base_url = from_json(self._process.stdout.readline())["base_url"]
        except (*UNREADABLE, KeyError, TypeError, OSError) as error:
            self.stop()
            raise RollforgeError(
                "the simulated model did not start", hint="try it alone: rollforge simulate"
            ) from error
        return self

    def stop(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout:
            process.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
