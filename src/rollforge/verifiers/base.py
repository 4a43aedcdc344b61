"""This module says what a verifier is, finds one by name or path, and runs it.

A verifier is any function `(task, response)`, sync or async, that returns a bool, a number, a dict of numbers with `reward`,
or None for "cannot judge". Raising means "failed to judge": it becomes a `Failure` of class `verifier`, never a zero.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rollforge.errors import Failure
from rollforge.records import Response, Task, Verdict
from rollforge.registry import load_target
from rollforge.verifiers import VERIFIERS

VerifierFunction = Callable[..., Any]


class Judge(Protocol):
    """A verifier made ready to run: what `collect` and `verify` hand their rollouts to."""

    @property
    def name(self) -> str:
        """As the user named it: `math`, `my_file.py:verify`."""

    @property
    def fingerprint(self) -> str:
        """Digest of source and options: two equal fingerprints give comparable verdicts."""

    async def start(self) -> None:
        """Make ready; raises `UsageError` when the verifier cannot run here."""

    async def judge(self, task: Task, response: Response) -> Verdict:
        """The verdict; raises `Failure("verifier", "verifier", …)` when there is none."""

    async def close(self) -> None:
        """Release everything `start` took."""


class Verifier(msgspec.Struct, frozen=True, kw_only=True):
    """A verifier as found, before it runs."""

    name: str
    function: VerifierFunction
    fingerprint: str
    needs: tuple[str, ...] = ()
    """Task fields it reads; a task file without them is refused before the first model call."""

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


def load_verifier(spec: str | VerifierFunction) -> Verifier:
    """The verifier called `spec`: a ready one by name, `file.py:name`, `module:name`, or a function itself."""
    if callable(spec):
        function, name = spec, getattr(spec, "__qualname__", type(spec).__name__)
    else:
        function, name = (load_target(spec) if ":" in spec else VERIFIERS.load(spec)), spec
    module = inspect.getmodule(function)
    return Verifier(
        name=name,
        function=function,
        fingerprint=_source_digest(function),
        needs=tuple(getattr(function, "needs", None) or getattr(module, "needs", ())),
    )


def _source_digest(function: VerifierFunction) -> str:
    """Digest of the whole file the function stands in: its neighbours decide the verdict as much as it does."""
    try:
        source = Path(inspect.getsourcefile(function) or "").read_bytes()
    except (OSError, TypeError):
        source = repr(getattr(function, "__code__", function)).encode()
    digest = hashlib.sha256(source)
    digest.update(getattr(function, "__qualname__", "").encode())
    return digest.hexdigest()[:16]


class InlineJudge:
    """Runs the verifier in the event loop's own thread: for verifiers that are quick or async."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    @property
    def name(self) -> str:
        return self._verifier.name

    @property
    def fingerprint(self) -> str:
        return self._verifier.fingerprint

    async def start(self) -> None:
        """Nothing to make ready."""

    async def judge(self, task: Task, response: Response) -> Verdict:
        try:
            value = self._verifier.function(task, response)
            if inspect.isawaitable(value):
                value = await value
            return Verdict.from_value(value)
        except Failure:
            raise
        except Exception as error:  # noqa: BLE001  (the boundary to the user's code)
            raise Failure("verifier", "verifier", f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Nothing to release."""
