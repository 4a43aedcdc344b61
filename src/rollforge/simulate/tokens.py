"""A toy tokenizer: parts of words, groups of up to three digits, single signs; their concatenation is the text.

Token ids are checksums, not a vocabulary: stable and plausible, but not decodable.
"""

from __future__ import annotations

import re
from functools import lru_cache
from zlib import crc32

from rollforge.json_shapes import TokenLogprobJson
from rollforge.simulate.conversation import (
    Ask,
    ConversationItem,
    SimulatedCall,
    SimulatedMessage,
    SimulatedTurn,
)
from rollforge.simulate.draws import Chance

_PIECE = re.compile(r" ?[^\W\d_]{1,7}| ?\d{1,3}|.", re.DOTALL)
_LONG = 2000
_FIRST_ID, _IDS = 1000, 49_000
_PER_MESSAGE = 4
"""Tokens that the chat template adds around each message."""

split = _PIECE.findall


def count(text: str) -> int:
    """Number of tokens in the text.

    No token crosses a line end, so lines are counted separately, with a cache.
    """
    lines = text.split("\n")
    return (
        sum(_count_line(line) if len(line) < _LONG else _count_long(line) for line in lines) + len(lines) - 1
    )


@lru_cache(maxsize=8192)
def _count_line(line: str) -> int:
    return len(split(line))


@lru_cache(maxsize=64)
def _count_long(line: str) -> int:
    """Number of tokens in a long line; the cache is small, because prompts may be huge."""
    return len(split(line))


def token_ids(text: str) -> list[int]:
    """One id per token of the text."""
    return [_FIRST_ID + crc32(piece.encode("utf-8", "replace")) % _IDS for piece in split(text)]


def prompt_texts(ask: Ask) -> list[str]:
    """The texts of the prompt in the order of the model's input, tools first."""
    texts = [tool.text for tool in ask.tools]
    for item in ask.items:
        if isinstance(item, SimulatedCall):
            texts.append(f"{item.name}{item.arguments}")
        else:
            texts.append(item.text)
    return texts


def count_prompt(ask: Ask) -> int:
    """Number of tokens in the prompt."""
    return sum(_PER_MESSAGE + count(text) for text in prompt_texts(ask))


def prompt_ids(ask: Ask) -> list[int]:
    """The ids of the prompt; as many as `count_prompt` says.

    The template's tokens follow each message, so a later prompt of the rollout starts with this prompt and the generated tokens,
    unless the turn contained reasoning (which prompts omit) or the caller rewrote it.
    """
    ids: list[int] = []
    frame = list(range(1, _PER_MESSAGE + 1))
    owed = 0
    texts = prompt_texts(ask)
    items = [None] * len(ask.tools) + list(ask.items)
    for position, text in enumerate(texts):
        ids += token_ids(text)
        owed += 1
        if (
            position + 1 < len(items)
            and isinstance(items[position + 1], SimulatedCall)
            and _is_model(items[position])
        ):
            continue  # still the same turn of the model: its frame closes after its last call
        ids += frame * owed
        owed = 0
    return ids


def _is_model(item: ConversationItem | None) -> bool:
    return isinstance(item, SimulatedCall) or (
        isinstance(item, SimulatedMessage) and item.role == "assistant"
    )


def generated_texts(turn: SimulatedTurn) -> list[str]:
    """The turn's generated texts, in order of generation."""
    calls = [f"{call.name}{call.arguments}" for call in turn.calls]
    return [turn.reasoning, turn.refusal or turn.text, *calls]


@lru_cache(maxsize=64)
def count_turn(turn: SimulatedTurn) -> int:
    """Number of tokens that the model generated."""
    return sum(map(count, generated_texts(turn)))


def turn_ids(turn: SimulatedTurn) -> list[int]:
    """Ids of the generated tokens."""
    return [number for text in generated_texts(turn) for number in token_ids(text)]


def limit(turn: SimulatedTurn, max_tokens: int | None) -> SimulatedTurn:
    """The turn cut off after `max_tokens`, as by a server: in the middle of a sentence, call or reasoning."""
    if max_tokens is None or count_turn(turn) <= max_tokens:
        return turn
    reasoning = split(turn.reasoning)[:max_tokens]
    left = max_tokens - len(reasoning)
    text = split(turn.text)[:left]
    left -= len(text)
    calls = []
    for call in turn.calls:
        pieces = split(call.arguments)[: max(0, left - count(call.name))]
        left -= count(call.name) + len(pieces)
        if pieces:
            calls.append(SimulatedCall(call.name, "".join(pieces), call.call_id))
    return SimulatedTurn(
        reasoning="".join(reasoning), text="".join(text), calls=tuple(calls), finish="length"
    )


def logprobs(text: str, top: int, chance: Chance) -> list[TokenLogprobJson]:
    """A log-probability per token with `top` alternatives, sorted by descending likelihood as in both APIs."""
    entries: list[TokenLogprobJson] = []
    for piece in split(text):
        chosen = -3.0 * chance.uniform() ** 4
        entry = _entry(piece, chosen)
        rest = [_entry(f"{piece}{other}", chosen - 0.5 - other) for other in range(1, top)]
        entries.append({**entry, "top_logprobs": [entry, *rest][:top]})
    return entries


def _entry(piece: str, value: float) -> TokenLogprobJson:
    return {"token": piece, "logprob": round(value, 6), "bytes": list(piece.encode("utf-8", "replace"))}
