"""This module sends requests to one or several endpoints of the same service, politely.

Requests go to the least loaded endpoint whose breaker is closed. A failed one is retried with exponential, jittered pauses, a
bounded number of times, and only while the run's shared retry budget lasts. It does not know what the bytes mean.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

import aiohttp
import msgspec
from yarl import URL

from rollforge.endpoint.breaker import Breaker, RetryBudget
from rollforge.endpoint.faults import failure_from_exception, failure_from_status
from rollforge.endpoint.limiter import Limiter
from rollforge.endpoint.time_limit import TimeLimit
from rollforge.errors import Failure
from rollforge.store.manifest import EndpointFacts

T = TypeVar("T")

LONGEST_BACKOFF_S = 30.0
FAILING_KEPT = 10_000
"""How many failing requests an endpoint remembers."""


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are sent."""

    base_urls: tuple[str, ...]
    request_timeout_s: float = 600.0
    retries: int = 4
    """How often one request is sent again before its rollout's attempt counts as failed."""
    retry_budget: float = 0.5
    """Retries may not exceed this share of the fresh requests."""
    outage_patience_s: float = 600.0
    """How long to wait for an endpoint that used to answer."""
    first_patience_s: float = 15.0
    """How long to wait for an endpoint that never answered."""


@dataclass(frozen=True, slots=True)
class EndpointReply(Generic[T]):
    """What came back, read."""

    value: T
    endpoint: str
    requests: int
    """How many requests it took."""


class Endpoint:
    """One base URL: its load, its breaker, its counters."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._address_by_path: dict[str, URL] = {}
        self.breaker = Breaker()
        self.in_flight = 0
        self.requests = 0
        self.failures: dict[str, int] = {}
        self.not_before = 0.0
        """A 429 asked us to stay away until then."""
        self.answered_at = 0.0
        self._failing: dict[int, float] = {}
        """Since when requests fail, by the hash of their bodies; the oldest first."""

    def address(self, path: str) -> URL:
        """The URL of a path, parsed once."""
        found = self._address_by_path.get(path)
        if found is None:
            found = self._address_by_path[path] = URL(self.url + path)
        return found

    def wait_s(self, now: float) -> float:
        return max(self.breaker.wait_s(now), self.not_before - now)

    def answers_others(self, body: bytes, since: float) -> bool:
        """Whether this request, failing since then or earlier, fails while others are answered: not the endpoint is at fault."""
        since = self._failing.setdefault(hash(body), since)
        if len(self._failing) > FAILING_KEPT:
            del self._failing[next(iter(self._failing))]
        return self.answered_at > since

    def facts(self) -> EndpointFacts:
        """For the manifest and the display."""
        return EndpointFacts(
            url=self.url,
            breaker=self.breaker.state,
            opened=self.breaker.opened,
            requests=self.requests,
            failures=dict(self.failures),
        )


class Client:
    """The HTTP client of a run. Use as an async context manager."""

    def __init__(
        self,
        options: ClientOptions,
        *,
        headers: Mapping[str, str] | None = None,
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> None:
        self.options = options
        self.endpoints = [Endpoint(url) for url in options.base_urls]
        self.budget = RetryBudget(options.retry_budget)
        self.has_answered = False
        self.is_draining = False
        """Waiting for a dead endpoint makes no sense any more: what waits stays owed."""
        self._last_failure = ""
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._limiter = limiter
        self._random = random.Random(seed)
        timeout_s = options.request_timeout_s
        self._time_limit = TimeLimit(timeout_s) if timeout_s > 0 else nullcontext()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        # aiohttp's own pool of 100 and total of 300 s would be silent limits beside ours; ours needs no timer per request.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30, ttl_dns_cache=300),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(
        self,
        path: str,
        body: bytes,
        *,
        read: Callable[[bytes], T],
        headers: Mapping[str, str] | None = None,
        keeps_place: bool = False,
    ) -> EndpointReply[T]:
        """The 200 answer to a POST of JSON, or a `Failure` of boundary `model`.

        Args:
            read: Makes the answer of the bytes. When it raises a `Failure` (torn JSON), the request counts as failed.
            keeps_place: Others wait for this answer, and must not take the place it needs to try again.
        """
        tries = 0
        self.budget.count_fresh()
        while True:
            endpoint = self._free_endpoint(time.monotonic()) or await self._wait_for_endpoint()
            try:
                data = await self._send(endpoint, path, body, headers)
                value = _read(read, data)
                self._succeed(endpoint)
                return EndpointReply(value, endpoint.url, tries + 1)
            except Failure as failure:
                self._count(endpoint, failure, body)
                tries += 1
                failure.requests = tries
                if not failure.is_retryable or tries > self.options.retries or not self.budget.take():
                    raise
                pause = asyncio.sleep(self._backoff_s(tries, failure))
                # Others have the place meanwhile, lest requests that always fail take all of them.
                if self._limiter is not None and not keeps_place and failure.kind != "rate-limited":
                    await self._limiter.lend(pause)
                else:
                    await pause

    def _free_endpoint(self, now: float) -> Endpoint | None:
        """The least loaded endpoint that may be asked now."""
        best: Endpoint | None = None
        for endpoint in self.endpoints:
            if (best is None or endpoint.in_flight < best.in_flight) and endpoint.wait_s(now) <= 0:
                best = endpoint
        return best

    async def _wait_for_endpoint(self) -> Endpoint:
        """Wait until one may be asked, but not longer than patience lasts."""
        while True:
            now = time.monotonic()
            endpoint = self._free_endpoint(now)
            if endpoint is not None:
                return endpoint
            if self.is_draining:
                raise Outage(f"{self.endpoints[0].url} does not answer ({self._last_failure})")
            self._lose_patience(now)
            # An endless wait means that a probe is under way: look again soon.
            shortest = min(endpoint.wait_s(now) for endpoint in self.endpoints)
            await asyncio.sleep(min(shortest, 0.5) * self._random.uniform(1.0, 1.2))

    def _lose_patience(self, now: float) -> None:
        downs = [endpoint.breaker.down_since for endpoint in self.endpoints]
        since = min((down for down in downs if down is not None), default=None)
        if since is None or None in downs:
            return
        patience = self.options.outage_patience_s if self.has_answered else self.options.first_patience_s
        if now - since > patience:
            raise Outage(
                f"{self.endpoints[0].url} has not answered for {now - since:.0f} s ({self._last_failure})"
            )

    async def _send(
        self, endpoint: Endpoint, path: str, body: bytes, headers: Mapping[str, str] | None
    ) -> bytes:
        assert self._session is not None, "the client is not open"
        endpoint.in_flight += 1
        endpoint.requests += 1
        endpoint.breaker.begin()
        started = time.monotonic()
        try:
            with self._time_limit:
                # Reading to the end gives the connection back, and so does whatever ends the reading early.
                answer = await self._session.post(endpoint.address(path), data=body, headers=headers)
                data = await answer.read()
            if answer.status != 200:
                raise failure_from_status(answer.status, data, answer.headers)
            _require_json(data, answer)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise failure_from_exception(error, self.options.request_timeout_s) from error
        except Failure:
            raise
        except BaseException:
            endpoint.breaker.release()  # neither an answer nor a failure of the endpoint: another one may probe it
            raise
        finally:
            endpoint.in_flight -= 1
        if self._limiter is not None:
            now = time.monotonic()
            self._limiter.succeed(now - started, now)
        return data

    def _succeed(self, endpoint: Endpoint) -> None:
        endpoint.breaker.succeed()
        endpoint.answered_at = time.monotonic()
        self.has_answered = True

    def _count(self, endpoint: Endpoint, failure: Failure, body: bytes) -> None:
        now = time.monotonic()
        self._last_failure = failure.message
        endpoint.failures[failure.kind] = endpoint.failures.get(failure.kind, 0) + 1
        if failure.kind == "rate-limited":
            endpoint.breaker.succeed()
            if failure.retry_after:
                endpoint.not_before = max(endpoint.not_before, now + failure.retry_after)
            if self._limiter is not None:
                self._limiter.rate_limited(now, failure.retry_after)
        elif failure.kind == "unavailable":
            endpoint.breaker.fail(now, is_unreachable=True)
        elif failure.is_retryable:
            begun = now - self.options.request_timeout_s if failure.kind == "timeout" else now
            if not endpoint.answers_others(body, begun) or endpoint.breaker.state != "closed":
                endpoint.breaker.fail(now)
        else:
            endpoint.breaker.succeed()

    def _backoff_s(self, tries: int, failure: Failure) -> float:
        """Full jitter over an exponential ceiling; what the server asked for is the floor."""
        ceiling = min(LONGEST_BACKOFF_S, 0.5 * 2**tries)
        wait = self._random.uniform(ceiling / 4, ceiling)
        return max(wait, (failure.retry_after or 0.0) * self._random.uniform(1.0, 1.1))


class Outage(Failure):
    """Every endpoint is down for longer than we are ready to wait: the run stops, and can be resumed."""

    def __init__(self, message: str) -> None:
        super().__init__("model", "unavailable", message)

    @property
    def is_retryable(self) -> bool:
        return False


def _read(read: Callable[[bytes], T], data: bytes) -> T:
    """Make the answer of the bytes. A shape that trips the reader is the server's fault, and counts as its failure."""
    try:
        return read(data)
    except Failure:
        raise
    except Exception as error:
        raise Failure(
            "model", "transient", f"the answer cannot be read: {type(error).__name__}: {error}"
        ) from error


def _require_json(data: bytes, answer: aiohttp.ClientResponse) -> None:
    """A proxy's error page with status 200 is a fault of the way, not an answer."""
    if data[:64].lstrip()[:1] not in (b"{", b"["):
        raise Failure(
            "model",
            "transient",
            f"the answer is no JSON ({answer.content_type}): {data[:200].decode('utf-8', 'replace')!r}",
        )
