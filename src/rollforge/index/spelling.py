"""This module spells texts as JSON does, and back: answers stay escaped as in the file, and equal ones must be spelled alike."""

from __future__ import annotations

import json

import msgspec

_decode_text = msgspec.json.Decoder(str).decode


def unescaped(text: bytes) -> str:
    """The text that an escaped one spells."""
    try:
        return _decode_text(b'"' + text + b'"')
    except msgspec.DecodeError:  # half a surrogate pair
        return str(json.loads(b'"' + text + b'"'))


def escaped(text: str) -> bytes:
    """A text as JSON spells it: the one spelling that hashes are made of."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace")


def respell(text: bytes) -> tuple[bytes, int]:
    """An escaped text in the one spelling that equal texts share, and how many characters it has."""
    plain = unescaped(text)
    return escaped(plain), len(plain)
