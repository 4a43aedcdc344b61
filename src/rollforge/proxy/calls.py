"""A recorded model call: the program's request, the model's answer, and the line that stores them.

Each call repeats the whole conversation. Its line therefore refers to the earlier call whose items it repeats and contains only
new items, so that disk use grows linearly with the number of turns, not quadratically.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TypedDict

import msgspec

from rollforge.errors import Failure
from rollforge.json_shapes import ItemJson, ParamsJson, ResponseJson, items_in
from rollforge.proxy.same_item import ItemKey, item_key
from rollforge.records import ROLLOUT_KEY, TASK_KEY, to_json
from rollforge.text_safety.outgoing import cut

CallFailureJson = TypedDict("CallFailureJson", {"class": str, "message": str, "status": int | None})
"""Why a call has no answer."""


class RepeatedItemsJson(TypedDict):
    """Reference to prompt items that an earlier call's line contains."""

    call: int
    items: int


class CallJson(TypedDict, total=False):
    """A line of `rollouts_calls.jsonl`."""

    session: str
    _ng_task_index: int
    _ng_rollout_index: int
    call: int
    api: str
    stream: bool
    at: float
    seconds: float
    endpoint: str
    requests: int
    params: ParamsJson
    input_from: RepeatedItemsJson | None
    response: ResponseJson | None
    failure: CallFailureJson | None


class RecordedCall(msgspec.Struct, kw_only=True, dict=True):
    """A call that ended with an answer or a failure."""

    number: int
    """Number of the call in its rollout, from 0, in request order."""
    api: str
    """API that the program used: `chat`, `responses` or `messages`."""
    is_streamed: bool
    params: ParamsJson
    """Responses-shaped request as sent to the model, without its name: the run's sampling overrides the program's params."""
    response: ResponseJson | None = None
    """The complete answer with token ids and logprobs; None after a failure."""
    failure: Failure | None = None
    endpoint: str = ""
    requests: int = 0
    wasted: tuple[object, ...] = ()
    """Token usage of earlier answers that were paid for but discarded."""
    upstream: str = ""
    """API used between proxy and server."""
    repeats: int = 0
    """How often the program repeated this request; each repetition got the same answer."""
    started: float = 0.0
    seconds: float = 0.0

    @property
    def items(self) -> list[ItemJson]:
        """The prompt's items, instructions first."""
        prompt_input = self.params.get("input")
        items: list[ItemJson] = (
            [{"type": "message", "role": "user", "content": prompt_input}]
            if isinstance(prompt_input, str)
            else items_in(prompt_input)
        )
        if instructions := self.params.get("instructions"):
            return [{"type": "message", "role": "system", "content": instructions}, *items]
        return items

    @cached_property
    def keyed_items(self) -> list[tuple[ItemKey, ItemJson]]:
        """The prompt's items with their keys, without items that agents may omit."""
        return [(key, item) for item in self.items if (key := item_key(item)) is not None]

    @cached_property
    def keys(self) -> list[ItemKey]:
        """The keys of the prompt's items."""
        return [key for key, _ in self.keyed_items]

    @cached_property
    def prefixes(self) -> list[int]:
        """Hashes of the first 0, 1, 2, … keys: prompts with the same beginning have the same hashes there."""
        hashes = [0]
        for key in self.keys:
            hashes.append(hash((hashes[-1], key)))
        return hashes

    @property
    def output(self) -> list[ItemJson]:
        """The items that the model generated."""
        return items_in(self.response.get("output")) if self.response is not None else []

    @property
    def has_tools(self) -> bool:
        return bool(self.params.get("tools"))

    def tokens(self) -> tuple[list[int], list[int]] | None:
        """Prompt and generated token ids, if the server returned them."""
        for item in reversed(self.output):
            prompt, generated = item.get("prompt_token_ids"), item.get("generation_token_ids")
            if isinstance(prompt, list) and isinstance(generated, list):
                return prompt, generated
        return None


class CallOrigin(msgspec.Struct, frozen=True):
    """The rollout that a call belongs to."""

    session: str
    """Id of one attempt at a rollout, equal to the row's `_rf.program.session`."""
    task: int
    sample: int


def call_line(origin: CallOrigin, call: RecordedCall, earlier: Iterable[RecordedCall]) -> bytes:
    """The call as a line of `rollouts_calls.jsonl`."""
    shared, base = 0, -1
    items = call.params.get("input")
    if isinstance(items, list):
        for other in earlier:
            count = _same_items(items, other.params.get("input"))
            if count > shared:
                shared, base = count, other.number
    params = call.params.copy()
    if shared and isinstance(items, list):
        params["input"] = items[shared:]
    row: CallJson = {
        "session": origin.session,
        TASK_KEY: origin.task,
        ROLLOUT_KEY: origin.sample,
        "call": call.number,
        "api": call.api,
        "stream": call.is_streamed,
        "at": call.started,
        "seconds": call.seconds,
        "endpoint": call.endpoint,
        "requests": call.requests,
        "params": params,
        "input_from": {"call": base, "items": shared} if shared else None,
        "response": call.response,
        "failure": None if call.failure is None else _failure(call.failure),
    }
    return to_json(row)


def share_items(call: RecordedCall, earlier: Iterable[RecordedCall]) -> None:
    """Keep one copy of the items that a prompt repeats from an earlier call: a conversation is sent anew with every turn."""
    items = call.params.get("input")
    if not isinstance(items, list):
        return
    for other in earlier:
        others = other.params.get("input")
        if isinstance(others, list):
            count = _same_items(items, others)
            items[:count] = others[:count]


def _failure(failure: Failure) -> CallFailureJson:
    return {"class": failure.kind, "message": cut(failure.message, 2000), "status": failure.status}


def _same_items(items: list[ItemJson], others: object) -> int:
    """Length of the common prefix of two prompts, in items."""
    if not isinstance(others, list):
        return 0
    count = 0
    for one, other in zip(items, others, strict=False):
        if one is not other and one != other:
            break
        count += 1
    return count


def whole_inputs(rows: Iterable[CallJson]) -> Iterable[CallJson]:
    """The rows of one session, in order, with repeated items restored."""
    inputs: dict[int, list[ItemJson]] = {}
    for row in rows:
        params = (row.get("params") or ParamsJson()).copy()
        source = row.get("input_from")
        items = params.get("input")
        if isinstance(source, dict) and isinstance(items, list):
            items = inputs[source["call"]][: source["items"]] + items
            params["input"] = items
        if isinstance(items, list):
            inputs[row["call"]] = items
        yield {**row, "params": params, "input_from": None}
