"""One verifier over HTTP as a NeMo Gym resources server: seed, verify, aggregate, reverify mode.

After a verifier failure, or a verdict without reward, the answer has status 200, `mask_sample: true`, the failure's kind and
reason, and the reward 0.0 that NeMo Gym's schema requires. NeMo Gym's collector then excludes the row; a 500 would end the whole
collection. `web_guard` refuses requests from web pages; beyond loopback a token is required.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from aiohttp import web

from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import RowJson
from rollforge.records import FAILURE_KEY, TERMINAL_KEY, to_json
from rollforge.runtime.on_error import OnErrorAwait
from rollforge.runtime.web_guard import WebGuard, is_loopback, quiet_logger, read_limited
from rollforge.steps.serve.aggregate import MASK_KEY, VERDICT_FIELDS_KEY, aggregate
from rollforge.steps.serve.gym_requests import Unprocessable, read_body, read_verdicts, read_verify
from rollforge.steps.serve.sessions import Sessions
from rollforge.verifiers.base import Verifier
from rollforge.verifiers.running.ready_verifier import Workers, make_judge

logger = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_LIMIT = 64 << 20
"""Size limit of a request after decompression, in bytes."""
AGGREGATE_LIMIT = 4 << 30
"""Size limit for `/aggregate_metrics`, which gets all rows of a run in one body."""
JUDGE_FAILED: Final = "judge_failed"
"""NeMo Gym's name for this kind of failure."""
JUDGE_ERROR_KEY: Final = "_ng_failure_judge_error"
ROLLOUT_PREFIX = "/ng-rollout/{rollout_id}"
"""Path prefix that NeMo Gym's clients add when observability is on."""


class VerifierServer:
    """Serves one verifier at one address; an async context manager."""

    def __init__(
        self,
        verifier: Verifier,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        workers: Workers = "auto",
        timeout_s: float = 60.0,
        token: str | None = None,
    ) -> None:
        """Prepare to serve.

        Args:
            token: If given, required in every request; mandatory beyond loopback.
        """
        if token is None and not is_loopback(host):
            raise UsageError(
                f"serving on {host} needs a token", hint="--token-env NAME names the variable that holds it"
            )
        if verifier.is_group:
            raise UsageError(
                f"{verifier.name} scores the samples of a task together; a resources server sees them one by one",
                hint="collect with --no-verify, then: rollforge verify RUN --verifier …",
            )
        self.verifier = verifier
        self.url = ""
        self.served: dict[str, int] = {"verified": 0, "failed": 0, "refused": 0}
        self._judge = make_judge(verifier, workers=workers, timeout=timeout_s)
        self._sessions = Sessions(verifier.name)
        self._host, self._port = host, port
        self._guard = WebGuard(host=host, token=token)
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self._judge.start()
        async with OnErrorAwait(lambda _: self._judge.close()):
            await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        await self._judge.close()

    async def _listen(self) -> None:
        app = web.Application(middlewares=[self._guard.middleware(), self._answer])
        for prefix in ("", ROLLOUT_PREFIX):
            app.router.add_get(f"{prefix}/", self._alive)
            app.router.add_post(f"{prefix}/seed_session", self._seed)
            app.router.add_post(f"{prefix}/verify", self._verify)
            app.router.add_post(f"{prefix}/aggregate_metrics", self._aggregate)
            app.router.add_get(f"{prefix}/reverify_mode", self._reverify_mode)
        self._runner = web.AppRunner(app, shutdown_timeout=5.0, access_log=None, logger=quiet_logger())
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise UsageError(
                f"cannot listen on {self._host}:{self._port}: {error.strerror or error}",
                hint="choose another --port; 0 takes any free one",
            ) from error
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"

    # -- around every request ----------------------------------------------------------------------------------------

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer errors in FastAPI's format, and set the session cookie on every answer."""
        session = self._sessions.of(request)
        answer: web.StreamResponse
        try:
            answer = await handler(request)
        except Unprocessable as refusal:
            self.served["refused"] += 1
            answer = _json({"detail": refusal.detail}, status=422)
        except web.HTTPException as error:
            answer = _json({"detail": error.reason}, status=error.status)
        except Exception as error:  # the server outlives any request
            logger.exception("a request to %s ended in an unexpected error", request.path)
            answer = _json(repr(error), status=500)
        self._sessions.send(session, answer)
        return answer

    # -- the paths -----------------------------------------------------------------------------------------------------

    async def _alive(self, request: web.Request) -> web.Response:
        return _json(
            {"status": "ok", "verifier": self.verifier.name, "fingerprint": self.verifier.fingerprint}
        )

    async def _seed(self, request: web.Request) -> web.Response:
        read_body(await read_limited(request, BODY_LIMIT))
        return _json({})

    async def _verify(self, request: web.Request) -> web.Response:
        body = read_body(await read_limited(request, BODY_LIMIT))
        task, response = read_verify(body, self.verifier.needs)
        try:
            verdict = await self._judge.judge(task, response)
        except Failure as failure:
            return self._no_verdict(body, failure.message)
        if verdict.reward is None:
            # Another attempt would not be judged either.
            return self._no_verdict(body, "the verifier cannot judge this rollout", is_terminal=True)
        self.served["verified"] += 1
        fields = verdict.to_fields()
        return _json({**body, **fields, VERDICT_FIELDS_KEY: list(fields)})

    def _no_verdict(self, body: RowJson, reason: str, *, is_terminal: bool = False) -> web.Response:
        self.served["failed"] += 1
        failed: RowJson = {
            "reward": 0.0,
            MASK_KEY: True,
            "failure_kind": JUDGE_FAILED,
            "failure_reason": reason,
            FAILURE_KEY: JUDGE_FAILED,
            JUDGE_ERROR_KEY: reason,
        }
        if is_terminal:
            failed[TERMINAL_KEY] = True
        return _json({**body, **failed})

    async def _aggregate(self, request: web.Request) -> web.Response:
        return _json(aggregate(read_verdicts(read_body(await read_limited(request, AGGREGATE_LIMIT)))))

    async def _reverify_mode(self, request: web.Request) -> web.Response:
        return _json("stateless")


def _json(value: object, *, status: int = 200) -> web.Response:
    return web.Response(body=to_json(value), status=status, content_type="application/json")
