"""One rollout for the viewer: turns in pieces, verdicts, tokens, images. All text is made visible, none is interpreted."""

from __future__ import annotations

import base64
import binascii
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
from msgspec import Struct

from rollforge.conversations.turns import Turn
from rollforge.experience.from_rollout import model_calls
from rollforge.json_shapes import ItemJson, RowJson, items_in
from rollforge.records import OWN_KEY, PARAMS_KEY, RESERVED_KEYS, JsonFields
from rollforge.text_safety.visible import visible

PIECE = 64 << 10
"""Characters per piece of text; the page requests further pieces."""

MOST_FIRST = 4 * PIECE
"""Most characters over all turns when a rollout is opened."""

MOST_WHOLE = 2**53
"""Largest integer that browsers represent exactly."""

MOST_TOKENS = 4000
MOST_CHARS = 4096
"""Most characters of a value in a table."""

MOST_IMAGE_BYTES = 16 << 20

IMAGE_TYPES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"RIFF": "image/webp",
}
"""First bytes → image type. The data decides, not its declared type; SVG is a document and never shown."""


class TurnHead(Struct, frozen=True, kw_only=True):
    """One turn of a rollout: its first piece and total length."""

    kind: str
    title: str
    text: str
    shown: int
    """Number of the turn's characters in `text`, which may be longer because symbols replace invisible characters."""
    chars: int


class Token(Struct, frozen=True, array_like=True):
    """One token: its text (or id, if no text was recorded), logprob, and whether a trainer would learn from it."""

    text: str
    logprob: float | None
    is_trained: bool


class Opened(Struct, frozen=True, kw_only=True):
    """An opened rollout."""

    row: int
    facts: JsonFields
    why: Sequence[str]
    """Reasons why it is suspicious."""
    turns: Sequence[TurnHead]
    task: JsonFields
    """The task's own fields."""
    verdicts: Sequence[JsonFields]
    """Verdicts by verifier: the inline verdict first, then later ones."""
    siblings: Sequence[Sequence[Any]]
    """(row, sample, reward) of the rollouts of the same task."""
    raw_bytes: int
    tokens: Sequence[Token] = ()
    """At most `MOST_TOKENS` tokens, if ids or logprobs were captured."""
    advantage: float | None = None
    """Advantage in the group: (reward - mean) / standard deviation; null if all rewards are equal."""
    images: Sequence[str] = ()
    """Types of the images in the rollout, in order; an image is fetched on click."""


def heads_of(turns: Iterable[Turn]) -> list[TurnHead]:
    """Turns with their first pieces of text; if there are many, later ones have none."""
    left = MOST_FIRST
    heads = []
    for turn in turns:
        shown = min(len(turn.text), PIECE, left)
        left -= shown
        heads.append(
            TurnHead(
                kind=turn.kind,
                title=visible(turn.title),
                text=visible(turn.text[:shown]),
                shown=shown,
                chars=len(turn.text),
            )
        )
    return heads


def plain(value: Any) -> Any:
    """A value as safe JSON: no NaN, no Decimal, large integers as text, text made visible."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, int) and not -MOST_WHOLE <= value <= MOST_WHOLE:
        return str(value)
    return visible(value[:MOST_CHARS]) if isinstance(value, str) else value


def short(value: Any) -> Any:
    """A field of a task or verdict, cut off at a few kilobytes."""
    if isinstance(value, str | int | float | bool) or value is None:
        return plain(value)
    text = msgspec.json.encode(value).decode()
    return visible(text if len(text) <= MOST_CHARS else f"{text[:MOST_CHARS]}… ({len(text):,} characters)")


def shown_fields(fields: JsonFields) -> JsonFields:
    """Fields for a table, without null ones."""
    return {visible(str(name)): short(value) for name, value in fields.items() if value is not None}


def later_verdict(fields: JsonFields) -> JsonFields:
    """A verdict from the verdicts file: verifier and reward first, its time as a date."""
    ordered = {name: fields[name] for name in ("verifier", "reward") if name in fields} | fields
    if isinstance(at := ordered.get("at"), int | float):
        with suppress(ValueError, OverflowError, OSError):  # of a file that something else wrote
            ordered["at"] = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return shown_fields(ordered)


def inline_verdict(row: RowJson) -> list[JsonFields]:
    """The inline verdict of the row, if any."""
    numbers = {name: value for name, value in row.items() if name not in RESERVED_KEYS and name != "messages"}
    if "reward" not in numbers:
        return []
    own = row.get(OWN_KEY)
    name = own.get("verifier") if isinstance(own, dict) else None
    return [shown_fields({"verifier": name or "recorded", "reward": numbers.pop("reward"), **numbers})]


def advantage_of(reward: object, rewards: Sequence[float]) -> float | None:
    """The group-relative advantage of a rollout."""
    if not isinstance(reward, int | float) or len(rewards) < 2:
        return None
    spread = statistics.stdev(rewards)
    return (reward - statistics.fmean(rewards)) / spread if spread > 0 else None


def tokens_of(row: RowJson) -> list[Token]:
    """Sampled tokens with logprobs; with captured ids, also the tokens between calls, from which no trainer learns."""
    response = row.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    items = items_in(output)
    texts = list(_with_texts(items))
    calls = model_calls(items)
    if not calls:
        return texts[:MOST_TOKENS]
    has_texts = len(texts) == sum(len(call.generated) for call in calls)
    tokens: list[Token] = []
    seen = len(calls[0].prompt)
    text_iterator = iter(texts)
    for call in calls:
        tokens += [Token(f"⟨{number}⟩", None, False) for number in call.prompt[seen:]]
        logprobs: Sequence[float | None] = call.logprobs or [None] * len(call.generated)
        for number, logprob in zip(call.generated, logprobs, strict=True):
            text = next(text_iterator).text if has_texts else f"⟨{number}⟩"
            tokens.append(Token(text, logprob, True))
        seen = len(call.prompt) + len(call.generated)
        if len(tokens) > MOST_TOKENS:
            break
    return tokens[:MOST_TOKENS]


def _with_texts(items: Sequence[ItemJson]) -> Iterator[Token]:
    """Tokens for which the server returned texts."""
    for item in items:
        content = item.get("content")
        for part in content if isinstance(content, list) else []:
            logprobs = part.get("logprobs") if isinstance(part, dict) else None
            for token in logprobs if isinstance(logprobs, list) else []:
                if isinstance(token, dict):
                    yield Token(visible(str(token.get("token", ""))), plain(token.get("logprob")), True)


def images_of(row: RowJson) -> list[str]:
    """Types of the images in a rollout, in order."""
    return [kind for kind, _ in _images(row)]


def image_of(row: RowJson, number: int) -> tuple[str, bytes] | None:
    """One image as (type, bytes); None if there are fewer."""
    for position, image in enumerate(_images(row)):
        if position == number:
            return image
    return None


def _images(row: RowJson) -> Iterator[tuple[str, bytes]]:
    params, response = row.get(PARAMS_KEY), row.get("response")
    sides = [params.get("input") if isinstance(params, dict) else row.get("messages")]
    sides.append(response.get("output") if isinstance(response, dict) else None)
    for text in _data_urls(sides):
        decoded = _decoded(text)
        if decoded is not None:
            yield decoded


def _data_urls(value: object) -> Iterator[str]:
    """Every base64 data URL below `value`, in order."""
    if isinstance(value, str):
        if value.startswith("data:image/"):
            yield value
    elif isinstance(value, list):
        for one in value:
            yield from _data_urls(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _data_urls(one)


def _decoded(url: str) -> tuple[str, bytes] | None:
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64") or len(data) > MOST_IMAGE_BYTES * 4 // 3:
        return None
    try:
        image = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    kind = next((kind for magic, kind in IMAGE_TYPES.items() if image.startswith(magic)), None)
    return None if kind is None else (kind, image)
