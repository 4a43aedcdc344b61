"""The reply to each request: access checks, the model's answer, and the faults that apply.

This is the server's logic without sockets and without waiting. A `PlannedReply` contains its delay and transport fault, which
`simulated_server` applies.
"""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple, cast
from urllib.parse import unquote

import msgspec

from rollforge.conversations.apis.events import CONTENT_TYPE, error_event
from rollforge.json_shapes import ModelJson, ModelListJson
from rollforge.records import JsonFields, from_json, to_json
from rollforge.simulate import tokens
from rollforge.simulate.apis import APIS, Api
from rollforge.simulate.asks import Rejection
from rollforge.simulate.batch_endpoints import BatchDesk, BatchStats
from rollforge.simulate.conversation import Ask, SimulatedTurn
from rollforge.simulate.dialects import adapt_answer, adapt_request, dialect_of, overflow_rejection
from rollforge.simulate.draws import Chance, digest
from rollforge.simulate.faults import Fault, Faults
from rollforge.simulate.key_limits import RateDesk
from rollforge.simulate.kv_cache import make_kv, metrics_page
from rollforge.simulate.needles import NeedleArgumentsJson, run_tool
from rollforge.simulate.simulate_options import SimulateOptions
from rollforge.simulate.simulated_model import take_turn
from rollforge.simulate.tool_use import sample_in_calls
from rollforge.simulate.wire import HttpReply, HttpRequest, cross_site_reason
from rollforge.simulate.writing import FINGERPRINT, Answered, make_numbers_absurd
from rollforge.store.reading import UNREADABLE

_REMEMBERED_PROMPTS = 200_000
_MODELS = re.compile(r"^(?:/v1)?/models(?:/(?P<name>.+))?$")
_REFUSAL = "I'm sorry, but I can't help with that."
_HTML = (
    b"<!DOCTYPE html><html><head><title>Bad gateway</title></head><body><h1>Bad gateway</h1></body></html>\n"
)


class Stats(msgspec.Struct):
    """Counters of the server, shown by `GET /stats`."""

    requests: int = 0
    """Requests to the model, faulty ones included."""
    by_status: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    in_flight: int = 0
    peak_in_flight: int = 0
    abandoned: int = 0
    """Requests whose client disconnected before the reply was complete."""
    input_tokens: int = 0
    output_tokens: int = 0
    batches: BatchStats = msgspec.field(default_factory=BatchStats)
    simulated: bool = True


class PlannedReply(NamedTuple):
    """A reply, its delay in seconds, and the transport fault to apply while sending it."""

    reply: HttpReply
    delay: float = 0.0
    manner: Fault | None = None
    chance: Chance | None = None
    """Seeded draws for unspecified options of the fault."""
    uses_capacity: bool = False
    tokens: tuple[int, int] | None = None
    """Prompt and answer tokens, for a server with a KV cache."""
    pace: float = 0.0
    """Seconds between the events of a stream."""


class Service:
    """The simulated model's endpoints."""

    def __init__(self, options: SimulateOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.stats = Stats()
        self.dialect = dialect_of(options.dialect)
        self.faults = Faults(options.faults, options.seed)
        self._clock = clock
        self.kv = make_kv(options.kv_tokens, options.kv_requests, options.kv_speed)
        self._batches = BatchDesk(self.faults, self.stats.batches, self._batch_answer, clock)
        self._started: float | None = None
        self._asked: OrderedDict[int, int] = OrderedDict()
        self._rates = RateDesk(options.rpm, options.tpm, options.rate_headers, clock)
        self._allowance = options.rate_limit
        self._allowance_at = clock()

    def outcome(self, request: HttpRequest) -> PlannedReply:
        """The reply to a request."""
        if (reason := cross_site_reason(request, self.options.host)) is not None:
            self.stats.faults["refused"] += 1
            return PlannedReply(_json(403, Rejection(403, reason).body))
        if request.path == "/stats":
            return PlannedReply(_json(200, self.stats))
        if request.headers.get("upgrade", "").lower() == "websocket":
            # Clients that try a WebSocket first must learn at once that there is none.
            return PlannedReply(_json(426, Rejection(426, "no WebSocket here: send POST").body))
        if self._batches.serves(request):
            return self._desk_outcome(request)
        api = APIS.get(request.path) or APIS.get(f"/v1{request.path}")
        if api and request.method == "POST":
            self.stats.requests += 1
            return self._model_outcome(request, api, self.stats.requests)
        outage = self.faults.outage(self._elapsed())
        return (
            self._mangled(outage, Chance("down"), None)
            if outage
            else PlannedReply(self._plain_reply(request, bool(api)))
        )

    def _desk_outcome(self, request: HttpRequest) -> PlannedReply:
        """Reply about files and batches; a lost reply ends in a connection reset, after the work was done."""
        outage = self.faults.outage(self._elapsed())
        if outage:
            return self._mangled(outage, Chance("down"), None)
        try:
            self._check_key(request)
        except Rejection as rejection:
            return PlannedReply(_json(rejection.status, rejection.body))
        reply = self._batches.reply(request)
        lost = self._batches.take_lost()
        if lost is not None:
            self.stats.faults[lost.kind] += 1
            cut = lost._replace(kind="reset", options={"when": "before"})
            return PlannedReply(reply, manner=cut, chance=Chance("lost", request.path))
        return PlannedReply(reply)

    def _batch_answer(self, request: HttpRequest) -> tuple[int, bytes]:
        """Status and body of one request in a batch."""
        api = APIS.get(request.path)
        if api is None:
            return 404, to_json(Rejection(404, f"no such path {request.path}").body)
        try:
            reply, _ = self._answer(request, api, needs_key=False)
        except Rejection as rejection:
            return rejection.status, to_json(api.error(rejection.status, rejection.body))
        return reply.status, reply.body

    def is_refusing_connections(self) -> bool:
        """Whether an outage is active that refuses connections."""
        outage = self.faults.outage(self._elapsed())
        return outage is not None and not outage.options["status"]

    def _elapsed(self) -> float:
        """Seconds since the first model request; the clock of timed faults."""
        if self._started is None:
            if not self.stats.requests:
                return 0.0
            self._started = self._clock()
        return self._clock() - self._started

    def _plain_reply(self, request: HttpRequest, is_api: bool) -> HttpReply:
        tool = run_tool(request.path.lstrip("/"), _object(request.body)) if request.method == "POST" else None
        if tool is not None:
            return _json(200, tool)
        if request.method == "GET" and (models := _MODELS.match(request.path)) is not None:
            return self._models_reply(models["name"])
        if request.path in ("/v1/messages/count_tokens", "/messages/count_tokens"):
            return self._count_tokens(request)
        if request.path == "/metrics" and self.kv is not None:
            self.kv.advance_to(self._clock())
            return HttpReply(200, metrics_page(self.kv, self.options.metrics), "text/plain; version=0.0.4")
        if request.path == "/props" and self.dialect.properties:
            return _json(200, self.dialect.properties)
        if request.path in ("/", "/health", "/v1"):
            return _json(200, {"status": "ok", "simulated": True, "models": self.options.served_models})
        status = 405 if is_api else 404
        message = f"{request.method} {request.path}: " + ("use POST" if is_api else "no such path")
        return _json(status, Rejection(status, message).body)

    def _models_reply(self, name: str | None) -> HttpReply:
        """The model list, or a single model by name."""
        listed = self._models()
        if name is None:
            return _json(200, listed)
        for model in listed["data"]:
            if model["id"] == unquote(name):
                return _json(200, model)
        return _json(404, Rejection(404, f"The model {name!r} does not exist", code="model_not_found").body)

    def _models(self) -> ModelListJson:
        """The model list, with fields for OpenAI's and Anthropic's clients."""
        names = self.options.served_models
        models: list[ModelJson] = [
            {
                "id": name,
                "object": "model",
                "created": 0,
                "owned_by": FINGERPRINT,
                "type": "model",
                "display_name": name,
                "created_at": "1970-01-01T00:00:00Z",
                "max_model_len": self.options.context_tokens,
            }
            for name in names
        ]
        return {
            "object": "list",
            "data": models,
            "has_more": False,
            "first_id": names[0],
            "last_id": names[-1],
        }

    def _count_tokens(self, request: HttpRequest) -> HttpReply:
        """Token count of a Messages request; nothing is generated."""
        api = APIS["/v1/messages"]
        try:
            self._check_key(request)
            ask = _read(api, {"max_tokens": 1, **_json_body(request.body)})
        except Rejection as rejection:
            return _json(rejection.status, api.error(rejection.status, rejection.body))
        return _json(200, {"input_tokens": tokens.count_prompt(ask)})

    def _model_outcome(self, request: HttpRequest, api: Api, number: int) -> PlannedReply:
        if self._is_over_rate():
            self.stats.faults["rate-limit"] += 1
            return PlannedReply(_error_reply(429, "too many requests per second", retry_after="1", api=api))
        fault = self.faults.for_request(number, self._elapsed())
        chance = Chance("manner", self.options.seed, number)
        if fault and (fault.kind.isdecimal() or fault.kind == "down"):
            return self._mangled(fault, chance, None, api)
        if fault and fault.kind in ("redirect", "echo-headers"):
            self.stats.faults[fault.kind] += 1
            return PlannedReply(_diverted(fault, request))
        before = self.stats.input_tokens, self.stats.output_tokens
        try:
            reply, generated = self._answer(request, api)
        except Rejection as rejection:
            return PlannedReply(_json(rejection.status, api.error(rejection.status, rejection.body)))
        is_admitted, limits = self._rates.admit(request, generated + self.stats.input_tokens - before[0])
        if not is_admitted:
            self.stats.input_tokens, self.stats.output_tokens = before
            self.stats.faults["rate-limit"] += 1
            refused = _error_reply(429, "Rate limit reached for this key.", retry_after="", api=api)
            return PlannedReply(refused._replace(headers=limits))
        reply = reply._replace(headers=(*reply.headers, *limits))
        prompt = self.stats.input_tokens - before[0]
        done = self._timed(reply, generated, number)._replace(tokens=(prompt, generated))
        return self._mangled(fault, chance, done, api) if fault else done

    def _timed(self, reply: HttpReply, generated: int, number: int) -> PlannedReply:
        """The reply with its delay; a stream spreads its generation time over its events."""
        latency, generating = self._delays(generated, number)
        if not reply.events:
            return PlannedReply(reply, latency + generating, uses_capacity=True)
        return PlannedReply(reply, latency, uses_capacity=True, pace=generating / len(reply.events))

    def _mangled(
        self, fault: Fault, chance: Chance, done: PlannedReply | None, api: Api | None = None
    ) -> PlannedReply:
        """The reply with a transport fault applied."""
        self.stats.faults[fault.kind] += 1
        if done is None:
            status = fault.kind if fault.kind.isdecimal() else fault.options["status"]
            if not status:
                return PlannedReply(_json(503, {}), manner=fault, chance=chance)
            retry_after = fault.options.get("retry_after", "")
            return PlannedReply(
                _error_reply(
                    int(status), "the simulated server fails on demand", retry_after=retry_after, api=api
                )
            )
        if fault.kind == "error-event":
            return _broken_off(done, api or APIS["/v1/chat/completions"], self.options.served_models[0])
        if fault.kind == "content-type":
            status = fault.options["status"] or chance.pick(("200", "502"))
            return done._replace(reply=HttpReply(int(status), _HTML, "text/html; charset=utf-8"))
        if fault.kind in _REWRITTEN:
            return done._replace(reply=_REWRITTEN[fault.kind](fault, done.reply))
        return done._replace(manner=fault, chance=chance)

    def _answer(self, request: HttpRequest, api: Api, *, needs_key: bool = True) -> tuple[HttpReply, int]:
        """The model's reply, and the number of generated tokens."""
        if needs_key:
            self._check_key(request)
        body, streams = adapt_request(self.dialect, request.path, _json_body(request.body))
        ask = _read(api, body)
        model = self._served_name(ask.model)
        task = ask.task_key()
        samples = self._samples(request, ask, task)
        faults = [self.faults.for_answer(task, sample, self._elapsed()) for sample in samples]
        for kind in {kind for some in faults for kind in some}:
            self.stats.faults[kind] += 1
        self._check_context(ask, task, faults[0].get("overflow"))
        answers = [
            Answered(
                self._turn(ask, task, sample, some),
                digest("answer", self.options.seed, task, sample, len(ask.items)),
            )
            for sample, some in zip(samples, faults, strict=True)
        ]
        if wrong := faults[0].get("wrong-model"):
            model = wrong.options["name"]
        generated = sum(tokens.count_turn(turn) for turn, _ in answers)
        self.stats.input_tokens += tokens.count_prompt(ask)
        self.stats.output_tokens += generated
        written = adapt_answer(self.dialect, ask, api.write(ask, model, answers))
        if absurd := faults[0].get("absurd-numbers"):
            kind = absurd.choose("number", Chance("absurd", task, samples[0]))
            written = make_numbers_absurd(written, kind)
        if not streams:
            return _json(200, written), generated
        events = tuple(api.stream(written, body))
        return HttpReply(200, b"".join(events), CONTENT_TYPE, events=events), generated

    def _turn(self, ask: Ask, task: str, sample: int, faults: dict[str, Fault]) -> SimulatedTurn:
        if "empty" in faults:
            return SimulatedTurn()
        if "refusal" in faults:
            return SimulatedTurn(refusal=_REFUSAL)
        if "filtered" in faults:
            return SimulatedTurn(finish="content_filter")
        turn = take_turn(self.options, ask, task, sample)
        if "truncated" in faults:
            return tokens.limit(turn, max(1, tokens.count_turn(turn) // 2))
        return turn

    def _check_key(self, request: HttpRequest) -> None:
        key = self.options.api_key
        sent_key = request.headers.get("x-api-key") or request.headers.get("authorization", "")
        if key is not None and sent_key not in (key, f"Bearer {key}"):
            raise Rejection(401, "Incorrect API key provided.", code="invalid_api_key")

    def _served_name(self, requested_name: str) -> str:
        names = self.options.served_models
        if self.dialect.default_model is not None:
            return names[0]
        if requested_name in names:
            return requested_name
        if self.options.is_strict:
            message = (
                f"The model `{requested_name}` does not exist; this simulated server has {', '.join(names)}."
            )
            raise Rejection(404, message, code="model_not_found", param="model")
        return names[0]

    def _check_context(self, ask: Ask, task: str, fault: Fault | None) -> None:
        prompt, window, wanted = tokens.count_prompt(ask), self.options.context_tokens, ask.max_tokens or 1
        if fault is None and prompt + wanted <= window:
            return
        wording = self.dialect.overflow or "vllm"
        if fault:
            wording = (
                fault.options["wording"]
                or self.dialect.overflow
                or fault.choose("wording", Chance("overflow", task))
            )
            window = max(1, prompt - 1)
        raise overflow_rejection(wording, prompt, wanted, window)

    def _samples(self, request: HttpRequest, ask: Ask, task: str) -> list[int]:
        """Sample numbers of the request: from the client's header, else counted per prompt."""
        if ask.temperature == 0 or self.dialect.is_greedy:
            return [0] * ask.choices
        named = request.headers.get("x-rollforge-sample") or ask.sample
        parts = dict.fromkeys(str(part) for part in (named, ask.seed) if part is not None)
        first = _sample_number("/".join(parts)) if parts else sample_in_calls(ask)
        if first is None:
            return self._next_samples(task, ask.choices)
        return [first, *(digest("choice", first, number) >> 1 for number in range(1, ask.choices))]

    def _next_samples(self, task: str, count: int) -> list[int]:
        key = digest(task)
        first = self._asked.pop(key, 0)
        self._asked[key] = first + count
        if len(self._asked) > _REMEMBERED_PROMPTS:
            self._asked.popitem(last=False)
        return list(range(first, first + count))

    def _delays(self, generated: int, number: int) -> tuple[float, float]:
        """Seconds until the answer starts, and seconds for generating its tokens."""
        options = self.options
        seconds = 0.0
        if options.latency:
            seconds = Chance("latency", options.seed, number).lognormal(
                options.latency, options.latency_spread
            )
        return seconds, generated / options.tokens_per_second if options.tokens_per_second else 0.0

    def _is_over_rate(self) -> bool:
        """Whether the rate limit is exceeded: a token bucket of one second's requests."""
        limit = self.options.rate_limit
        if not limit:
            return False
        now = self._clock()
        self._allowance = min(limit, self._allowance + (now - self._allowance_at) * limit)
        self._allowance_at = now
        if self._allowance < 1:
            return True
        self._allowance -= 1
        return False


def _diverted(fault: Fault, request: HttpRequest) -> HttpReply:
    """A redirect, or an error that repeats the request's headers."""
    status = int(fault.options["status"])
    if fault.kind == "redirect":
        target = fault.options["to"].rstrip("/") + request.path.removeprefix("/v1")
        return HttpReply(status, b"", headers=(("Location", target),))
    lines = "; ".join(f"{name}: {value}" for name, value in request.headers.items())
    return _json(status, Rejection(status, f"refused a request with the headers {lines}").body)


def _broken_off(done: PlannedReply, api: Api, model: str) -> PlannedReply:
    """A stream that reports a failure half-way; without streaming, a 500."""
    body = api.error(500, Rejection(500, "the simulated stream fails on demand", kind="server_error").body)
    if not done.reply.events:
        return done._replace(reply=_json(500, body))
    first = done.reply.events[: len(done.reply.events) // 2]
    events = (*first, error_event(api.name, 500, body, number=len(first), model=model))
    return done._replace(reply=done.reply._replace(body=b"".join(events), events=events))


def _with_padded_headers(fault: Fault, reply: HttpReply) -> HttpReply:
    padding = "a" * (1024 * int(fault.options["kb"]))
    return reply._replace(headers=(*reply.headers, ("X-Padding", padding)))


def _with_nested_body(fault: Fault, reply: HttpReply) -> HttpReply:
    depth = int(fault.options["depth"])
    return reply._replace(events=(), body=b'{"output":' + b"[" * depth + b"]" * depth + b"}")


def _with_bad_utf8(fault: Fault, reply: HttpReply) -> HttpReply:
    return reply._replace(events=(), body=reply.body.replace(b'"id":"', b'"id":"\xff\xc0', 1))


_REWRITTEN: dict[str, Callable[[Fault, HttpReply], HttpReply]] = {
    "headers": _with_padded_headers,
    "nested": _with_nested_body,
    "bad-utf8": _with_bad_utf8,
}
"""Faults that change a reply's bytes before it is sent."""


def _json_body(data: bytes) -> JsonFields:
    try:
        value = from_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Rejection(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Rejection(400, "the body must be a JSON object")
    return value


def _read(api: Api, body: JsonFields) -> Ask:
    try:
        return api.read(body)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        raise Rejection(400, f"the request has an unexpected shape: {error}") from error


def _sample_number(text: str) -> int:
    """The sample's number; other texts are hashed to a number."""
    return int(text) if text.isdecimal() and len(text) < 16 else digest("sample", text) >> 1


def _error_reply(status: int, message: str, *, retry_after: str, api: Api | None = None) -> HttpReply:
    kind, code = ("rate_limit_error", "rate_limit_exceeded") if status == 429 else ("server_error", None)
    headers = (("Retry-After", retry_after),) if retry_after else ()
    body = Rejection(status, message, kind=kind, code=code).body
    return _json(status, api.error(status, body) if api else body)._replace(headers=headers)


def _json(status: int, value: object) -> HttpReply:
    return HttpReply(status, to_json(value))


def _object(body: bytes) -> NeedleArgumentsJson:
    try:
        value = from_json(body)
    except UNREADABLE:
        return {}
    return cast("NeedleArgumentsJson", value) if isinstance(value, dict) else {}
