"""HTTP client for one or several endpoints of the same service: balanced, retried within bounds, limited in size.

Requests go to the least loaded endpoint whose breaker is closed. A failed one is retried with exponential, jittered pauses, a
bounded number of times, and only while the run's shared retry budget lasts. Answers are read within `max_response_bytes`; a
redirect to another host is refused, because it would receive the key. The client does not interpret bodies.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import aiohttp
import msgspec
from yarl import URL

from rollforge.endpoint.bodies import (
    MAX_RESPONSE_BYTES,
    SMALL_BYTES,
    LargeSlots,
    open_session,
    read_body,
    read_error_body,
)
from rollforge.endpoint.breaker import Breaker, RetryBudget
from rollforge.endpoint.failures import failure_from_exception, failure_from_status
from rollforge.endpoint.limiter import Limiter
from rollforge.endpoint.proxies import proxy_for
from rollforge.endpoint.rate_limits import ExpectedTokens, LimitName, RateLimits
from rollforge.endpoint.time_limit import TimeLimit
from rollforge.errors import Failure
from rollforge.records import from_json
from rollforge.runtime.on_error import OnError
from rollforge.store.manifest import EndpointFacts
from rollforge.store.reading import UNREADABLE
from rollforge.text_safety.outgoing import cut
from rollforge.text_safety.redaction import SECRETS

T = TypeVar("T")

LONGEST_BACKOFF_S = 30.0
FAILING_KEPT = 10_000
"""How many failing requests are remembered per endpoint."""
LONG_ANSWER_S = 2.0
"""Mean answer time from which each connection is closed after its answer."""
MOST_REDIRECTS = 3
_ENDPOINT_OF_ROLLOUT: ContextVar[int | None] = ContextVar("endpoint_of_rollout", default=None)
"""The endpoint that last answered the current asyncio task; each attempt at a rollout runs in a separate task."""
METRICS_BYTES = 4 << 20
"""Size limit of a server's metrics page."""
LOOK_S = 5.0
"""Timeout of requests about the server itself, such as its metrics."""


_LOOKED_AT = 1 << 16
"""Bytes of an answer that is no JSON from which an error quotes the beginning."""


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and retries of requests."""

    base_urls: tuple[str, ...]
    request_timeout_s: float = 600.0
    retries: int = 4
    """Most retries of one request, before the attempt counts as failed."""
    retry_budget: float = 0.5
    """Limit on all retries, as a share of the fresh requests."""
    outage_patience_s: float = 600.0
    """How long to wait for an endpoint that used to answer."""
    first_patience_s: float = 15.0
    """How long to wait for an endpoint that never answered."""
    rpm: float | None = None
    """Limit on requests per minute, for each endpoint."""
    tpm: float | None = None
    """Limit on tokens per minute, for each endpoint."""
    max_response_bytes: int = MAX_RESPONSE_BYTES
    """Size limit of an answer, as sent and after decompression; above it the request fails with class `oversized`."""


@dataclass(frozen=True, slots=True)
class EndpointReply(Generic[T]):
    """A complete answer with its cost in requests."""

    value: T
    endpoint: str
    requests: int
    """Number of requests sent, with retries."""
    wasted: tuple[object, ...] = ()
    """Token usage of earlier answers that were paid for but unusable."""


class Endpoint:
    """One base URL: its load, its breaker, its counters."""

    def __init__(
        self, url: str, *, key: str | None = None, rpm: float | None = None, tpm: float | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.rates = RateLimits(rpm=rpm, tpm=tpm)
        self.proxy = proxy_for(self.url)
        self._seconds = 0.0
        self.is_plain = URL(self.url).scheme == "http"
        self._address_by_path: dict[str, URL] = {}
        self.breaker = Breaker()
        self.in_flight = 0
        self.requests = 0
        self.failures: dict[str, int] = {}
        self.not_before = 0.0
        """Time until which a 429 answer asked us to wait."""
        self.answered_at = 0.0
        self._failing: dict[int, float] = {}
        """Start time of ongoing failures by request-body hash; oldest first."""

    def address(self, path: str) -> URL:
        """The URL of a path, parsed once."""
        address = self._address_by_path.get(path)
        if address is None:
            address = self._address_by_path[path] = URL(self.url + path)
        return address

    def took(self, seconds: float) -> None:
        """Record how long an answer took, for `closes`."""
        self._seconds += 0.2 * (seconds - self._seconds)

    @property
    def closes(self) -> bool:
        """Whether to close each connection after its answer.

        Small servers bind a thread to every open connection, and requests on other connections starve behind idle ones. Beside
        long answers, the cost of a new connection is negligible, except over TLS.
        """
        return self.is_plain and self._seconds > LONG_ANSWER_S

    def wait_s(self, now: float, tokens: float = 0.0) -> float:
        """Seconds until the rate limit permits a request with this many tokens."""
        return max(self.breaker.wait_s(now), self.not_before - now, self.rates.wait_s(tokens, now)[0])

    def answers_others(self, body: bytes, since: float) -> bool:
        """Whether this request keeps failing while others succeed, so that the endpoint is not at fault."""
        since = self._failing.setdefault(hash(body), since)
        if len(self._failing) > FAILING_KEPT:
            del self._failing[next(iter(self._failing))]
        return self.answered_at > since

    def facts(self) -> EndpointFacts:
        """Counters for the manifest and the display."""
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
        keys: Sequence[str] = (),
        limiter: Limiter | None = None,
        seed: int | None = None,
    ) -> None:
        self.options = options
        for key in keys:
            SECRETS.learn(key)  # a server may echo it in an error
        self.endpoints = [
            Endpoint(url, key=key, rpm=options.rpm, tpm=options.tpm)
            for url, key in paired(options.base_urls, keys)
        ]
        self.expected = ExpectedTokens()
        self.rate_wait_s: dict[LimitName, float] = {}
        """Seconds that requests waited for a rate limit, by what was limited; those that waited together all count."""
        self.budget = RetryBudget(options.retry_budget)
        self.retry_causes: Counter[str] = Counter()
        """Failure class → retries that it caused."""
        self.has_answered = False
        self.is_draining = False
        """Whether the run is draining: then requests no longer wait for a dead endpoint, and their rollouts stay owed."""
        self.last_failure = ""
        self.large = LargeSlots()
        self.keeps_large_slots = False
        """Whether the caller releases large-answer slots (when the rollout is written); otherwise they end with `post`."""
        self._headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "gzip, deflate",
            **(headers or {}),
        }
        self._limiter = limiter
        self._random = random.Random(seed)
        timeout_s = options.request_timeout_s
        self._time_limit = TimeLimit(timeout_s) if timeout_s > 0 else nullcontext()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        # aiohttp's own pool of 100 and total of 300 s would be silent limits beside ours; ours needs no timer per request.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30)
        self._session = open_session(keepalive_s=30, headers=self._headers, timeout=timeout)
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
        keeps_slot: bool = False,
        is_probe: bool = False,
    ) -> EndpointReply[T]:
        """The 200 answer to a POST of JSON, or a `Failure` of boundary `model`.

        Args:
            read: Parses the body. If it raises a `Failure` (torn JSON), the request counts as failed.
            keeps_slot: Keep the concurrency slot during retries, because other requests wait for this answer.
            is_probe: The server may not know this path: do not retry after an answer that is not JSON.
        """
        try:
            return await self._post(path, body, read, headers, keeps_slot=keeps_slot, is_probe=is_probe)
        finally:
            if not self.keeps_large_slots:
                self.large.release()

    async def _post(
        self,
        path: str,
        body: bytes,
        read: Callable[[bytes], T],
        headers: Mapping[str, str] | None,
        *,
        keeps_slot: bool,
        is_probe: bool,
    ) -> EndpointReply[T]:
        tries = 0
        wasted: tuple[object, ...] = ()
        self.budget.count_fresh()
        while True:
            tokens = self.expected.of(body)
            endpoint = self._free_endpoint(time.monotonic(), tokens) or await self._wait_for_endpoint(tokens)
            endpoint.rates.take(tokens, time.monotonic())
            try:
                data = await self._send(endpoint, path, body, headers)
                value = _read(read, data)
                self._succeed(endpoint)
                used = self.expected.learn(body, value)
                endpoint.rates.correct(tokens, tokens if used is None else used, time.monotonic())
                if len(self.endpoints) > 1:
                    _ENDPOINT_OF_ROLLOUT.set(id(endpoint))  # several keys may share a URL
                return EndpointReply(value, endpoint.url, tries + 1, wasted)
            except Failure as failure:
                self._count(endpoint, failure, body)
                tries += 1
                failure.requests, failure.wasted = tries, wasted
                if is_probe and isinstance(failure, NotJson):
                    raise
                if not failure.is_retryable or tries > self.options.retries or not self.budget.take():
                    raise
                self.retry_causes[failure.kind] += 1
                if failure.usage is not None:
                    wasted += (failure.usage,)
                pause = asyncio.sleep(self._backoff_s(tries, failure))
                # Give the slot to others meanwhile: requests that always fail must not hold all slots.
                if self._limiter is not None and not keeps_slot and failure.kind != "rate-limited":
                    await self._limiter.lend(pause)
                else:
                    await pause

    async def models(self) -> list[str]:
        """The names of the models that the first endpoint offers; raises `Failure`."""
        value = await self.get_json("/models")
        rows = value.get("data") if isinstance(value, dict) else None
        rows = rows if isinstance(rows, list) else []
        return [row["id"] for row in rows if isinstance(row, dict) and isinstance(row.get("id"), str)]

    async def get_json(self, path: str, *, is_at_root: bool = False) -> Any:
        """One GET of the first endpoint, without retries; raises `Failure`. `is_at_root` leaves out the URL's path."""
        assert self._session is not None, "the client is not open"
        endpoint = self.endpoints[0]
        address = URL(endpoint.url).origin().with_path(path) if is_at_root else endpoint.address(path)
        try:
            async with asyncio.timeout(LOOK_S):
                answer = await self._session.get(
                    address, headers=endpoint.headers, proxy=endpoint.proxy, allow_redirects=False
                )
                if answer.status != 200:
                    raise failure_from_status(answer.status, await read_error_body(answer), answer.headers)
                return from_json(await read_body(answer, SMALL_BYTES))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise failure_from_exception(error, LOOK_S) from error
        except UNREADABLE as error:
            raise NotJson(f"{address} answered with no JSON") from error

    async def metrics_pages(self) -> list[str]:
        """`/metrics` of every server, at the root beside the API path; raises `Failure` unless all have it."""
        assert self._session is not None, "the client is not open"
        pages = []
        for url in dict.fromkeys(endpoint.url for endpoint in self.endpoints):
            endpoint = next(one for one in self.endpoints if one.url == url)
            address = URL(url).origin().with_path("/metrics")
            try:
                async with asyncio.timeout(LOOK_S):
                    answer = await self._session.get(
                        address, headers=endpoint.headers, proxy=endpoint.proxy, allow_redirects=False
                    )
                    if answer.status != 200:
                        raise failure_from_status(
                            answer.status, await read_error_body(answer), answer.headers
                        )
                    pages.append((await read_body(answer, METRICS_BYTES)).decode("utf-8", "replace"))
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                raise failure_from_exception(error, LOOK_S) from error
        return pages

    async def exchange(
        self, method: str, path: str, *, data: object = None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """One request to the first endpoint without retries: returns the bytes of a 200 answer, or raises `Failure`."""
        chunks: list[bytes] = []
        limit = self.options.max_response_bytes
        await self.exchange_into(chunks.append, method, path, limit=limit, data=data, headers=headers)
        return b"".join(chunks)

    async def exchange_into(
        self,
        write: Callable[[bytes], object],
        method: str,
        path: str,
        *,
        limit: int,
        data: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Like `exchange`, but passes the answer on in pieces: for files of up to `limit` bytes."""
        assert self._session is not None, "the client is not open"
        endpoint = self.endpoints[0]
        address = URL(endpoint.url + path)
        try:
            async with (
                asyncio.timeout(self.options.request_timeout_s or None),
                self._session.request(
                    method,
                    address,
                    data=data,
                    headers={**(headers or {}), **endpoint.headers, "Accept-Encoding": "identity"},
                    proxy=endpoint.proxy,
                    allow_redirects=False,
                ) as answer,
            ):
                if answer.status != 200:
                    raise failure_from_status(answer.status, await read_error_body(answer), answer.headers)
                size = 0
                async for piece in answer.content.iter_any():
                    size += len(piece)
                    if size > limit:
                        answer.close()  # the rest is not read
                        message = f"{path} is longer than {limit:,} bytes (--max-response-bytes)"
                        raise Failure("model", "oversized", message)
                    write(piece)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise failure_from_exception(error, self.options.request_timeout_s) from error
        self.has_answered = True

    def _free_endpoint(self, now: float, tokens: float = 0.0) -> Endpoint | None:
        """The least loaded endpoint that accepts a request now."""
        if len(self.endpoints) > 1:
            last_endpoint = self._kept_endpoint()
            if last_endpoint is not None and last_endpoint.wait_s(now, tokens) <= 0:
                return last_endpoint
        best: Endpoint | None = None
        for endpoint in self.endpoints:
            if (best is None or endpoint.in_flight < best.in_flight) and endpoint.wait_s(now, tokens) <= 0:
                best = endpoint
        return best

    def _kept_endpoint(self) -> Endpoint | None:
        """The endpoint that this rollout used before: its prefix cache has the beginning of the conversation."""
        endpoint_id = _ENDPOINT_OF_ROLLOUT.get()
        return next((endpoint for endpoint in self.endpoints if id(endpoint) == endpoint_id), None)

    async def _wait_for_endpoint(self, tokens: float) -> Endpoint:
        """Wait until an endpoint accepts requests, at most as long as patience lasts."""
        while True:
            now = time.monotonic()
            endpoint = self._free_endpoint(now, tokens)
            if endpoint is not None:
                return endpoint
            if self.is_draining:
                raise Outage(f"{self.endpoints[0].url} does not answer ({self.last_failure})")
            self._lose_patience(now)
            # An endless wait means that a probe is under way: look again soon.
            nearest = min(self.endpoints, key=lambda endpoint: endpoint.wait_s(now, tokens))
            pause = min(nearest.wait_s(now, tokens), 0.5) * self._random.uniform(1.0, 1.2)
            wait, limited = nearest.rates.wait_s(tokens, now)
            if limited is not None and wait >= nearest.wait_s(now, 0.0):
                self.rate_wait_s[limited] = self.rate_wait_s.get(limited, 0.0) + pause
            await asyncio.sleep(pause)

    def _lose_patience(self, now: float) -> None:
        downs = [endpoint.breaker.down_since for endpoint in self.endpoints]
        since = min((down for down in downs if down is not None), default=None)
        if since is None or None in downs:
            return
        patience = self.options.outage_patience_s if self.has_answered else self.options.first_patience_s
        if now - since > patience:
            raise Outage(
                f"{self.endpoints[0].url} has not answered for {now - since:.0f} s ({self.last_failure})"
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
            # Also when it was cancelled, which is neither an answer nor a failure: another request may probe the endpoint.
            with OnError(endpoint.breaker.release), self._time_limit:
                data = await self._exchange(endpoint, path, body, headers)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise failure_from_exception(error, self.options.request_timeout_s) from error
        finally:
            endpoint.in_flight -= 1
        now = time.monotonic()
        endpoint.took(now - started)
        if self._limiter is not None:
            self._limiter.succeed(now - started, now)
        return data

    async def _exchange(
        self, endpoint: Endpoint, path: str, body: bytes, headers: Mapping[str, str] | None
    ) -> bytes:
        """Send the request and read the answer. A completely read answer returns its connection to the pool; an error closes it."""
        assert self._session is not None, "the client is not open"
        address = endpoint.address(path)
        if endpoint.closes:
            headers = {**(headers or {}), "Connection": "close"}
        headers = {**(headers or {}), **endpoint.headers}
        for _ in range(MOST_REDIRECTS):
            answer = await self._session.post(
                address, data=body, headers=headers, proxy=endpoint.proxy, allow_redirects=False
            )
            endpoint.rates.observe(answer.headers, time.monotonic(), time.time())
            if answer.status == 200:
                data = await read_body(answer, self.options.max_response_bytes, slots=self.large)
                _require_json(data, answer)
                return data
            data = await read_error_body(answer)
            if answer.status not in (307, 308):
                raise failure_from_status(answer.status, data, answer.headers)
            address = _redirected(address, answer)
        raise Failure("model", "permanent", f"the server redirects more than {MOST_REDIRECTS} times")

    def _succeed(self, endpoint: Endpoint) -> None:
        endpoint.breaker.succeed()
        endpoint.answered_at = time.monotonic()
        self.has_answered = True

    def _count(self, endpoint: Endpoint, failure: Failure, body: bytes) -> None:
        now = time.monotonic()
        self.last_failure = failure.message
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
        """Backoff with full jitter below an exponential ceiling, but at least the wait that the server asked for."""
        ceiling = min(LONGEST_BACKOFF_S, 0.5 * 2**tries)
        wait = self._random.uniform(ceiling / 4, ceiling)
        return max(wait, (failure.retry_after or 0.0) * self._random.uniform(1.0, 1.1))


def paired(urls: Sequence[str], keys: Sequence[str]) -> list[tuple[str, str | None]]:
    """Each endpoint's URL and key: one key for all URLs, several keys for one URL, or as many keys as URLs."""
    if len(urls) == 1 and keys:
        return [(urls[0], key) for key in keys]
    if len(keys) > 1:
        return list(zip(urls, keys, strict=True))
    return [(url, keys[0] if keys else None) for url in urls]


class Outage(Failure):
    """Every endpoint was down for longer than the configured patience: the run stops and can be resumed."""

    def __init__(self, message: str) -> None:
        super().__init__("model", "unavailable", message)

    @property
    def is_retryable(self) -> bool:
        return False


class NotJson(Failure):
    """An answer with status 200 that is not JSON: a proxy's error page, a stream, or another API."""

    def __init__(self, message: str) -> None:
        super().__init__("model", "transient", message)

    def __reduce__(self) -> tuple[type[NotJson], tuple[str]]:  # type: ignore[override]
        return (type(self), (self.message,))


def _redirected(address: URL, answer: aiohttp.ClientResponse) -> URL:
    """Target of a redirect; another host is refused, because it would receive key and prompt."""
    try:
        target = address.join(URL(answer.headers.get("Location", "")))
    except ValueError:
        target = URL()
    if target.origin() != address.origin() if target.absolute else True:
        raise Failure(
            "model",
            "permanent",
            f"HTTP {answer.status}: the server redirects to another host ({target.host or 'nowhere'}), which is refused",
            status=answer.status,
        )
    return target


BROKEN_ANSWER = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a reader raises at JSON of another shape than it expects; `msgspec` and `UnicodeDecodeError` are ValueErrors."""


def _read(read: Callable[[bytes], T], data: bytes) -> T:
    """Parse the body. An answer that makes the parser raise counts as the server's failure."""
    try:
        return read(data)
    except BROKEN_ANSWER as error:
        raise Failure(
            "model", "transient", f"the answer cannot be read: {type(error).__name__}: {error}"
        ) from error


def _require_json(data: bytes, answer: aiohttp.ClientResponse) -> None:
    """Raise `NotJson` for a body that is not JSON, such as a proxy's error page with status 200."""
    if data[:64].lstrip()[:1] not in (b"{", b"["):
        raise NotJson(
            f"the answer is no JSON ({answer.content_type}): {cut(data[:_LOOKED_AT].decode('utf-8', 'replace'), 200)!r}"
        )
