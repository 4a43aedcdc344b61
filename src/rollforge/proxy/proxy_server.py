"""The proxy's HTTP side: finds the rollout by its secret, waits for the call, replies at once or as a stream.

It listens on loopback, and on a Unix socket for programs without network access. It never streams from the model; a program that
requests a stream gets SSE comments while the model works, then the events of the complete answer. Every reply has
`x-should-retry: false`, because the run retries itself, and both retries would multiply.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import secrets
from pathlib import Path
from typing import cast

from aiohttp import web

from rollforge.conversations.apis.events import CONTENT_TYPE, KEEP_ALIVE, error_event
from rollforge.conversations.apis.messages_json import ErrorBodyJson
from rollforge.endpoint import Model
from rollforge.errors import RollforgeError
from rollforge.json_shapes import ModelJson, ModelListJson
from rollforge.proxy.asking import PROXY_APIS, AnyApi, RequestJson, hidden
from rollforge.proxy.calls import RecordedCall
from rollforge.proxy.session import ProgramSession, RolloutFull, SessionClosed
from rollforge.records import from_json, to_json
from rollforge.runtime.web_guard import WebGuard, is_same_secret, quiet_logger, read_limited
from rollforge.store.reading import UNREADABLE

logger = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 64 << 20
KEEP_ALIVE_S = 10.0
"""Interval of keep-alive comments in a waiting stream."""
HEADERS = {"x-should-retry": "false", "Cache-Control": "no-store"}
STRANGERS_NAMED = 5
BYTES_PER_TOKEN = 4
"""Rough ratio for programs that count a prompt's tokens before they send it."""

RELAYED_HEADER = "X-Session-ID"
"""Header that identifies the session, for libraries that relay the requests of many rollouts under one key."""

_PLACE = re.compile(r"^/(?:r|ng-rollout)/(?P<secret>[^/]+)(?P<rest>/.*)?$")
_VERSION = re.compile(r"^(?:/v1)*/")


class RecordingProxy:
    """The proxy of one run; `open_session` for every rollout."""

    def __init__(self, model: Model) -> None:
        self.port = 0
        self.strangers: list[str] = []
        """The first few requests without a known secret, as `METHOD path`."""
        self.stranger_count = 0
        self.late_count = 0
        self.relay_secret = secrets.token_hex(16)
        """Secret of a library that relays the calls of all rollouts; the header then selects the session."""
        self._model = model
        self._session_by_secret: dict[str, ProgramSession] = {}
        self._ended: dict[str, None] = {}
        """Secrets of the rollouts that ended most recently."""
        self._runner: web.AppRunner | None = None
        self._context: int | None = None

    @property
    def url(self) -> str:
        """The address on loopback, without a path."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def model_name(self) -> str:
        """Name of the model that is actually called, whatever programs request."""
        return self._model.options.name

    async def start(self, socket_path: Path | None = None) -> None:
        """Listen on a free loopback port, and on the Unix socket if one is named."""
        app = web.Application(
            client_max_size=MAX_REQUEST_BYTES, middlewares=[WebGuard(host="127.0.0.1").middleware()]
        )
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, logger=quiet_logger(), shutdown_timeout=0.5, keepalive_timeout=30
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]
        if socket_path is not None:
            await web.UnixSite(self._runner, str(socket_path)).start()

    async def close(self) -> None:
        """Close every session and stop listening."""
        for session in list(self._session_by_secret.values()):
            await self.close_session(session)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def add(self, session: ProgramSession, *, relayed_as: str | None = None) -> None:
        """Register a session, so that its calls are answered.

        Args:
            relayed_as: The header value under which a relaying library sends its calls, instead of a separate secret.
        """
        secret = session.secret if relayed_as is None else self._relayed(relayed_as)
        self._session_by_secret[secret] = session

    async def close_session(self, session: ProgramSession) -> None:
        """Refuse further calls of this session."""
        for secret in [key for key, one in self._session_by_secret.items() if one is session]:
            del self._session_by_secret[secret]
            self._ended[secret] = None
        while len(self._ended) > 10_000:
            del self._ended[next(iter(self._ended))]
        await session.close()

    def notes(self) -> list[str]:
        """Messages for the user at the end of a run."""
        notes = []
        if self.stranger_count:
            named = ", ".join(self.strangers)
            notes.append(
                f"{self.stranger_count:,} requests to the proxy had no known secret and got 401: {named}"
            )
        if self.late_count:
            notes.append(f"{self.late_count:,} model calls came after their rollout's end and were refused")
        return notes

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        secret, path = _place_of(request)
        if is_same_secret(secret, self.relay_secret):
            secret = self._relayed(request.headers.get(RELAYED_HEADER, ""))
        api = PROXY_APIS.get(path) or PROXY_APIS["messages" if path.startswith("messages") else "responses"]
        session = self._session_by_secret.get(secret)
        if session is None:
            return self._refuse(request, api, secret)
        if request.headers.get("upgrade", "").lower() == "websocket":
            return _reply(426, api.error(426, "no WebSocket here: send POST"))
        if request.method == "GET" and (path == "models" or path.startswith("models/")):
            return _reply(200, await self._models(path))
        if request.method != "POST":
            return _reply(405, api.error(405, f"{request.method} is not answered here: send POST"))
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            session.hold(size)

        try:
            data = await read_limited(request, MAX_REQUEST_BYTES, each=hold)
            return await self._read(request, session, api, path, data)
        except RolloutFull as error:
            return _reply(400, api.error(400, str(error)))
        finally:
            session.give_back(held)

    async def _read(
        self, request: web.Request, session: ProgramSession, api: AnyApi, path: str, data: bytes
    ) -> web.StreamResponse:
        """Answer a request whose body has been read."""
        try:
            body = from_json(data)
        except UNREADABLE as error:
            return _reply(400, api.error(400, f"the body is not JSON: {error}"))
        if not isinstance(body, dict):
            return _reply(400, api.error(400, "the body must be a JSON object"))
        request_body = cast("RequestJson", body)
        if path == "messages/count_tokens":
            return _reply(200, {"input_tokens": max(1, len(data) // BYTES_PER_TOKEN)})
        if path not in PROXY_APIS:
            return _reply(404, api.error(404, f"no such path: {path}"))
        return await self._answer(request, session, api, request_body, _identity(request, path, data))

    async def _answer(
        self, request: web.Request, session: ProgramSession, api: AnyApi, body: RequestJson, identity: str
    ) -> web.StreamResponse:
        asking = asyncio.ensure_future(session.ask(api, body, identity))
        stream: web.StreamResponse | None = None
        if body.get("stream"):
            stream = await _wait_aloud(request, asking)
        try:
            call = await asking
        except SessionClosed:
            self.late_count += 1
            return await _fail(request, stream, api, 410, api.error(410, "this rollout has ended"))
        except ValueError as error:
            return await _fail(request, stream, api, 400, api.error(400, str(error)))
        except (RollforgeError, asyncio.CancelledError) as error:
            logger.debug("a call was not recorded: %s", error)
            return await _fail(request, stream, api, 503, api.error(503, "the call could not be recorded"))
        if call.failure is not None:
            return await _fail(request, stream, api, *api.failure(call.failure))
        assert call.response is not None, "a call without a failure has a response"
        named = str(body.get("model") or call.response.get("model") or "")
        answer = api.to_answer(hidden(call.response), named)
        if not body.get("stream"):
            return _reply(200, answer)
        stream = stream or await _begin_stream(request)
        await stream.write(b"".join(api.to_events(answer, body)))
        await stream.write_eof()
        return stream

    def _refuse(self, request: web.Request, api: AnyApi, secret: str) -> web.Response:
        if secret in self._ended:
            self.late_count += 1
            return _reply(410, api.error(410, "this rollout has ended"))
        self.stranger_count += 1
        path = _PLACE.sub(r"/r/…\g<rest>", request.path) if _PLACE.match(request.path) else request.path
        name = f"{request.method} {path[:80]}"
        if name not in self.strangers and len(self.strangers) < STRANGERS_NAMED:
            self.strangers.append(name)
        return _reply(
            401, api.error(401, "unknown rollout: use the base URL and the key that you were given")
        )

    def _relayed(self, name: str) -> str:
        """Lookup key of a relayed session; it includes the relay's secret, so that a header value alone selects nothing."""
        return f"{self.relay_secret} {name}"

    async def _models(self, path: str) -> ModelJson | ModelListJson:
        """The model list: the one model, with its context length if the server reports it."""
        if self._context is None:
            self._context = await self._model.context_tokens() or 0
        name = self._model.options.name
        entry: ModelJson = {"id": name, "object": "model", "created": 0, "owned_by": "rollforge"}
        entry |= {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        if self._context:
            entry |= {"max_model_len": self._context, "context_length": self._context}
        if path != "models":
            return entry
        return {"object": "list", "data": [entry], "has_more": False, "first_id": name, "last_id": name}


def _place_of(request: web.Request) -> tuple[str, str]:
    """Secret and API path of a request; the secret is in the path, or is the key."""
    match = _PLACE.match(request.path)
    if match:
        return match["secret"], _VERSION.sub("", match["rest"] or "/", count=1)
    key = request.headers.get("x-api-key") or request.headers.get("authorization", "").partition(" ")[2]
    return key.strip().removeprefix("rf-"), _VERSION.sub("", request.path, count=1)


def _identity(request: web.Request, path: str, data: bytes) -> str:
    """Id that equal requests share: their `Idempotency-Key`, else their bytes."""
    key = request.headers.get("idempotency-key")
    return f"key {key}" if key else f"{path} {hashlib.blake2b(data, digest_size=16).hexdigest()}"


async def _wait_aloud(
    request: web.Request, asking: asyncio.Future[RecordedCall]
) -> web.StreamResponse | None:
    """Wait for the call; start the stream only if that takes long, so that an early error still gets its HTTP status."""
    stream: web.StreamResponse | None = None
    while True:
        done, _ = await asyncio.wait([asking], timeout=KEEP_ALIVE_S)
        if done:
            return stream
        stream = stream or await _begin_stream(request)
        await stream.write(KEEP_ALIVE)


async def _begin_stream(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(headers={**HEADERS, "Content-Type": CONTENT_TYPE})
    await stream.prepare(request)
    return stream


async def _fail(
    request: web.Request, stream: web.StreamResponse | None, api: AnyApi, status: int, body: ErrorBodyJson
) -> web.StreamResponse:
    if stream is None:
        return _reply(status, body)
    await stream.write(error_event(api.name, status, body))
    await stream.write_eof()
    return stream


def _reply(status: int, body: object) -> web.Response:
    return web.Response(status=status, body=to_json(body), content_type="application/json", headers=HEADERS)
