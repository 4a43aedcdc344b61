"""HTTP/1.1 on the wire: bytes → request, reply → bytes, and rejection of cross-site requests.

It supports what tests need: keep-alive, Content-Length and chunked bodies, `Expect: 100-continue`.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl

from rollforge.runtime.web_guard import WebGuard

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024
_MAX_FILE = 256 * 1024 * 1024
_FILES = ("/v1/files", "/files")
"""Paths for file uploads, which are forms."""
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_SERVER = "Server: rollforge-simulate\r\n"


class HttpRequest(NamedTuple):
    """A request with its complete body."""

    method: str
    path: str
    headers: dict[str, str]
    """Headers by lower-case name."""
    body: bytes
    query: dict[str, str] = {}  # noqa: RUF012  (never changed)
    """Query string: the text after the question mark."""

    @property
    def keeps_alive(self) -> bool:
        """Whether the client keeps the connection alive."""
        wishes = self.headers.get("connection", "").lower().split(",")
        return "close" not in [wish.strip() for wish in wishes]


class HttpReply(NamedTuple):
    """A response with its complete body."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    events: tuple[bytes, ...] = ()
    """Events of a stream, each sent as a chunk; `body` then contains all of them."""

    def head(self, length: int | None = None, *, chunked: bool = False) -> bytes:
        """Status line and headers.

        Args:
            length: the declared Content-Length, if it differs from the body's.
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
        """The complete reply as bytes."""
        if self.events:
            return self.head(chunked=True) + b"".join(map(chunk, self.events)) + LAST_CHUNK
        return self.head() + self.body


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


class BadRequest(Exception):
    """The bytes are not a request; the connection must be closed."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def cross_site_reason(request: HttpRequest, host: str) -> str | None:
    """Why a request is refused as possibly sent by a web page; None if it is accepted.

    A plain form's content type is also what `curl -d` and urllib send by default: it is refused only from browsers, whose headers
    identify them.
    """
    content_type = request.headers.get("content-type", "").lower()
    is_browser = request.headers.get("user-agent", "").lower().startswith("mozilla/")
    is_default = content_type in ("", "application/x-www-form-urlencoded") and not is_browser
    guard = WebGuard(host=host, needs_json=request.path not in _FILES and not is_default)
    refused = guard.refusal(request.method, request.headers)
    return None if refused is None else refused.reason


class Head(NamedTuple):
    """Request line and headers, and the offset of the body."""

    method: str
    path: str
    headers: dict[str, str]
    end: int
    query: dict[str, str]


def read_head(buffer: bytearray) -> Head | None:
    """Parse the head at the start of the buffer; None until it is complete."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        if len(buffer) > _MAX_HEAD:
            raise BadRequest(431, "the headers are too long")
        return None
    first, *lines = buffer[:end].decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "this is not HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name.lower() == "host" and "host" in headers:
            raise BadRequest(400, "the request has two Host headers")
        headers[name.lower()] = value.strip()
    if words[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    path, _, query = words[1].partition("?")
    return Head(words[0], path, headers, end + 4, dict(parse_qsl(query)))


def read_body(buffer: bytearray, head: Head) -> tuple[bytes, int] | None:
    """The body after the head, and the offset of the next request; None until it is complete."""
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        return _read_chunks(buffer, head.end, _most(head))
    length = _number(head.headers.get("content-length", "0"), 10, "Content-Length is not a number")
    if length > _most(head):
        raise BadRequest(413, "the body is too long")
    end = head.end + length
    return (bytes(buffer[head.end : end]), end) if len(buffer) >= end else None


def _most(head: Head) -> int:
    return _MAX_FILE if head.path in _FILES else _MAX_BODY


def _read_chunks(buffer: bytearray, first: int, most: int) -> tuple[bytes, int] | None:
    pieces: list[bytes] = []
    start = first
    while True:
        line_end = buffer.find(b"\r\n", start)
        if line_end < 0:
            if len(buffer) - start > _MAX_HEAD:
                raise BadRequest(400, "a chunk has no size")
            return None
        text = buffer[start:line_end].split(b";")[0].strip().decode("latin-1")
        after = line_end + 2 + _number(text, 16, "a chunk has no size")
        if after - first > most:
            raise BadRequest(413, "the body is too long")
        if len(buffer) < after + 2:
            return None
        if after == line_end + 2:
            return b"".join(pieces), after + 2
        pieces.append(bytes(buffer[line_end + 2 : after]))
        start = after + 2


def _number(text: str, base: Literal[10, 16], complaint: str) -> int:
    """Parse a size: only digits (`int` also accepts signs and underscores), and not too many."""
    digits = "0123456789abcdefABCDEF" if base == 16 else "0123456789"
    if not 1 <= len(text) <= 16 or text.strip(digits):
        raise BadRequest(400, complaint)
    return int(text, base)
