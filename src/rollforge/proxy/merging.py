"""Merges the calls of one rollout into sequences: token sequences that a trainer could learn from.

A call continues an earlier one if its prompt starts with that call's prompt and answer. Calls that continue each other form a
sequence. Each call belongs to exactly one sequence, so nothing is trained on twice.

Roles: `main` offers tools (where any call does) and ends last; `branch` shares a beginning with another sequence beyond its
system prompt; `sub` has a beginning of its own and tools; `auxiliary` has a beginning of its own and no tools, while others have
them (a title, a summary); `retry` was discarded by the program, which sent the same conversation again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Listed
from typing import Literal

import msgspec

from rollforge.json_shapes import ItemJson, ParamsJson, SequenceJson, prompt_in
from rollforge.proxy.calls import RecordedCall
from rollforge.proxy.same_item import ItemKey, item_keys

Role = Literal["main", "branch", "sub", "auxiliary", "retry"]

TokenFidelity = Literal["exact", "drift", "text"]
"""`exact`: every prompt continues the previous tokens. `drift`: the same messages have other tokens. `text`: no token ids."""


class Drift(msgspec.Struct, frozen=True):
    """Where a sequence's tokens differ from those that the model saw and wrote."""

    turn: int
    """The first turn, from 1, whose prompt does not continue the previous tokens."""
    tokens: int
    """Number of earlier tokens that no longer match at that turn."""
    turns: int
    """Number of turns in the sequence that drift."""


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of a rollout."""

    role: Role
    calls: list[int]
    """Numbers of its calls, in order."""
    prompt: ParamsJson
    """Request of its first call: `input`, `instructions`, `tools`."""
    output: list[ItemJson]
    """Items of all turns, with the program's additions between them: tool outputs, messages."""
    fidelity: TokenFidelity
    drift: Drift | None = None
    input_tokens: int | None = None
    """Input tokens of its last call; None if the server did not count."""
    output_tokens: int | None = None
    """Output tokens over all its turns; None if one was not counted."""
    has_tools: bool = False

    def to_record(self, *, with_text: bool) -> SequenceJson:
        """The sequence as an entry of `_rf.sequences`. The text of the main sequence is in the row itself."""
        record: SequenceJson = {
            "role": self.role,
            "turns": len(self.calls),
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "fidelity": self.fidelity,
        }
        if self.drift is not None:
            record["drift"] = msgspec.to_builtins(self.drift)
        return {**record, "prompt": self.prompt, "output": self.output} if with_text else record


def merge_calls(calls: Listed[RecordedCall]) -> list[Sequence]:
    """Sequences of a rollout's answered calls: main first, the others in the order of their ends."""
    answered = sorted((call for call in calls if call.response is not None), key=lambda call: call.number)
    if not answered:
        return []
    chains = _chains(answered, _parents(answered))
    retried = _retried(answered)
    main = _main_chain(chains, retried)
    ordered = [main, *(chain for chain in chains if chain is not main)]
    taken: set[int] = set()
    sequences: list[Sequence] = []
    for chain in ordered:
        own = [call for call in chain if call.number not in taken]
        taken |= {call.number for call in own}
        role: Role = "main" if chain is main else _role(chain, own, ordered, retried)
        sequences.append(_sequence(role, own))
    return sequences


def added_items(earlier: RecordedCall, later: RecordedCall) -> list[ItemJson] | None:
    """Items that `later`'s prompt adds to `earlier`'s prompt and answer; None if it does not continue `earlier`.

    They need not come after the answer: some agents put each tool output behind its call.
    """
    start = len(earlier.keys)
    if len(later.keys) <= start or later.keys[:start] != earlier.keys:
        return None
    awaited = item_keys(earlier.output)
    added: list[ItemJson] = []
    for key, item in later.keyed_items[start:]:
        if awaited and key == awaited[0]:
            awaited.pop(0)
        elif awaited and key[0] != "output":
            return None
        else:
            added.append(item)
    return None if awaited else added


def _parents(calls: list[RecordedCall]) -> dict[int, RecordedCall]:
    """For each call, its parent: the earlier call with the longest prompt that it repeats."""
    parent_by_number: dict[int, RecordedCall] = {}
    calls_by_prompt: dict[int, list[RecordedCall]] = {}
    for call in calls:
        parent = next(
            (
                earlier
                for prefix in reversed(call.prefixes[:-1])
                for earlier in reversed(calls_by_prompt.get(prefix, ()))
                if added_items(earlier, call) is not None
            ),
            None,
        )
        if parent is not None:
            parent_by_number[call.number] = parent
        calls_by_prompt.setdefault(call.prefixes[-1], []).append(call)
    return parent_by_number


def _chains(calls: list[RecordedCall], parent_by_number: dict[int, RecordedCall]) -> list[list[RecordedCall]]:
    """Every path from a first call to a last one, in the order of their ends."""
    continued = {parent.number for parent in parent_by_number.values()}
    chains = []
    for leaf in calls:
        if leaf.number in continued:
            continue
        chain = [leaf]
        while (parent := parent_by_number.get(chain[-1].number)) is not None:
            chain.append(parent)
        chains.append(chain[::-1])
    return chains


def _main_chain(chains: list[list[RecordedCall]], retried: set[int]) -> list[RecordedCall]:
    """The chain that ends last, among those with tools if there are any. Retried answers are ignored."""
    live = [chain for chain in chains if chain[-1].number not in retried] or chains
    with_tools = [chain for chain in live if any(call.has_tools for call in chain)]
    return max(with_tools or live, key=lambda chain: chain[-1].number)


def _retried(calls: list[RecordedCall]) -> set[int]:
    """Calls whose conversation was sent again later."""
    last: dict[tuple[int, bool], int] = {}
    for call in calls:
        last[call.prefixes[-1], call.has_tools] = call.number
    return {call.number for call in calls if last[call.prefixes[-1], call.has_tools] != call.number}


def _role(
    chain: list[RecordedCall],
    own: list[RecordedCall],
    chains: list[list[RecordedCall]],
    retried: set[int],
) -> Role:
    if chain[-1].number in retried:
        return "retry"
    # Its own dropped tries share its beginning and make it no branch.
    rivals = [other for other in chains if other is not chain and other[-1].number not in retried]
    if len(own) < len(chain) or any(_shares_beginning(chain[0], other[0]) for other in rivals):
        return "branch"
    has_tools = any(call.has_tools for call in chain)
    others_have = any(call.has_tools for other in chains for call in other)
    return "auxiliary" if others_have and not has_tools else "sub"


def _shares_beginning(one: RecordedCall, other: RecordedCall) -> bool:
    """Whether two first prompts share more than the system prompt."""
    for first, second in zip(one.keys, other.keys, strict=False):
        if first != second:
            return False
        if not _is_system(first):
            return True
    return False


def _is_system(key: ItemKey) -> bool:
    return key[0] == "message" and key[1] in ("system", "developer")


def _sequence(role: Role, calls: list[RecordedCall]) -> Sequence:
    output: list[ItemJson] = list(calls[0].output)
    for earlier, later in itertools.pairwise(calls):
        output += added_items(earlier, later) or []
        output += later.output
    fidelity, drift = _fidelity(calls)
    return Sequence(
        role=role,
        calls=[call.number for call in calls],
        prompt=prompt_in(calls[0].params),
        output=output,
        fidelity=fidelity,
        drift=drift,
        input_tokens=_count(calls[-1], "input_tokens"),
        output_tokens=_total(calls),
        has_tools=any(call.has_tools for call in calls),
    )


def _fidelity(calls: list[RecordedCall]) -> tuple[TokenFidelity, Drift | None]:
    """Whether each prompt's token ids continue those before it."""
    tokens_by_call = [call.tokens() for call in calls]
    ids = [tokens for tokens in tokens_by_call if tokens is not None]
    if len(ids) < len(tokens_by_call):
        return "text", None
    first: tuple[int, int] | None = None
    turns = 0
    for turn, ((prompt, generated), (later, _)) in enumerate(itertools.pairwise(ids), start=2):
        seen = prompt + generated
        if later[: len(seen)] == seen:
            continue
        turns += 1
        same = next(
            (
                position
                for position, (one, other) in enumerate(zip(seen, later, strict=False))
                if one != other
            ),
            min(len(seen), len(later)),
        )
        first = first or (turn, len(seen) - same)
    return ("exact", None) if first is None else ("drift", Drift(first[0], first[1], turns))


def _count(call: RecordedCall, name: str) -> int | None:
    usage = (call.response or {}).get("usage")
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) else None


def _total(calls: list[RecordedCall]) -> int | None:
    counts = [_count(call, "output_tokens") for call in calls]
    return sum(count or 0 for count in counts) if None not in counts else None
