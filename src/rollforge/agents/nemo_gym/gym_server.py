"""HTTP client for one NeMo Gym server, with one session cookie per rollout.

An unreachable server is retried as long as patience lasts, then the run stops (`Outage`). The caller interprets every answer, 500s
included. A request that reached the server is never sent twice: tools have side effects. A session does not survive its server:
when the server was away, the attempt ends and starts again with a new session.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import aiohttp
import msgspec

from rollforge.endpoint import MAX_RESPONSE_BYTES, open_session, proxy_for, read_body
from rollforge.endpoint.breaker import Breaker
from rollforge.endpoint.client import Outage
from rollforge.endpoint.failures import message_of
from rollforge.errors import Boundary, Failure, FailureClass
from rollforge.json_shapes import Shape
from rollforge.records import from_json, to_json
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.reading import UNREADABLE

FIRST_PATIENCE_S = 15.0
"""How long to wait for a server that never answered."""
WATCH_S = 0.2
"""Interval at which the watcher reconnects."""
CLOSE_S = 10.0
"""How long a server may take to close a session."""


@dataclass(slots=True)
class Session:
    """One rollout's session with a server: its latest cookies, and the server process that it belongs to."""

    cookies: dict[str, str] = field(default_factory=dict)
    outages: int | None = None
    """The server's outage count when the session began; None before the first answer."""
    identity: str | None = None
    """The session id inside the cookie, if it is readable."""

    def headers(self) -> dict[str, str]:
        """The headers that continue the session."""
        if not self.cookies:
            return {}
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}

    def keep(self, answer: aiohttp.ClientResponse) -> bool:
        """Keep the cookies that the server set; returns False if they belong to another session."""
        for name, morsel in answer.cookies.items():
            self.cookies[name] = morsel.coded_value
        identity = next(filter(None, map(_session_id, self.cookies.values())), None)
        is_same = self.identity is None or identity == self.identity
        self.identity = identity
        return is_same


class _SignedSession(msgspec.Struct):
    session_id: str | None = None


def _session_id(cookie: str) -> str | None:
    """The id in a signed session cookie: base64 of JSON before the first dot. The signature is not checked."""
    try:
        data = base64.b64decode(cookie.partition(".")[0] + "==")
        return decode_json(data, _SignedSession).session_id
    except (ValueError, *UNREADABLE):
        return None


@dataclass(frozen=True, slots=True)
class GymAnswer:
    """A server's answer."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def message(self) -> str:
        """Status and the server's error text, shortened."""
        return f"HTTP {self.status}: {message_of(self.body)}"


class GymServer:
    """One server by its URL. The HTTP session is shared by all servers of a run."""

    def __init__(
        self,
        url: str,
        http: aiohttp.ClientSession,
        *,
        patience_s: float,
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.url = url.rstrip("/")
        self.outages = 0
        """Number of outages seen."""
        self.is_gymnasium = False
        """Whether it serves `/reset` and `/step` (gymnasium) instead of `/seed_session` and `/verify`."""
        self.is_typed = False
        """Whether its `/run` takes typed episodes instead of rows."""
        self._missing_paths: set[str] = set()
        self._proxy = proxy_for(self.url)
        self._http = http
        self._patience_s = patience_s
        self._max_bytes = max_bytes
        self._breaker = Breaker()
        self._has_answered = False
        self._last_error = ""
        self._watching: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Stop watching the server."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
            await asyncio.sleep(0)  # the loop closes the connection's socket in its next round

    async def _watch(self) -> None:
        """Detect that the server went away, also while no request is in flight.

        An idle connection ends with the server's process. Only a refused reconnection counts as an outage: proxies close idle
        connections too.
        """
        parts = urlsplit(self.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        while True:
            try:
                reader, writer = await asyncio.open_connection(parts.hostname, port)
            except ConnectionRefusedError as error:
                self.outages += 1
                self._last_error = f"cannot connect: {error.strerror or error}"
            except OSError:
                pass  # no such host, no descriptor left: says nothing about the server
            else:
                try:
                    with contextlib.suppress(OSError):
                        await reader.read(1)
                finally:  # also when the watch is cancelled
                    writer.close()
            await asyncio.sleep(WATCH_S)

    def _start_watching(self) -> None:
        if (
            self._watching is None or self._watching.done()
        ):  # a watcher that died is replaced at the next answer
            self._watching = asyncio.create_task(self._watch(), name=f"watch {self.url}")

    async def post(
        self, path: str, body: Mapping[str, object], *, session: Session, boundary: Boundary, timeout_s: float
    ) -> GymAnswer:
        """The answer, whatever its status; raises `Failure` of `boundary` when the connection breaks or time is up."""
        data = to_json(body)
        while True:
            self._check_session(session, path)
            await self._may_ask()
            self._breaker.begin()
            try:
                answer, is_same = await self._send(path, data, session, timeout_s, boundary)
            except Failure:
                self._breaker.succeed()  # it answers, but more than we read
                raise
            except aiohttp.ClientConnectorError as error:
                # Nothing was delivered, so asking again is safe; a session, however, is gone with its server.
                self._last_error = f"cannot connect: {error.os_error.strerror or error.os_error}"
                self._breaker.fail(time.monotonic(), is_unreachable=True)
                self.outages += isinstance(error.os_error, ConnectionRefusedError)
                self._check_session(session, path)
                await asyncio.sleep(0.2)
            except TimeoutError:
                self._breaker.succeed()  # slow is not gone
                raise Failure(
                    boundary, "timeout", f"{self.url}{path}: no answer within {timeout_s:g} s"
                ) from None
            except (aiohttp.ClientError, OSError) as error:
                self._last_error = f"{type(error).__name__}: {error}"
                self._breaker.fail(time.monotonic())
                raise Failure(boundary, "transient", f"{self.url}{path}: {self._last_error}") from error
            except asyncio.CancelledError:
                self._breaker.release()
                raise
            else:
                self._breaker.succeed()
                self._has_answered = True
                self._start_watching()
                if not is_same:
                    raise self._lost_session(path)
                return answer

    async def close_session(
        self, session: Session, body: Mapping[str, object], *, path: str = "/close_session"
    ) -> None:
        """Close a rollout's session, also after a failure or cancellation; errors are ignored."""
        if session.outages is None or path in self._missing_paths:
            return
        try:
            answer, _ = await asyncio.shield(self._send(path, to_json(body), session, CLOSE_S, "agent"))
        except (aiohttp.ClientError, OSError, TimeoutError, Failure):
            return
        if answer.status in (404, 405):
            self._missing_paths.add(path)

    async def has_path(self, path: str) -> bool:
        """Whether the server has this POST path: it then refuses a GET with 405, which has no side effect."""
        limit = aiohttp.ClientTimeout(total=CLOSE_S)
        try:
            async with self._http.get(
                self.url + path, timeout=limit, proxy=self._proxy, allow_redirects=False
            ) as answer:
                return answer.status == 405
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    def _check_session(self, session: Session, path: str) -> None:
        if session.outages is not None and session.outages != self.outages:
            raise self._lost_session(path)

    def _lost_session(self, path: str) -> Failure:
        text = f"{self.url}{path}: the server was away since this session began ({self._last_error or 'it restarted'})"
        # The whole attempt is lost: a verdict of a server that forgot the session would be wrong.
        failure = Failure("agent", "transient", f"{text}; the attempt starts again")
        failure.peer_kind = "session_lost"
        return failure

    async def _send(
        self, path: str, data: bytes, session: Session, timeout_s: float, boundary: Boundary
    ) -> tuple[GymAnswer, bool]:
        headers = {"Content-Type": "application/json", **session.headers()}
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=30)
        async with self._http.post(
            self.url + path,
            data=data,
            headers=headers,
            timeout=limit,
            proxy=self._proxy,
            allow_redirects=False,
        ) as answer:
            body = await read_body(answer, self._max_bytes, boundary=boundary)
            is_same = session.keep(answer)
            if session.outages is None:
                session.outages = self.outages
            return GymAnswer(answer.status, body), is_same

    async def _may_ask(self) -> None:
        """Wait while the breaker is open, at most as long as patience lasts."""
        while (wait := self._breaker.wait_s(time.monotonic())) > 0:
            since = self._breaker.down_since
            patience = self._patience_s if self._has_answered else min(FIRST_PATIENCE_S, self._patience_s)
            if since is not None and time.monotonic() - since > patience:
                raise Outage(
                    f"{self.url} has not answered for {time.monotonic() - since:.0f} s ({self._last_error})"
                )
            await asyncio.sleep(min(wait, 0.5))


def open_http() -> aiohttp.ClientSession:
    """The HTTP session of a run."""
    return open_session(keepalive_s=15)


def refuse_errors(answer: GymAnswer, what: str, boundary: Boundary) -> None:
    """Raise a `Failure` for any status but 200."""
    if answer.status != 200:
        kind = _class_of(answer.status, boundary)
        raise Failure(boundary, kind, f"{what}: {answer.message}", status=answer.status)


def read_object(answer: GymAnswer, what: str, boundary: Boundary, shape: type[Shape]) -> Shape:
    """The JSON object in a 200 answer; anything else is a `Failure`.

    Args:
        shape: The static type of the result; fields are not checked.
    """
    refuse_errors(answer, what, boundary)
    otherwise: FailureClass = "verifier" if boundary == "verifier" else "agent"
    try:
        value = from_json(answer.body)
    except UNREADABLE as error:
        raise Failure(boundary, otherwise, f"{what}: torn JSON: {error}") from error
    if not isinstance(value, dict):
        raise Failure(boundary, otherwise, f"{what}: answered with no object")
    return cast("Shape", value)


def _class_of(status: int, boundary: Boundary) -> FailureClass:
    if boundary == "verifier":
        return "verifier"
    if status == 404:
        return "not-found"  # the path is missing: this is another kind of server, and every row would find that out
    # 422: the row does not fit the server's schema, and no further attempt changes that.
    return "permanent" if 400 <= status < 500 and status not in (408, 425, 429) else "agent"
