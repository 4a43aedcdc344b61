"""Thread-safe decoding into records.

msgspec analyses a record's fields on first use of the type, and publishes the result before it is complete. A second thread that
decodes the type at that moment crashes the interpreter. Here a lock covers the analysis. Code inside functions decodes with these
helpers; decoders made at import time are safe too.
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
    """The cached JSON decoder of a type."""
    decoder = _json.get((kind, strict))
    if decoder is None:
        with _first_look:
            decoder = _json[kind, strict] = msgspec.json.Decoder(kind, strict=strict)
    return decoder


def decode_json(data: bytes | str, kind: type[T], *, strict: bool = True) -> T:
    """Decode one value from JSON."""
    return json_decoder(kind, strict=strict).decode(data)


def decode_msgpack(data: bytes, kind: type[T]) -> T:
    """Decode one value from MessagePack."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _first_look:
            decoder = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    value: T = decoder.decode(data)
    return value


def convert(value: object, kind: type[T], *, strict: bool = True, from_attributes: bool = False) -> T:
    """Convert plain objects to a type, by the rules of JSON decoding."""
    json_decoder(kind)
    return msgspec.convert(value, kind, strict=strict, from_attributes=from_attributes)
