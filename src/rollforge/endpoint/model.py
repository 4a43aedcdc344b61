"""This module asks a model for one response, over whichever API the server speaks.

`auto` finds out once, with the first real request. Small dialect differences (a server that wants `max_completion_tokens`, one
that does not know `return_token_ids`) are learned from its first refusal and remembered.
"""

from __future__ import annotations

import asyncio
import json
from typing import Literal

import msgspec

from rollforge.endpoint.chat import from_chat, to_chat_body
from rollforge.endpoint.client import Client
from rollforge.endpoint.faults import failure_from_error
from rollforge.errors import Failure
from rollforge.records import JsonObject, Response, from_json, to_json
from rollforge.store.reading import UNREADABLE

Api = Literal["auto", "responses", "chat"]

SAMPLE_HEADER = "X-Rollforge-Sample"
"""Tells the embedded model which sample this is, so that its answers do not depend on the order of requests."""


NO_ANSWER = ("cancelled", "queued", "in_progress")
"""What `status` says of a response that was dropped or is not made yet."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and how it is asked."""

    name: str
    api: Api = "auto"
    logprobs: bool = False
    """Ask for logprobs, and for token ids where the server can give them."""
    names_samples: bool = False
    """Send the sample's number in a header (the embedded model reads it)."""


class ModelAnswer(msgspec.Struct, frozen=True):
    """A response with what it took to get it."""

    response: JsonObject
    endpoint: str
    requests: int


class Model:
    """One model behind a client."""

    def __init__(self, client: Client, options: ModelOptions) -> None:
        self.options = options
        self.api: Api = options.api
        self.names_seen: dict[str, int] = {}
        self._client = client
        self._refused: set[str] = set()
        """Optional request fields this server has refused."""
        self._finding_out = asyncio.Lock()

    async def respond(self, params: JsonObject, sample: int = 0) -> ModelAnswer:
        """The model's response to `params`, Responses-shaped; raises `Failure`."""
        headers = {SAMPLE_HEADER: str(sample)} if self.options.names_samples else None
        if self.api == "auto":
            async with self._finding_out:
                if self.api == "auto" and (answer := await self._find_out(params, headers)):
                    return answer
        return await self._ask(self.api, params, headers)

    async def _find_out(self, params: JsonObject, headers: dict[str, str] | None) -> ModelAnswer | None:
        """Ask over one API and keep it if it answers; if the server does not know that path, it is the other one."""
        # Token ids come over Chat Completions only, so ask there first when they are wanted.
        order: tuple[Api, Api] = ("chat", "responses") if self.options.logprobs else ("responses", "chat")
        first, second = order
        try:
            answer = await self._ask(first, params, headers, keeps_place=True)
        except Failure as failure:
            if failure.status not in (404, 405, 501):
                raise
            self.api = second
            return None
        self.api = first
        return answer

    async def _ask(
        self, api: Api, params: JsonObject, headers: dict[str, str] | None, *, keeps_place: bool = False
    ) -> ModelAnswer:
        path = "/responses" if api == "responses" else "/chat/completions"
        while True:
            body = self._body(api, params)
            try:
                reply = await self._client.post(
                    path,
                    to_json(body),
                    read=_read_chat if api == "chat" else _read_response,
                    headers=headers,
                    keeps_place=keeps_place,
                )
            except Failure as failure:
                if not self._learn(failure, body):
                    raise
                continue
            name = str(reply.value.get("model"))
            self.names_seen[name] = self.names_seen.get(name, 0) + 1
            return ModelAnswer(reply.value, reply.endpoint, reply.requests)

    def _body(self, api: Api, params: JsonObject) -> JsonObject:
        if api == "responses":
            body = {key: value for key, value in params.items() if value is not None}
            if self.options.logprobs:
                body["include"] = sorted({*(body.get("include") or []), "message.output_text.logprobs"})
        else:
            body = to_chat_body(params)
            if self.options.logprobs:
                body |= {"logprobs": True, "return_token_ids": True}
        if "max_tokens" in self._refused and "max_tokens" in body:
            body["max_completion_tokens"] = body.pop("max_tokens")
        for name in self._refused:
            body.pop(name, None)
        body["model"] = self.options.name
        return body

    def _learn(self, failure: Failure, body: JsonObject) -> bool:
        """Whether the refusal names an optional field that we can do without or call otherwise."""
        if failure.status not in (400, 422):
            return False
        for name in ("max_tokens", "return_token_ids"):
            if name in body and name not in self._refused and name in failure.message:
                if name == "max_tokens" and "max_completion_tokens" not in failure.message:
                    continue
                self._refused.add(name)
                return True
        return False


def _read_chat(body: bytes) -> JsonObject:
    return _unfiltered(from_chat(_read_object(body)))


def _read_object(body: bytes) -> JsonObject:
    try:
        value = from_json(body)
    except UNREADABLE:
        value = _read_leniently(body)
    if not isinstance(value, dict):
        raise Failure("model", "transient", "the server answered with no object")
    return value


def _read_leniently(body: bytes) -> object:
    """What Python servers write though JSON has no such thing: NaN, Infinity, half of a surrogate pair.

    Such numbers become null and half characters the replacement character; anything else that is broken is torn.
    """
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise Failure("model", "transient", f"torn JSON from the server: {error}") from error


def _read_response(body: bytes) -> JsonObject:
    """A Responses object that holds an answer; an error or an answer still to come, with status 200, is a failure."""
    response = _read_object(body)
    status = response.get("status")
    if response.get("error"):
        raise failure_from_error(response["error"])
    if not isinstance(response.get("output"), list):
        raise Failure("model", "transient", "the answer has no output")
    if status == "failed" or (status in NO_ANSWER and not response["output"]):
        raise Failure("model", "transient", f"the server gave no answer: the response is {status}")
    return _unfiltered(response)


def _unfiltered(response: JsonObject) -> JsonObject:
    """The response, unless a content filter left nothing of it."""
    details = response.get("incomplete_details")
    if (
        isinstance(details, dict)
        and details.get("reason") == "content_filter"
        and Response(response).is_empty
    ):
        raise Failure("model", "refused", "a content filter left nothing of the answer")
    return response
