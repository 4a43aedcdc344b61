"""This module reads requests from and writes replies to the bytes of HTTP/1.1.

It knows what a test bench needs: keep-alive, Content-Length and chunked bodies, `Expect: 100-continue`.
Nothing is looked up or decided here."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_SERVER = "Server: rollforge-simulate\r\n"


class Request(NamedTuple):
    """A whole request."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Whether the client wants to use the connection again."""
        return self.headers.get("connection", "").lower() != "close"


class Reply(NamedTuple):
    """What goes back."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    def head(self, length: int | None = None) -> bytes:
        """Status line and headers; `length` claims another length than the body has."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        size = len(self.body) if length is None else length
        return (
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Unknown')}\r\n{_SERVER}"
            f"Content-Type: {self.content_type}\r\nContent-Length: {size}\r\n{lines}\r\n"
        ).encode("latin-1", "replace")

    def to_bytes(self) -> bytes:
        """The whole reply."""
        return self.head() + self.body


class BadRequest(Exception):
    """The bytes are no request; the connection cannot be used further."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Head(NamedTuple):
    """The request line and headers, and where the body starts."""

    method: str
    path: str
    headers: dict[str, str]
    end: int


def read_head(buffer: bytearray) -> Head | None:
    """The head of the request the buffer starts with; None until it is whole."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > _MAX_HEAD:
            raise BadRequest(431, "the headers are too long")
        return None
    first, *lines = buffer[:end].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "this is not HTTP/1.1")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    return Head(words[0], words[1].partition("?")[0], headers, end + 4)


def read_body(buffer: bytearray, head: Head) -> tuple[bytes, int] | None:
    """The body after the head, and where the next request starts; None until it is whole."""
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        return _read_chunks(buffer, head.end)
    text = head.headers.get("content-length", "0")
    if not text.isdecimal():
        raise BadRequest(400, "Content-Length is not a number")
    length = int(text)
    if length > _MAX_BODY:
        raise BadRequest(413, "the body is too long")
    end = head.end + length
    return (bytes(buffer[head.end : end]), end) if len(buffer) >= end else None


def _read_chunks(buffer: bytearray, start: int) -> tuple[bytes, int] | None:
    pieces: list[bytes] = []
    while True:
        line_end = buffer.find(b"\r\n", start)
        if line_end < 0:
            return None
        try:
            size = int(buffer[start:line_end].split(b";")[0], 16)
        except ValueError as error:
            raise BadRequest(400, "a chunk has no size") from error
        after = line_end + 2 + size
        if after - start > _MAX_BODY:
            raise BadRequest(413, "the body is too long")
        if len(buffer) < after + 2:
            return None
        if size == 0:
            return b"".join(pieces), after + 2
        pieces.append(bytes(buffer[line_end + 2 : after]))
        start = after + 2
