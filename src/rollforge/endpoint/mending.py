"""Repairs of every answer before it enters a run: absurd numbers, hidden truncation, unrequested logprob alternatives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rollforge.json_shapes import PartJson, ResponseJson, items_in, parts_in

MOST_TOKENS = 10**12
"""Upper bound on the tokens of a model call; a larger count is invalid."""

_INT64 = 1 << 63
_MANY_DIGITS = re.compile(rb"[0-9]{19}")


def checked_numbers(response: ResponseJson) -> list[str]:
    """Set invalid token counts to null; returns their fields."""
    fields: list[str] = []
    usage = response.get("usage")
    if usage is not None and not isinstance(usage, dict):
        response["usage"] = None
        fields.append("usage")
    elif usage:
        _check_counts(usage, "usage", fields)
    return fields


def _check_counts(counts: Any, path: str, fields: list[str]) -> None:
    for key, value in counts.items():
        if isinstance(value, dict):
            _check_counts(value, f"{path}.{key}", fields)
            continue
        is_absurd = _is_number(value) and not 0 <= value <= MOST_TOKENS
        is_no_count = key.endswith("tokens") and value is not None and not _is_count(value)
        if is_absurd or is_no_count:
            counts[key] = None
            fields.append(f"{path}.{key}")
        elif key.endswith("tokens") and isinstance(value, float):
            counts[key] = int(value)  # 12.0 is how some servers write 12


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return _is_number(value) and float(value).is_integer()  # type: ignore[arg-type]


def drop_huge_numbers(value: Any, body: bytes) -> list[str]:
    """Replace integers of more than 64 bits by null, in place, because our file formats cannot store them; returns their fields."""
    fields: list[str] = []
    if isinstance(value, dict | list) and _MANY_DIGITS.search(body):
        _drop_huge(value, "", fields)
    return fields


def _drop_huge(value: Any, path: str, fields: list[str]) -> None:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(pairs):
        if isinstance(item, dict | list):
            _drop_huge(item, f"{path}.{key}" if path else str(key), fields)
        elif isinstance(item, int) and not -_INT64 <= item < _INT64:
            value[key] = None
            fields.append(f"{path}.{key}" if path else str(key))


def infer_truncation(response: ResponseJson, limit: object) -> None:
    """Mark an answer that used up its token limit as truncated, whatever its status; some servers report it as completed."""
    usage = response.get("usage")
    used = usage.get("output_tokens") if isinstance(usage, dict) else None
    if not isinstance(limit, int) or not isinstance(used, int) or used < limit or limit <= 0:
        return
    if response.get("incomplete_details") or response.get("status") not in ("completed", None):
        return
    response["status"] = "incomplete"
    response["incomplete_details"] = {"reason": "max_output_tokens", "inferred": True}
    if isinstance(response.get("finish_reason"), str):
        response["finish_reason"] = "length"


def trim_logprobs(response: ResponseJson, alternatives: int) -> bool:
    """Keep only the requested number of alternatives per token; returns whether the answer has logprobs at all.

    An answer without text (only a tool call) cannot have logprobs.
    """
    has_text = has_logprobs = False
    for part in _text_parts(response):
        has_text |= bool(part.get("text"))
        entries = part.get("logprobs")
        if not isinstance(entries, list) or not entries:
            continue
        has_logprobs = True
        for entry in entries:
            others = entry.get("top_logprobs") if isinstance(entry, dict) else None
            if isinstance(others, list) and len(others) > alternatives:
                entry["top_logprobs"] = others[:alternatives]
    return has_logprobs or not has_text


def _text_parts(response: ResponseJson) -> Iterator[PartJson]:
    for item in items_in(response.get("output")):
        for part in parts_in(item.get("content")):
            if part.get("type") == "output_text":
                yield part
