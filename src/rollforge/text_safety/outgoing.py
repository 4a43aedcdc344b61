"""The last layer before a file or stream: removes secrets, and replaces paths of working copies by bucket addresses.

Every writer passes its bytes through `outgoing_bytes` (`store/atomic.py`, `store/durable.py`), and `main` puts `guard_output` between
the program and its stdout and stderr.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any

from rollforge.text_safety.bucket_addresses import ADDRESSES
from rollforge.text_safety.redaction import SECRETS


def outgoing_text(text: str) -> str:
    """The text as it may be displayed."""
    return SECRETS.text(ADDRESSES.text(text))


def outgoing_bytes(data: bytes) -> bytes:
    """The bytes as they may be written; the same object if nothing is replaced."""
    return SECRETS.data(ADDRESSES.data(data))


def cut(text: str, most: int) -> str:
    """The first `most` characters of a text that others wrote. Secrets go first: half of one would no longer be recognized."""
    return SECRETS.text(text)[:most]


class _Redacting:
    """A text stream that redacts all writes; everything else is delegated."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(outgoing_text(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> _RedactingBuffer:
        return _RedactingBuffer(self._stream.buffer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _RedactingBuffer:
    """Binary buffer of a redacting stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        self._stream.write(outgoing_bytes(bytes(data)))
        return len(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def guard_output() -> None:
    """Redact stdout and stderr of this process; repeated calls have no effect."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOBase):
            setattr(sys, name, _Redacting(stream))
