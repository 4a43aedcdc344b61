"""Access rules for every HTTP server we start: web pages, rebound DNS names and other machines must not control it.

A page in a browser can send requests to loopback. The browser then names the page in `Origin` or `Sec-Fetch-Site`, or (DNS
rebinding) sends the page's own name as `Host`; a plain form cannot send JSON. Beyond loopback a token is required as well.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from aiohttp import web

Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


class Refusal(NamedTuple):
    """HTTP status and reason of a refused request."""

    status: int
    reason: str


class WebGuard(msgspec.Struct, frozen=True, kw_only=True):
    """Decides which requests a server accepts."""

    host: str
    """The address that the server listens on."""
    token: str | None = None
    """If set, required in `Authorization: Bearer TOKEN` (or as the password of Basic)."""
    needs_json: bool = True
    """Whether request bodies must have the content type `application/json`."""

    def refusal(self, method: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why the request is refused; None if it is accepted. Header names must be lower case."""
        named = headers.get("host")
        if named is not None and not self._serves(named):
            return Refusal(421, f"this server is not {named!r}")
        origin = headers.get("origin")
        if origin is not None and not self._serves(origin.partition("://")[2]):
            return Refusal(403, f"a request from the origin {origin!r} is refused")
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Refusal(403, "a cross-site request is refused")
        if self.token is not None and not self._has_token(headers.get("authorization", "")):
            return Refusal(401, "a token is required: Authorization: Bearer TOKEN")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.needs_json and method in ("POST", "PUT", "PATCH") and kind != "application/json":
            return Refusal(415, f"the content type must be application/json, not {kind or 'missing'}")
        return None

    def _serves(self, netloc: str) -> bool:
        """Whether a host name (with or without port) is this server's. IP addresses cannot be rebound, so a server on a wildcard
        address accepts them all.
        """
        name = _name_of(netloc)
        if name in (self.host.lower(), "localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return not is_loopback(self.host) and name in _own_names()
        return address.is_loopback or not is_loopback(self.host)

    def _has_token(self, authorization: str) -> bool:
        scheme, _, credentials = authorization.partition(" ")
        if scheme.lower() == "basic":
            try:
                credentials = base64.b64decode(credentials, validate=True).decode().partition(":")[2]
            except ValueError:  # neither ASCII nor base64, or not UTF-8 inside
                return False
        elif scheme.lower() != "bearer":
            return False
        return is_same_secret(credentials.strip(), self.token or "")

    def middleware(self) -> Any:
        """Apply these rules as middleware of an aiohttp application."""
        from aiohttp import web

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            headers = {name.lower(): value for name, value in request.headers.items()}
            refused = self.refusal(request.method, headers)
            if refused is not None:
                body = msgspec.json.encode({"detail": refused.reason})
                return web.Response(status=refused.status, body=body, content_type="application/json")
            return await handler(request)

        return guard

    def wsgi(self, app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
        """Apply these rules to a WSGI application."""

        def guarded(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            headers = {
                name[5:].replace("_", "-").lower(): str(value)
                for name, value in environ.items()
                if name.startswith("HTTP_")
            }
            headers["content-type"] = str(environ.get("CONTENT_TYPE") or "")
            refused = self.refusal(str(environ.get("REQUEST_METHOD", "GET")), headers)
            if refused is None:
                return app(environ, start_response)
            start_response(f"{refused.status} Refused", [("Content-Type", "text/plain; charset=utf-8")])
            return [refused.reason.encode()]

        return guarded


async def read_limited(
    request: web.Request, limit: int, *, each: Callable[[int], None] = lambda size: None
) -> bytes:
    """The decompressed body of a request; `each` is called with the size of every part and may raise.

    Raises aiohttp's 413 as soon as it exceeds `limit` bytes, and 400 if it is not in its content or transfer encoding, or if the
    client leaves before its end.
    """
    from aiohttp import web
    from aiohttp.http_exceptions import HttpProcessingError

    if request.content_length is not None and request.content_length > limit:
        raise web.HTTPRequestEntityTooLarge(limit, request.content_length)
    parts, size = [], 0
    try:
        async for part in request.content.iter_chunked(1 << 16):
            size += len(part)
            if size > limit:
                raise web.HTTPRequestEntityTooLarge(limit, size)
            each(len(part))
            parts.append(part)
    except (HttpProcessingError, web.RequestPayloadError, ConnectionError) as error:
        raise web.HTTPBadRequest(reason="the body cannot be read to its end") from error
    return b"".join(parts)


def quiet_logger() -> logging.Logger:
    """A logger for aiohttp that drops invalid requests: they get a 400, and no traceback on our stderr."""

    def is_ours(record: logging.LogRecord) -> bool:
        from aiohttp.http_exceptions import HttpProcessingError
        from aiohttp.web import RequestPayloadError

        theirs = (HttpProcessingError, RequestPayloadError)
        return not (record.exc_info and isinstance(record.exc_info[1], theirs))

    logger = logging.getLogger("rollforge.server")
    logger.addFilter(is_ours)
    return logger


def is_same_secret(received: str, expected: str) -> bool:
    """Compare in constant time; a header may hold any bytes, which aiohttp passes on as lone surrogates."""
    return hmac.compare_digest(received.encode(errors="surrogatepass"), expected.encode())


def is_loopback(host: str) -> bool:
    """Whether a server on `host` is reachable only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_NETLOC = re.compile(r"(\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:@/]+))(:[0-9]{1,5})?", re.IGNORECASE)


def _name_of(netloc: str) -> str:
    """The host name without port, in lower case; empty if it is invalid."""
    match = _NETLOC.fullmatch(netloc)
    return (match["address"] or match["name"]).lower() if match else ""


def _own_names() -> set[str]:
    name = socket.gethostname().lower()
    return {name, name.partition(".")[0], socket.getfqdn().lower()}
