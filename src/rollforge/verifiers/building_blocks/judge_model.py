"""Requests a judgement from a language model, protected against injected verdicts.

Any OpenAI-compatible endpoint works. A rollout's text is data: it is enclosed in markers with a nonce unique to the request, and
a verdict counts only in a fence with the same nonce. An unreachable judge, or an unreadable reply, is a failure to judge, never a
reward.

A judge can still be persuaded by the text, but the text cannot forge a verdict.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

import msgspec

from rollforge.endpoint import MAX_RESPONSE_BYTES
from rollforge.endpoint.client import Client, ClientOptions
from rollforge.endpoint.model import Api, Model, ModelOptions
from rollforge.endpoint.prices import TokenUsage
from rollforge.errors import Failure, UsageError
from rollforge.json_shapes import ParamsJson, Shape
from rollforge.records import JsonFields, Response
from rollforge.verifiers.building_blocks.verdict_fields import JudgeCostJson

Messages = Sequence[Mapping[str, str]]

LONGEST_REPLY = 1_000_000
"""Size limit of a judge's reply in characters; a longer one is a failure to judge."""


class JudgeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of the judge model and its requests."""

    model: str = ""
    """Name of the judge model; must be given."""
    base_url: str = ""
    """Address of its OpenAI-compatible API, ending in `/v1`; must be given."""
    api: Api = "auto"
    """Which API the server speaks: `responses`, `chat`, or `auto` to find out."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key, never the key itself; an unset one sends no key."""
    temperature: float | None = 0.0
    """Sampling temperature of the judge; None leaves it to the server."""
    max_output_tokens: int | None = None
    """Longest reply of the judge, in tokens; None leaves it to the server."""
    timeout: float = 120.0
    """Seconds one request may take."""
    retries: int = 4
    """How often a request is repeated that met a busy, broken or unreachable server."""
    attempts: int = 3
    """How often the judge is asked again whose reply held no verdict."""
    concurrency: int = 64
    """How many requests may be under way at once."""
    max_response_bytes: int = MAX_RESPONSE_BYTES
    """Most bytes of one answer of the judge's server, after decompression."""
    body: JsonFields = {}
    """Further keys of the request, sent as they are."""


class Completion(msgspec.Struct, frozen=True):
    """One reply of the judge, with its token counts."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Part of the input tokens that came from the cache."""
    reasoning_tokens: int = 0
    """Part of the output tokens that is reasoning."""


class JudgeModel(Protocol):
    """Protocol of a judge model: the endpoint below, or a stand-in for tests."""

    async def complete(self, messages: Messages) -> Completion:
        """Return the reply; raises `Failure` if there is none."""

    async def close(self) -> None:
        """Release connections."""


class JudgeEndpoint:
    """A judge model behind the usual HTTP client: bounded retries, breaker, either API."""

    def __init__(self, options: JudgeOptions) -> None:
        if not options.model or not options.base_url:
            raise UsageError(
                "the judge needs a model and a base_url",
                hint="give both as options of the verifier: model=NAME base_url=http://HOST:PORT/v1",
            )
        self._options = options
        self._client: Client | None = None
        self._model: Model | None = None
        self._limit = asyncio.Semaphore(max(1, options.concurrency))

    async def complete(self, messages: Messages) -> Completion:
        async with self._limit:
            model = await self._connected()
            try:
                answer = await model.respond(self._params(messages))
            except Failure as failure:
                raise Failure(
                    "verifier",
                    "verifier",
                    f"the judge gave no answer ({failure.kind}): {failure.message}",
                    status=failure.status,
                ) from failure
        response = Response(answer.response)
        usage = response.usage
        if len(response.last_text) > LONGEST_REPLY:
            raise Failure(
                "verifier", "verifier", f"the judge's reply is longer than {LONGEST_REPLY:,} characters"
            )
        counted = TokenUsage.read(usage)
        return Completion(
            response.last_text,
            int(usage.get("input_tokens") or 0),
            int(usage.get("output_tokens") or 0),
            counted.cached if counted else 0,
            counted.reasoning if counted else 0,
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.__aexit__(None, None, None)
        self._client = self._model = None

    def _params(self, messages: Messages) -> ParamsJson:
        params: ParamsJson = {
            "input": [
                {"role": message["role"], "content": message["content"], "type": "message"}
                for message in messages
            ],
            "temperature": self._options.temperature,
            "max_output_tokens": self._options.max_output_tokens,
        }
        return cast("ParamsJson", {**params, **self._options.body})

    async def _connected(self) -> Model:
        if self._model is None:
            key = os.environ.get(self._options.api_key_env, "")
            self._client = Client(
                ClientOptions(
                    base_urls=(self._options.base_url,),
                    request_timeout_s=self._options.timeout,
                    retries=self._options.retries,
                    outage_patience_s=self._options.timeout,
                    max_response_bytes=self._options.max_response_bytes,
                ),
                keys=[key] if key else (),
            )
            self._model = Model(self._client, ModelOptions(name=self._options.model, api=self._options.api))
            await self._client.__aenter__()
        return self._model


class JudgeCost:
    """Calls, tokens and time for judging one rollout."""

    def __init__(self) -> None:
        self._calls = self._input_tokens = self._output_tokens = 0
        self._cached_tokens = self._reasoning_tokens = 0
        self._started = time.perf_counter()

    def add(self, completion: Completion) -> None:
        self._calls += 1
        self._input_tokens += completion.input_tokens
        self._output_tokens += completion.output_tokens
        self._cached_tokens += completion.cached_tokens
        self._reasoning_tokens += completion.reasoning_tokens

    def numbers(self) -> JudgeCostJson:
        """The cost as numbers for a verdict."""
        cost: JudgeCostJson = {
            "judge_calls": self._calls,
            "judge_input_tokens": self._input_tokens,
            "judge_output_tokens": self._output_tokens,
            "judge_seconds": round(time.perf_counter() - self._started, 6),
        }
        if self._cached_tokens:
            cost["judge_cached_tokens"] = self._cached_tokens
        if self._reasoning_tokens:
            cost["judge_reasoning_tokens"] = self._reasoning_tokens
        return cost


def new_nonce(*texts: str) -> str:
    """A random word that occurs in none of the texts."""
    while True:
        nonce = secrets.token_hex(8)
        if not any(nonce in text for text in texts):
            return nonce


def as_data(name: str, text: str, nonce: str) -> str:
    """The text enclosed in markers, which it cannot close because it does not contain the nonce."""
    return f"<{name} {nonce}>\n{text}\n</{name} {nonce}>"


def fenced(reply: str, nonce: str) -> str | None:
    """Content of the last closed fence with the nonce; other fences are ignored."""
    blocks = re.findall(
        rf"^[ \t]*```verdict-{nonce}[ \t]*\n(.*?)^[ \t]*```", reply + "\n", re.MULTILINE | re.DOTALL
    )
    return blocks[-1].strip() if blocks else None


def with_cost(verdict: Shape, cost: JudgeCost) -> Shape:
    """The fields of a verdict, extended by the cost of judging."""
    return cast("Shape", {**verdict, **cost.numbers()})
