"""What user code prints in this process: into a file, to stderr, or nowhere; never to stdout, where results go."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

from rollforge.errors import UsageError


class _Sink(Protocol):
    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


_SINK: ContextVar[_Sink | None] = ContextVar("user_prints", default=None)
"""Where the running code's prints go; None for our own code."""


_OPEN: set[int] = set()
"""Ids of the open `Prints` that have caught something: the streams are released with the last of them."""
_LOCK = threading.Lock()


class Prints:
    """Catches the prints of some user code; tasks and threads that it starts inherit this, until it is closed."""

    def __init__(self, path: str | Path | None, *, is_shown: bool) -> None:
        """Args: path: file that gets the prints. is_shown: without a file, they go to stderr; else they are dropped."""
        self._file = _opened(path) if path is not None else None
        self._sink: _Sink = self._file or (_Stderr() if is_shown else _Nowhere())

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Send what is printed in this context to its place."""
        with _LOCK:
            _OPEN.add(id(self))
            for name in ("stdout", "stderr"):
                if not isinstance(getattr(sys, name), _Divided):
                    setattr(sys, name, _Divided(getattr(sys, name)))
        token = _SINK.set(self._sink)
        try:
            yield
        finally:
            _SINK.reset(token)

    def close(self) -> None:
        """Release the file, and the streams unless others use them."""
        with _LOCK:
            _OPEN.discard(id(self))
            for name in () if _OPEN else ("stdout", "stderr"):
                if isinstance(stream := getattr(sys, name), _Divided):
                    setattr(sys, name, stream.real)
        if self._file is not None:
            self._file.close()


class _Divided:
    """A stream whose text goes to the sink of the running code, if it has one."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def write(self, text: str) -> object:
        return (_SINK.get() or self.real).write(text)

    def flush(self) -> None:
        (_SINK.get() or self.real).flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class _Stderr:
    """The stderr of the moment, which a live display may have replaced."""

    def write(self, text: str) -> object:
        return _real(sys.stderr).write(text)

    def flush(self) -> None:
        _real(sys.stderr).flush()


def _real(stream: Any) -> Any:
    return stream.real if isinstance(stream, _Divided) else stream


class _Nowhere:
    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass


def _opened(path: str | Path) -> Any:
    try:
        return Path(path).open("a", buffering=1, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}", hint="--verifier-output names a file for what the verifier prints"
        ) from error


@contextlib.contextmanager
def prints_on_stderr() -> Iterator[None]:
    """Send what the code inside prints to stderr."""
    prints = Prints(None, is_shown=True)
    try:
        with prints.caught():
            yield
    finally:
        prints.close()
