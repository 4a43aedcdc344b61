"""Requests one response from a model, over the API that the server supports.

`auto` finds the API with the first real request: Chat Completions first, because servers report truncation there, unless the row
needs the Responses API. Small dialect differences (a server that wants `max_completion_tokens`, one that does not know
`return_token_ids`) are learned from refusals; requests with the refused field are repeated without it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, cast

import msgspec

from rollforge.endpoint.chat import from_chat, needs_responses, to_chat_body
from rollforge.endpoint.client import Client, NotJson
from rollforge.endpoint.failures import failure_from_error
from rollforge.endpoint.mending import checked_numbers, drop_huge_numbers, infer_truncation, trim_logprobs
from rollforge.errors import Failure
from rollforge.json_shapes import ChatBodyJson, ParamsJson, ResponseJson, Shape, without
from rollforge.records import Response, from_json, to_json
from rollforge.store.reading import UNREADABLE

Api = Literal["auto", "responses", "chat"]

SAMPLE_HEADER = "X-Rollforge-Sample"
"""Header with the sample number, so that the embedded model's answers do not depend on the order of requests."""


NO_ANSWER = ("cancelled", "queued", "in_progress")
"""`status` values of a response that was dropped or is not finished."""

UNKNOWN_PATH = (404, 405, 501)
"""HTTP statuses that mean an API's path is unknown."""

OPTIONAL_FIELDS = ("max_tokens", "return_token_ids", "stream")
"""Request fields that can be omitted or renamed when a server refuses them."""


LOGPROBS_ABSENT = "logprobs were asked for and are absent"
"""Note on an answer whose server ignored the request for logprobs."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Model name and request options."""

    name: str
    api: Api = "auto"
    logprobs: bool = False
    """Request logprobs, and token ids if the server supports them."""
    names_samples: bool = False
    """Send the sample's number in a header, which the embedded model reads."""


class ModelAnswer(msgspec.Struct, frozen=True):
    """A response with its cost in requests and time."""

    response: ResponseJson
    endpoint: str
    requests: int
    api: str = ""
    wasted: tuple[object, ...] = ()
    """Token usage of answers that were paid for but unusable."""


def other_names(own: str, names: Iterable[str]) -> str:
    """Up to three names of the model in answers, other than `own`, joined; empty if there are none."""
    return ", ".join(sorted(name for name in set(names) if name not in (own, "None"))[:3])


class Model:
    """One model behind a client."""

    def __init__(self, client: Client, options: ModelOptions) -> None:
        self.options = options
        self.api: Api = options.api
        self.names_seen: dict[str, int] = {}
        """Model names in answers → how many answers had them."""
        self.oddities: Counter[str] = Counter()
        """Irregularities of answers, for the run's notes: a sentence → how many answers it applies to."""
        self._client = client
        self._refused: set[str] = set()
        """Optional request fields that this server refused."""
        self._lacks_responses = False
        self._finding_out = asyncio.Lock()

    async def respond(self, params: ParamsJson, sample: int = 0) -> ModelAnswer:
        """The model's response to `params`, Responses-shaped; raises `Failure`."""
        headers = {SAMPLE_HEADER: str(sample)} if self.options.names_samples else None
        if self.api == "auto":
            async with self._finding_out:
                if self.api == "auto":
                    return await self._find_out(params, headers)
        return await self._ask(self._api_for(params), params, headers)

    async def context_tokens(self) -> int | None:
        """Context size of the model in tokens, if the server's model list has it."""
        try:
            listed = await self._client.get_json("/models")
        except Failure:
            return None
        data = listed.get("data") if isinstance(listed, dict) else None
        rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
        for row in rows:
            if row.get("id") == self.options.name or len(rows) == 1:
                for name in ("max_model_len", "context_length", "context_window"):
                    tokens = row.get(name)
                    if isinstance(tokens, int) and 1 < tokens < 1 << 40:
                        return tokens
        return None

    def release_large(self) -> None:
        """Release the current task's large-answer slot; for callers that send requests from separate tasks."""
        self._client.large.release()

    def _api_for(self, params: ParamsJson) -> Api:
        """The detected API; a row that chat cannot express uses the other one, if the server has it."""
        is_free = self.options.api == "auto" and self.api == "chat" and not self._lacks_responses
        return "responses" if is_free and needs_responses(params) else self.api

    async def _find_out(self, params: ParamsJson, headers: dict[str, str] | None) -> ModelAnswer:
        """Detect the API: try one, then the other if the server does not know the first; keep the one that answers."""
        order: tuple[Api, Api] = ("responses", "chat") if needs_responses(params) else ("chat", "responses")
        failures: list[Failure] = []
        for api in order:
            try:
                answer = await self._ask(api, params, headers, is_probe=True)
            except Failure as failure:
                if failure.status not in UNKNOWN_PATH and not isinstance(failure, NotJson):
                    raise
                failures.append(failure)
                self._lacks_responses |= api == "responses"
            else:
                self.api = api
                return answer
        # A path that neither API has says more than a page that is no JSON.
        raise min(failures, key=lambda failure: failure.status is None)

    async def _ask(
        self, api: Api, params: ParamsJson, headers: dict[str, str] | None, *, is_probe: bool = False
    ) -> ModelAnswer:
        path = "/responses" if api == "responses" else "/chat/completions"
        while True:
            body = self.body(api, params)
            try:
                reply = await self._client.post(
                    path,
                    to_json(body),
                    read=self._read_chat if api == "chat" else self._read_response,
                    headers=headers,
                    keeps_slot=is_probe,
                    is_probe=is_probe,
                )
            except Failure as failure:
                if not self.learn(failure, body):
                    raise
                continue
            self._see(reply.value, params)
            return ModelAnswer(reply.value, reply.endpoint, reply.requests, api, reply.wasted)

    def read(self, api: str, body: bytes, params: ParamsJson) -> ResponseJson:
        """Parse the body of a reply that arrived another way (in a batch); raises `Failure`."""
        response = self._read_chat(body) if api == "chat" else self._read_response(body)
        self._see(response, params)
        return response

    @property
    def served(self) -> str:
        """Names of the model in answers, other than the one asked for."""
        return other_names(self.options.name, self.names_seen)

    def _see(self, response: ResponseJson, params: ParamsJson) -> None:
        name = str(response.get("model"))
        self.names_seen[name] = self.names_seen.get(name, 0) + 1
        self._check(response, params)

    def _check(self, response: ResponseJson, params: ParamsJson) -> None:
        """Correct known mistakes of servers in place, and count them."""
        for field in checked_numbers(response):
            self.oddities[f"{field} was no count and is null"] += 1
        infer_truncation(response, params.get("max_output_tokens"))
        is_asked = self.options.logprobs or params.get("top_logprobs") is not None
        if is_asked and not trim_logprobs(response, params.get("top_logprobs") or 0):
            self.oddities[LOGPROBS_ABSENT] += 1

    def body(self, api: str, params: ParamsJson) -> ParamsJson | ChatBodyJson:
        """The request body for these params."""
        body: ParamsJson | ChatBodyJson
        if api == "responses":
            filled_params = without(params, [key for key, value in params.items() if value is None])
            if self.options.logprobs:
                filled_params["include"] = sorted(
                    {*(filled_params.get("include") or []), "message.output_text.logprobs"}
                )
            body = filled_params
        else:
            chat = to_chat_body(params)
            if self.options.logprobs:
                chat |= {"logprobs": True, "return_token_ids": True}
            body = chat
        body["stream"] = False  # some servers stream unless asked not to
        body = self._without_refused(body)
        body["model"] = self.options.name
        return body

    def _without_refused(self, body: Shape) -> Shape:
        fields = dict(body)
        if "max_tokens" in self._refused and "max_tokens" in fields:
            fields["max_completion_tokens"] = fields.pop("max_tokens")
        return cast("Shape", without(fields, self._refused))

    def learn(self, failure: Failure, body: ParamsJson | ChatBodyJson) -> bool:
        """Whether the refusal names an optional field of this body; later bodies omit that field."""
        if failure.status not in (400, 422):
            return False
        for name in OPTIONAL_FIELDS:
            if name in body and name in failure.message:
                if name == "max_tokens" and "max_completion_tokens" not in failure.message:
                    continue
                self._refused.add(name)
                return True
        return False

    def _read_chat(self, body: bytes) -> ResponseJson:
        return _unfiltered(from_chat(self._read_object(body)))

    def _read_response(self, body: bytes) -> ResponseJson:
        """Parse a Responses object with an answer; an error, or an unfinished response, with status 200 is a failure."""
        response: ResponseJson = self._read_object(body)
        status = response.get("status")
        if response.get("error"):
            raise failure_from_error(response["error"])
        if not isinstance(response.get("output"), list):
            raise Failure("model", "transient", "the answer has no output")
        if status == "failed" or (status in NO_ANSWER and not response["output"]):
            failure = Failure("model", "transient", f"the server gave no answer: the response is {status}")
            failure.usage = response.get("usage")
            raise failure
        return _unfiltered(response)

    def _read_object(self, body: bytes) -> Any:
        try:
            value = from_json(body)
        except UNREADABLE:
            value = _read_leniently(body)
        if not isinstance(value, dict):
            raise Failure("model", "transient", "the server answered with no object")
        for field in drop_huge_numbers(value, body):
            self.oddities[f"{field} had more than 64 bits and is null"] += 1
        return value


def _read_leniently(body: bytes) -> object:
    """Read what Python servers write although JSON does not allow it: NaN, Infinity, half of a surrogate pair.

    Such numbers become null, and half pairs the replacement character; any other broken JSON counts as torn.
    """
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"), parse_constant=lambda _: None)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Failure("model", "transient", f"torn JSON from the server: {error}") from error


def _unfiltered(response: ResponseJson) -> ResponseJson:
    """The response; raises a failure if a content filter removed all of it."""
    details = response.get("incomplete_details")
    if (
        isinstance(details, dict)
        and details.get("reason") == "content_filter"
        and Response(response).is_empty
    ):
        failure = Failure("model", "refused", "a content filter left nothing of the answer")
        failure.usage = response.get("usage")
        raise failure
    return response
