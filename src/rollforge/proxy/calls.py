"""A recorded model call: what the program asked, what the model answered, and the line that keeps it.

A later call repeats the whole conversation. Its line names the earlier call whose items it repeats and holds only the new ones, so
that a rollout of a hundred turns costs its own length on disk and not its square.
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

CallFailureJson = TypedDict("CallFailureJson", {"class": str, "message": str, "status": int | None})
"""Why a call has no answer."""


class RepeatedItemsJson(TypedDict):
    """The items of the prompt that an earlier call's line holds."""

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
    """One call that ended, answered or failed."""

    number: int
    """Counts the rollout's calls from 0, in the order in which they were asked."""
    api: str
    """`chat`, `responses` or `messages`: what the program spoke."""
    is_streamed: bool
    params: ParamsJson
    """Responses-shaped, as sent to the model but for its name: sampling of the run imposed, the rest the program's."""
    response: ResponseJson | None = None
    """The whole answer with token ids and logprobs; None when it failed."""
    failure: Failure | None = None
    endpoint: str = ""
    requests: int = 0
    wasted: tuple[object, ...] = ()
    """Usages of answers that were paid and thrown away before this one."""
    upstream: str = ""
    """The API in which the server was asked."""
    repeats: int = 0
    """How often the program sent this request again; each got the same answer."""
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
        """The prompt's items with their keys, without those that agents may leave out."""
        return [(key, item) for item in self.items if (key := item_key(item)) is not None]

    @cached_property
    def keys(self) -> list[ItemKey]:
        """The keys of the prompt's items."""
        return [key for key, _ in self.keyed_items]

    @cached_property
    def prefixes(self) -> list[int]:
        """A hash of the first 0, 1, 2, … keys: equal prompts have equal hashes, and so have equal beginnings."""
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
        """Prompt and generated token ids, where the server gave them."""
        for item in reversed(self.output):
            prompt, generated = item.get("prompt_token_ids"), item.get("generation_token_ids")
            if isinstance(prompt, list) and isinstance(generated, list):
                return prompt, generated
        return None


class CallOrigin(msgspec.Struct, frozen=True):
    """Which rollout a call belongs to."""

    session: str
    """Names one attempt at a rollout; the row's `_rf.program.session` is the same."""
    task: int
    sample: int


def call_line(origin: CallOrigin, call: RecordedCall, earlier: Iterable[RecordedCall]) -> bytes:
    """The line of `rollouts_calls.jsonl`."""
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


def _failure(failure: Failure) -> CallFailureJson:
    return {"class": failure.kind, "message": failure.message[:2000], "status": failure.status}


def _same_items(items: list[ItemJson], others: object) -> int:
    """How many items two prompts have in common at their beginning."""
    if not isinstance(others, list):
        return 0
    count = 0
    for one, other in zip(items, others, strict=False):
        if one != other:
            break
        count += 1
    return count


def whole_inputs(rows: Iterable[CallJson]) -> Iterable[CallJson]:
    """The rows of one session, in order, with the items that their lines left out put back."""
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
