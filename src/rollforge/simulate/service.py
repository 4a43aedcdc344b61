"""The reply to each request: access checks, the model's answer, and the faults that apply.

This is the server without sockets: it never waits and never writes. `PlannedReply` says how long a reply takes
and which fault mangles it; `server` carries that out."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rollforge.records import JsonFields, from_json, to_json
from rollforge.simulate import tokens
from rollforge.simulate.apis import APIS, Api
from rollforge.simulate.chance import Chance, digest
from rollforge.simulate.conversation import Ask, SimulatedTurn
from rollforge.simulate.dialects import adapt_answer, adapt_request, dialect_of, overflow_rejection, streamed
from rollforge.simulate.faults import Fault, Faults
from rollforge.simulate.model import take_turn
from rollforge.simulate.needles import run_tool
from rollforge.simulate.options import SimulateOptions
from rollforge.simulate.reading import Rejection
from rollforge.simulate.tools import sample_in_calls
from rollforge.simulate.wire import HttpReply, HttpRequest, cross_site_reason
from rollforge.simulate.writing import FINGERPRINT, Answered, make_numbers_absurd
from rollforge.store.reading import UNREADABLE

_REMEMBERED_PROMPTS = 200_000
_REFUSAL = "I'm sorry, but I can't help with that."
_HTML = (
    b"<!DOCTYPE html><html><head><title>Bad gateway</title></head><body><h1>Bad gateway</h1></body></html>\n"
)


class Stats(msgspec.Struct):
    """What the server has seen; `GET /stats` shows it."""

    requests: int = 0
    """Requests to the model, faulty ones included."""
    by_status: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    in_flight: int = 0
    peak_in_flight: int = 0
    abandoned: int = 0
    """Requests whose client left before the reply was out."""
    input_tokens: int = 0
    output_tokens: int = 0
    simulated: bool = True


class PlannedReply(NamedTuple):
    """A reply, its delay in seconds, and the transport fault to apply while sending it."""

    reply: HttpReply
    delay: float = 0.0
    manner: Fault | None = None
    chance: Chance | None = None
    """Seeded draws for what the fault's options leave open."""
    uses_capacity: bool = False


class Service:
    """The simulated model behind its addresses."""

    def __init__(self, options: SimulateOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self.stats = Stats()
        self.dialect = dialect_of(options.dialect)
        self.faults = Faults(options.faults, options.seed)
        self._clock = clock
        self._started: float | None = None
        self._asked: OrderedDict[int, int] = OrderedDict()
        self._allowance = options.rate_limit
        self._allowance_at = clock()

    def outcome(self, request: HttpRequest) -> PlannedReply:
        """What to reply to a request."""
        if (reason := cross_site_reason(request, self.options.host)) is not None:
            self.stats.faults["refused"] += 1
            return PlannedReply(_json(403, Rejection(403, reason).body))
        if request.path == "/stats":
            return PlannedReply(_json(200, self.stats))
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

    def is_refusing_connections(self) -> bool:
        """Whether an outage leaves nobody to answer."""
        outage = self.faults.outage(self._elapsed())
        return outage is not None and not outage.options["status"]

    def _elapsed(self) -> float:
        """Seconds since the first request to the model; the clock of timed faults."""
        if self._started is None:
            if not self.stats.requests:
                return 0.0
            self._started = self._clock()
        return self._clock() - self._started

    def _plain_reply(self, request: HttpRequest, is_api: bool) -> HttpReply:
        tool = run_tool(request.path.lstrip("/"), _object(request.body)) if request.method == "POST" else None
        if tool is not None:
            return _json(200, tool)
        if request.path in ("/v1/models", "/models"):
            names = self.options.served_models
            models = [
                {"id": name, "object": "model", "created": 0, "owned_by": FINGERPRINT} for name in names
            ]
            return _json(200, {"object": "list", "data": models})
        if request.path == "/props" and self.dialect.properties:
            return _json(200, self.dialect.properties)
        if request.path in ("/", "/health", "/v1"):
            return _json(200, {"status": "ok", "simulated": True, "models": self.options.served_models})
        status = 405 if is_api else 404
        message = f"{request.method} {request.path}: " + ("use POST" if is_api else "no such path")
        return _json(status, Rejection(status, message).body)

    def _model_outcome(self, request: HttpRequest, api: Api, number: int) -> PlannedReply:
        if self._is_over_rate():
            self.stats.faults["rate-limit"] += 1
            return PlannedReply(_error_reply(429, "too many requests per second", retry_after="1"))
        fault = self.faults.for_request(number, self._elapsed())
        chance = Chance("manner", self.options.seed, number)
        if fault and (fault.kind.isdecimal() or fault.kind == "down"):
            return self._mangled(fault, chance, None)
        if fault and fault.kind in ("redirect", "echo-headers"):
            self.stats.faults[fault.kind] += 1
            return PlannedReply(_diverted(fault, request))
        try:
            reply, generated = self._answer(request, api)
        except Rejection as rejection:
            return PlannedReply(_json(rejection.status, rejection.body))
        done = PlannedReply(reply, self._delay(generated, number), uses_capacity=True)
        return self._mangled(fault, chance, done) if fault else done

    def _mangled(self, fault: Fault, chance: Chance, done: PlannedReply | None) -> PlannedReply:
        """The outcome with a transport fault in it."""
        self.stats.faults[fault.kind] += 1
        if done is None:
            status = fault.kind if fault.kind.isdecimal() else fault.options["status"]
            if not status:
                return PlannedReply(_json(503, {}), manner=fault, chance=chance)
            retry_after = fault.options.get("retry_after", "")
            return PlannedReply(
                _error_reply(int(status), "the simulated server fails on demand", retry_after=retry_after)
            )
        if fault.kind == "content-type":
            status = fault.options["status"] or chance.pick(("200", "502"))
            return done._replace(reply=HttpReply(int(status), _HTML, "text/html; charset=utf-8"))
        if fault.kind in _REWRITTEN:
            return done._replace(reply=_REWRITTEN[fault.kind](fault, done.reply))
        return done._replace(manner=fault, chance=chance)

    def _answer(self, request: HttpRequest, api: Api) -> tuple[HttpReply, int]:
        """The model's reply, and how many tokens it generated."""
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
        body = adapt_answer(self.dialect, ask, api.write(ask, model, answers))
        if absurd := faults[0].get("absurd-numbers"):
            body = make_numbers_absurd(body, absurd.choose("number", Chance("absurd", task, samples[0])))
        return streamed(body) if streams else _json(200, body), generated

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
        if key is not None and request.headers.get("authorization", "") != f"Bearer {key}":
            raise Rejection(401, "Incorrect API key provided.", code="invalid_api_key")

    def _served_name(self, asked: str) -> str:
        names = self.options.served_models
        if self.dialect.default_model is not None:
            return names[0]
        if asked in names:
            return asked
        if self.options.is_strict:
            message = f"The model `{asked}` does not exist; this simulated server has {', '.join(names)}."
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
        """Which samples of the task are asked for: the client says so, or they are counted per prompt."""
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

    def _delay(self, generated: int, number: int) -> float:
        options = self.options
        seconds = 0.0
        if options.latency:
            seconds = Chance("latency", options.seed, number).lognormal(
                options.latency, options.latency_spread
            )
        return seconds + (generated / options.tokens_per_second if options.tokens_per_second else 0.0)

    def _is_over_rate(self) -> bool:
        """A bucket of one second's requests, filled at the rate limit."""
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
    """A reply that sends the client elsewhere, or repeats the request's own headers in an error."""
    status = int(fault.options["status"])
    if fault.kind == "redirect":
        target = fault.options["to"].rstrip("/") + request.path.removeprefix("/v1")
        return HttpReply(status, b"", headers=(("Location", target),))
    lines = "; ".join(f"{name}: {value}" for name, value in request.headers.items())
    return _json(status, Rejection(status, f"refused a request with the headers {lines}").body)


def _with_padded_headers(fault: Fault, reply: HttpReply) -> HttpReply:
    padding = "a" * (1024 * int(fault.options["kb"]))
    return reply._replace(headers=(*reply.headers, ("X-Padding", padding)))


def _with_nested_body(fault: Fault, reply: HttpReply) -> HttpReply:
    depth = int(fault.options["depth"])
    return reply._replace(body=b'{"output":' + b"[" * depth + b"]" * depth + b"}")


def _with_bad_utf8(fault: Fault, reply: HttpReply) -> HttpReply:
    return reply._replace(body=reply.body.replace(b'"id":"', b'"id":"\xff\xc0', 1))


_REWRITTEN: dict[str, Callable[[Fault, HttpReply], HttpReply]] = {
    "headers": _with_padded_headers,
    "nested": _with_nested_body,
    "bad-utf8": _with_bad_utf8,
}
"""Faults that change the bytes of a reply before it is sent."""


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
    """The sample's number; a name that is no number gets one."""
    return int(text) if text.isdecimal() and len(text) < 16 else digest("sample", text) >> 1


def _error_reply(status: int, message: str, *, retry_after: str) -> HttpReply:
    kind, code = ("rate_limit_error", "rate_limit_exceeded") if status == 429 else ("server_error", None)
    headers = (("Retry-After", retry_after),) if retry_after else ()
    return _json(status, Rejection(status, message, kind=kind, code=code).body)._replace(headers=headers)


def _json(status: int, value: object) -> HttpReply:
    return HttpReply(status, to_json(value))


def _object(body: bytes) -> JsonFields:
    try:
        value = from_json(body)
    except UNREADABLE:
        return {}
    return value if isinstance(value, dict) else {}
