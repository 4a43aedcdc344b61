"""Decoding into records from any thread.

msgspec works out a record's fields when it first meets the type, and it publishes the result before it is complete. A second thread
that decodes the same type at that moment crashes the interpreter. Here one lock covers that first look. Functions decode with what is
here; a decoder made when a module is imported is safe too.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_first_look = threading.Lock()
_json: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[T], *, strict: bool = True) -> msgspec.json.Decoder[T]:
    """The decoder of JSON for a type, made once."""
    decoder = _json.get((kind, strict))
    if decoder is None:
        with _first_look:
            decoder = _json[kind, strict] = msgspec.json.Decoder(kind, strict=strict)
    return decoder


def decode_json(data: bytes | str, kind: type[T], *, strict: bool = True) -> T:
    """One value from JSON."""
    return json_decoder(kind, strict=strict).decode(data)


def decode_msgpack(data: bytes, kind: type[T]) -> T:
    """One value from MessagePack."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _first_look:
            decoder = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    value: T = decoder.decode(data)
    return value


def convert(value: object, kind: type[T], *, strict: bool = True, from_attributes: bool = False) -> T:
    """A value from plain objects, by the rules of JSON decoding."""
    json_decoder(kind)
    return msgspec.convert(value, kind, strict=strict, from_attributes=from_attributes)
