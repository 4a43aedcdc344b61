"""HTTP client for one NeMo Gym server, with one session cookie per rollout.

An unreachable server is retried as long as patience lasts, then the run stops (`Outage`). The caller interprets every answer, 500s
included. A request that reached the server is never sent twice: tools have side effects.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import aiohttp

from rollforge.endpoint.breaker import Breaker
from rollforge.endpoint.client import Outage
from rollforge.endpoint.faults import message_of
from rollforge.errors import Boundary, Failure, FailureClass
from rollforge.records import JsonObject, from_json, to_json
from rollforge.store.reading import UNREADABLE

FIRST_PATIENCE_S = 15.0
"""How long to wait for a server that never answered."""


@dataclass(slots=True)
class Session:
    """One rollout's session with a server: the cookies it was given last, as they came."""

    cookies: dict[str, str] = field(default_factory=dict)

    def headers(self) -> dict[str, str]:
        """What to send along."""
        if not self.cookies:
            return {}
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items())}

    def keep(self, answer: aiohttp.ClientResponse) -> None:
        """Remember what the server set; it re-sends the cookie with every answer."""
        for name, morsel in answer.cookies.items():
            self.cookies[name] = morsel.coded_value


@dataclass(frozen=True, slots=True)
class GymAnswer:
    """What a server answered."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    @property
    def message(self) -> str:
        """Status and the server's own words, cut to a readable length."""
        return f"HTTP {self.status}: {message_of(self.body)}"


class GymServer:
    """One server by its URL. The HTTP session is shared by all servers of a run."""

    def __init__(self, url: str, http: aiohttp.ClientSession, *, patience_s: float) -> None:
        self.url = url.rstrip("/")
        self._http = http
        self._patience_s = patience_s
        self._breaker = Breaker()
        self._has_answered = False
        self._last_error = ""

    async def post(
        self, path: str, body: JsonObject, *, session: Session, boundary: Boundary, timeout_s: float
    ) -> GymAnswer:
        """The answer, whatever its status; raises `Failure` of `boundary` when the connection breaks or time is up."""
        data = to_json(body)
        while True:
            await self._may_ask()
            self._breaker.begin()
            try:
                answer = await self._send(path, data, session, timeout_s)
            except aiohttp.ClientConnectorError as error:
                # Nothing was delivered, so asking again is safe.
                self._last_error = f"cannot connect: {error.os_error.strerror or error.os_error}"
                self._breaker.fail(time.monotonic(), is_unreachable=True)
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
                return answer

    async def _send(self, path: str, data: bytes, session: Session, timeout_s: float) -> GymAnswer:
        headers = {"Content-Type": "application/json", **session.headers()}
        limit = aiohttp.ClientTimeout(total=timeout_s, sock_connect=30)
        async with self._http.post(self.url + path, data=data, headers=headers, timeout=limit) as answer:
            body = await answer.read()
            session.keep(answer)
            return GymAnswer(answer.status, body)

    async def _may_ask(self) -> None:
        """Wait while the breaker is open, but not longer than patience lasts."""
        while (wait := self._breaker.wait_s(time.monotonic())) > 0:
            since = self._breaker.down_since
            patience = self._patience_s if self._has_answered else min(FIRST_PATIENCE_S, self._patience_s)
            if since is not None and time.monotonic() - since > patience:
                raise Outage(
                    f"{self.url} has not answered for {time.monotonic() - since:.0f} s ({self._last_error})"
                )
            await asyncio.sleep(min(wait, 0.5))


def open_http() -> aiohttp.ClientSession:
    """The HTTP session of a run: no pool limit beside ours, and no shared cookie jar, since cookies belong to rollouts."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15, ttl_dns_cache=300),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def refuse_errors(answer: GymAnswer, what: str, boundary: Boundary) -> None:
    """Raise a `Failure` for every answer but 200."""
    if answer.status != 200:
        kind = _class_of(answer.status, boundary)
        raise Failure(boundary, kind, f"{what}: {answer.message}", status=answer.status)


def read_object(answer: GymAnswer, what: str, boundary: Boundary) -> JsonObject:
    """The JSON object in a 200 answer; anything else is a `Failure`."""
    refuse_errors(answer, what, boundary)
    otherwise: FailureClass = "verifier" if boundary == "verifier" else "agent"
    try:
        value = from_json(answer.body)
    except UNREADABLE as error:
        raise Failure(boundary, otherwise, f"{what}: torn JSON: {error}") from error
    if not isinstance(value, dict):
        raise Failure(boundary, otherwise, f"{what}: answered with no object")
    return value


def _class_of(status: int, boundary: Boundary) -> FailureClass:
    if boundary == "verifier":
        return "verifier"
    if status == 404:
        return "not-found"  # the path is missing: this is another kind of server, and every row would find that out
    # 422: the row does not fit the server's schema, and no further attempt changes that.
    return "permanent" if 400 <= status < 500 and status not in (408, 425, 429) else "agent"
