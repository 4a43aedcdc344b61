"""One call of a verifier: binds its options, calls it, turns the result into a verdict or a failure.

The same code runs in the event loop and in worker processes, so verdicts do not depend on the place.
"""

from __future__ import annotations

import inspect
import os
import sysconfig
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec

from rollforge import records
from rollforge.errors import Failure, RollforgeError
from rollforge.records import Response, Task, Verdict
from rollforge.text_safety.outgoing import cut
from rollforge.verifiers.base import Verifier, convert_options, keyword_options, options_type, takes_self

if TYPE_CHECKING:
    import asyncio

MESSAGE_CHARS = 2000
LATE = "no verdict within"
"""Prefix of the message of a timed-out call."""

_PLAIN = (dict, bool, int, float)
"""Return types of most verifiers."""


class EngineState(msgspec.Struct, frozen=True, kw_only=True):
    """Queue and worker counts of a call engine."""

    queued: int = 0
    """Calls that wait for a worker."""
    busy: int = 0
    """Workers (or calls in the event loop) that are judging now."""
    workers: int = 0
    """Number of live worker processes; 0 in the event loop."""
    replaced: int = 0
    """Number of workers that died or were killed, and were replaced."""
    is_forked: bool = False
    """Whether workers are forks of this process, because no other process can import the verifier."""


class Stopped(Exception):
    """The call was cancelled because verification stops; it is neither a verdict nor a failure."""


class LiveVerifier:
    """A verifier with bound options, to be started, called and closed."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.call: Callable[..., Any]
        self._instance: Any = None
        self._runner: asyncio.Runner | None = None
        if verifier.is_class:
            self._instance = _instantiate(verifier)
            self.call = getattr(self._instance, verifier.method_name)
        else:
            self.call = _bind(verifier)

    def hooks(self, *names: str) -> list[Callable[[], Any]]:
        """The instance's set-up or tear-down methods among `names`."""
        hooks = [getattr(self._instance, name, None) for name in names]
        return [hook for hook in hooks if callable(hook)]

    async def start(self) -> None:
        """Run `start` or `setup`."""
        for hook in self.hooks("start", "setup")[:1]:
            await _awaited(hook())

    async def close(self) -> None:
        """Run `close` or `teardown`."""
        for hook in self.hooks("close", "teardown")[:1]:
            await _awaited(hook())

    def start_now(self) -> None:
        """Run `start` or `setup` in a process without an event loop."""
        if self.hooks("start", "setup"):
            self._run(self.start())

    def close_now(self) -> None:
        """Run `close` or `teardown` in a process without an event loop."""
        if self.hooks("close", "teardown"):
            self._run(self.close())
        if self._runner is not None:
            self._runner.close()

    def judge_now(self, task: Task, responses: list[Response]) -> list[Verdict]:
        """Verdicts of one call in a process without an event loop; an async verifier runs in a loop kept for all calls."""
        value = self.called(task, responses)
        if is_awaitable(value):
            value = self._run(_awaited(value))
        return self.verdicts(value, len(responses))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run in one loop kept for all calls, since connections of a verifier belong to the loop that opened them."""
        import asyncio  # here: most workers never need it, and start in half the time without

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(work)

    async def judge(self, task: Task, responses: list[Response]) -> list[Verdict]:
        """Verdicts of one call, in the event loop."""
        value = self.called(task, responses)
        if is_awaitable(value):
            value = await value
        return self.verdicts(value, len(responses))

    def called(self, task: Task, responses: list[Response]) -> Any:
        """The verifier's return value: a verdict, or an awaitable."""
        return self.call(task, responses) if self.verifier.is_group else self.call(task, responses[0])

    def verdicts(self, value: object, count: int) -> list[Verdict]:
        """Convert a returned value to verdicts; raises `ValueError` if it is invalid."""
        if not self.verifier.is_group:
            return [Verdict.from_value(value)]
        if not isinstance(value, list | tuple) or len(value) != count:
            raise ValueError(
                f"the group verifier returned {_short(value)} for {count} responses; it must return a list of {count}"
            )
        return [Verdict.from_value(item) for item in value]


def is_awaitable(value: object) -> bool:
    """Whether to await the value; plain types are checked first, since `inspect` costs as much as a short verdict."""
    return not isinstance(value, _PLAIN) and inspect.isawaitable(value)


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


def _instantiate(verifier: Verifier) -> Any:
    options = dict(verifier.options)
    struct = options_type(verifier.function)
    if struct is not None:
        if "fast_mode" in struct.__struct_fields__ and verifier.mode:
            options["fast_mode"] = verifier.mode == "fast"
        argument: Any = convert_options(verifier.name, struct, options)
    else:
        argument = {**options, "fast_mode": verifier.mode == "fast"} if verifier.mode else options
    takes_options = bool(inspect.signature(verifier.function).parameters)
    instance = verifier.function(argument) if takes_options else verifier.function()
    if verifier.mode and not hasattr(instance, "mode"):
        instance.mode = verifier.mode
    return instance


def _bind(verifier: Verifier) -> Callable[..., Any]:
    function = verifier.function
    if takes_self(function):
        return partial(
            function, SimpleNamespace(config={**verifier.options, "fast_mode": verifier.mode == "fast"})
        )
    keywords = dict(verifier.options)
    names = keyword_options(function)
    if verifier.mode and "fast_mode" in names:
        keywords["fast_mode"] = verifier.mode == "fast"
    if verifier.mode and "mode" in names:
        keywords["mode"] = verifier.mode
    return partial(function, **keywords) if keywords else function


def _short(value: object) -> str:
    text = _written(lambda: repr(value), f"<{type(value).__qualname__} whose repr raised {{}}>")
    return text if len(text) <= 200 else cut(text, 200) + "…"


def _written(write: Callable[[], str], otherwise: str) -> str:
    """A text that a user's class writes of itself; `otherwise`, with the error's name, if that raises."""
    try:
        return write()
    except Exception as error:  # noqa: BLE001  (a user's __repr__ or __str__ may raise anything)
        return otherwise.format(type(error).__name__)


def verifier_failure(message: str) -> Failure:
    """The failure for a missing verdict."""
    return Failure("verifier", "verifier", cut(message, MESSAGE_CHARS))


def failure_message(error: BaseException, verifier: Verifier | None = None) -> str:
    """The traceback's last line and its location in user code; our own errors keep their text."""
    if isinstance(error, RollforgeError):
        return f"{error} ({error.hint})" if error.hint else str(error)
    if isinstance(error, Failure):
        return error.message
    last = _written(lambda: "".join(traceback.format_exception_only(error)), type(error).__qualname__)
    last = " ".join(last.split("\n")).strip()
    source = _position_of(error, verifier)
    if len(last) > MESSAGE_CHARS - 300:
        last = last[: MESSAGE_CHARS - 300] + "…"
    return f"{last} ({source})" if source else last


def _position_of(error: BaseException, verifier: Verifier | None) -> str:
    """`file.py:12 in verify`: the deepest frame in the verifier's file, else in code that is not installed."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__, limit=-200)
        if frame.filename not in _RUNNING_FILES
    ]
    if not frames:
        return ""
    own = _own_file(verifier)
    theirs = [frame for frame in frames if frame.filename == own] or [
        frame for frame in frames if not is_installed(frame.filename)
    ]
    frame = (theirs or frames)[-1]
    return f"{shown_path(frame.filename)}:{frame.lineno} in {frame.name}"


def _own_file(verifier: Verifier | None) -> str | None:
    function: Any = verifier.judging_function if verifier else None
    code = getattr(inspect.unwrap(function) if function else None, "__code__", None)
    return code.co_filename if code else None


def is_installed(filename: str) -> bool:
    """Whether the file belongs to Python, to an installed library or to `rollforge.verifiers`."""
    return "site-packages" in filename or filename.startswith(("<frozen", _HERE, _STDLIB))


_STDLIB = sysconfig.get_paths()["stdlib"]
_RUNNING = str(Path(__file__).parent) + os.sep
_HERE = str(Path(__file__).parent.parent) + os.sep
_RUNNING_FILES = {records.__file__, *(_RUNNING + name for name in ("calling.py", "in_loop.py", "worker.py"))}
"""Files that occur in every traceback and are never user code."""


def shown_path(filename: str) -> str:
    """The path relative to the working directory, if it is inside."""
    here = os.getcwd() + os.sep  # noqa: PTH109  (a text is compared)
    return filename[len(here) :] if filename.startswith(here) else filename
