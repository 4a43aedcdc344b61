"""HTTP/1.1 on the wire: bytes → request, reply → bytes, and which requests a loopback server must refuse.

It covers what a test bench needs: keep-alive, Content-Length and chunked bodies, `Expect: 100-continue`."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

from rollforge.web_guard import WebGuard

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_SERVER = "Server: rollforge-simulate\r\n"


class HttpRequest(NamedTuple):
    """One request, with its whole body."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        """Whether the client wants to reuse the connection."""
        return self.headers.get("connection", "").lower() != "close"


class HttpReply(NamedTuple):
    """One response, with its whole body."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()

    def head(self, length: int | None = None, *, chunked: bool = False) -> bytes:
        """Status line and headers.

        Args:
            length: the Content-Length to claim, when it differs from the body's.
            chunked: announce chunks instead of a length.
        """
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers)
        size = len(self.body) if length is None else length
        framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        return (
            f"HTTP/1.1 {self.status} {_REASONS.get(self.status, 'Unknown')}\r\n{_SERVER}"
            f"Content-Type: {self.content_type}\r\n{framing}\r\n{lines}\r\n"
        ).encode("latin-1", "replace")

    def to_bytes(self) -> bytes:
        """The whole reply."""
        return self.head() + self.body


class BadRequest(Exception):
    """The bytes are not a request; the connection must be closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def cross_site_reason(request: HttpRequest, host: str) -> str | None:
    """Why a request must be refused because a web page may have sent it; None when it is fine."""
    refused = WebGuard(host=host, needs_json=False).refusal(request.method, request.headers)
    if refused is not None:
        return refused.reason
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and content_type in ("text/plain", "multipart/form-data"):
        return f"the content type must be application/json, not {content_type}"
    return None


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
