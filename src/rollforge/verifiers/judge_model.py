"""This module asks a language model for a judgement, and reads only what the model itself decided.

Any OpenAI-compatible chat endpoint will do. What a rollout wrote is data: it is shown between markers that
carry a nonce made for this one request, labels inside it are broken up before the judge sees them, and a
verdict counts when it stands in a fence that carries the same nonce. A judge that cannot be reached or read
is a failure to judge, never a reward.

It cannot keep a judge from being persuaded by what it reads; it keeps the answer from speaking in the
judge's place.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import aiohttp
import msgspec

from rollforge.errors import Failure, FailureClass, UsageError
from rollforge.records import JsonObject, content_text

Messages = Sequence[Mapping[str, str]]

RETRIED_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
LONGEST_WAIT_SECONDS = 60.0


class JudgeOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model judges, and how it is asked."""

    model: str = ""
    """Name of the judge model; must be given."""
    base_url: str = ""
    """Address of its OpenAI-compatible API, ending in `/v1`; must be given."""
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
    body: JsonObject = {}
    """Further keys of the request, sent as they are."""


class Completion(msgspec.Struct, frozen=True):
    """One reply of the judge."""

    text: str
    input_tokens: int = 0
    output_tokens: int = 0


class JudgeModel(Protocol):
    """Anything that can be asked: the endpoint below, or a stand-in in a test."""

    async def complete(self, messages: Messages) -> Completion:
        """The reply; raises `Failure` when there is none."""

    async def close(self) -> None:
        """Release connections."""


class ChatEndpoint:
    """A judge behind an OpenAI-compatible chat endpoint, asked with bounded retries."""

    def __init__(self, options: JudgeOptions) -> None:
        if not options.model or not options.base_url:
            raise UsageError(
                "the judge needs a model and a base_url",
                hint="give both as options of the verifier: model=NAME base_url=http://HOST:PORT/v1",
            )
        self._options = options
        self._url = options.base_url.rstrip("/") + "/chat/completions"
        self._session: aiohttp.ClientSession | None = None
        self._limit = asyncio.Semaphore(max(1, options.concurrency))

    async def complete(self, messages: Messages) -> Completion:
        request = self._request(messages)
        async with self._limit:
            for retry in range(self._options.retries + 1):
                try:
                    return await self._once(request)
                except Failure as failure:
                    if not failure.is_retryable or retry == self._options.retries:
                        raise
                    await asyncio.sleep(_pause(retry, failure.retry_after))
        raise AssertionError("the loop above returns or raises")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _request(self, messages: Messages) -> JsonObject:
        request: JsonObject = {"model": self._options.model, "messages": list(messages)}
        if self._options.temperature is not None:
            request["temperature"] = self._options.temperature
        if self._options.max_output_tokens is not None:
            request["max_tokens"] = self._options.max_output_tokens
        return {**request, **self._options.body}

    async def _once(self, request: JsonObject) -> Completion:
        try:
            async with self._connected().post(self._url, json=request) as reply:
                data = await reply.read()
                if reply.status != 200:
                    raise _refusal(reply.status, data, reply.headers.get("Retry-After"))
        except TimeoutError as error:
            raise Failure(
                "verifier", "timeout", f"the judge gave no answer in {self._options.timeout:g} s"
            ) from error
        except aiohttp.ClientError as error:
            raise Failure(
                "verifier", "unavailable", f"the judge at {self._url} cannot be reached: {error}"
            ) from error
        return _completion(data)

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            key = os.environ.get(self._options.api_key_env, "")
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._options.timeout),
                headers={"Authorization": f"Bearer {key}"} if key else None,
                connector=aiohttp.TCPConnector(limit=self._options.concurrency),
            )
        return self._session


class Tally:
    """What judging one rollout cost."""

    def __init__(self) -> None:
        self._calls = self._input_tokens = self._output_tokens = 0
        self._started = time.perf_counter()

    def add(self, completion: Completion) -> None:
        self._calls += 1
        self._input_tokens += completion.input_tokens
        self._output_tokens += completion.output_tokens

    def numbers(self) -> dict[str, int | float]:
        """The cost as numbers of a verdict."""
        return {
            "judge_calls": self._calls,
            "judge_input_tokens": self._input_tokens,
            "judge_output_tokens": self._output_tokens,
            "judge_seconds": round(time.perf_counter() - self._started, 6),
        }


def new_nonce(*texts: str) -> str:
    """A word that none of the texts contains."""
    while True:
        nonce = secrets.token_hex(8)
        if not any(nonce in text for text in texts):
            return nonce


def as_data(name: str, text: str, nonce: str) -> str:
    """The text between markers that it cannot close itself, since it does not know the nonce."""
    return f"<{name} {nonce}>\n{text}\n</{name} {nonce}>"


def fenced(reply: str, nonce: str) -> str | None:
    """What stands in the last closed fence that carries the nonce; no other fence is the judge's verdict."""
    blocks = re.findall(
        rf"^[ \t]*```verdict-{nonce}[ \t]*\n(.*?)^[ \t]*```", reply + "\n", re.MULTILINE | re.DOTALL
    )
    return blocks[-1].strip() if blocks else None


def _pause(retry: int, retry_after: float | None) -> float:
    if retry_after is not None:
        return min(retry_after, LONGEST_WAIT_SECONDS)
    return random.uniform(0.5, 1.0) * min(0.5 * 2.0**retry, LONGEST_WAIT_SECONDS)


def _refusal(status: int, data: bytes, retry_after: str | None) -> Failure:
    text = data[:300].decode("utf-8", "replace")
    wait = float(retry_after) if retry_after and retry_after.replace(".", "", 1).isdigit() else None
    kind: FailureClass = "permanent"
    if status in RETRIED_STATUSES:
        kind = "rate-limited" if status == 429 else "transient"
    return Failure("verifier", kind, f"the judge answered {status}: {text}", status=status, retry_after=wait)


def _completion(data: bytes) -> Completion:
    try:
        reply: Any = msgspec.json.decode(data)
        message = reply["choices"][0]["message"]
        usage = reply.get("usage") or {}
        return Completion(
            content_text(message.get("content")),
            int(usage.get("prompt_tokens") or 0),
            int(usage.get("completion_tokens") or 0),
        )
    except (msgspec.DecodeError, LookupError, AttributeError, TypeError) as error:
        raise Failure(
            "verifier", "transient", f"the judge's reply is no chat completion: {data[:200]!r}"
        ) from error
