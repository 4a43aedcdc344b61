"""Bodies that no client should hold in memory: endless, huge, and huge once decompressed.

Each is a generator of pieces, so that the server itself holds a megabyte at most."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

_PIECE = b"a" * 65_536
_PER_MEGABYTE = 16
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


def endless(megabytes: int | None) -> Iterator[bytes]:
    """The start of a JSON object with an endless string; with `megabytes`, the sender stops there."""
    yield b'{"id":"'
    left = None if megabytes is None else megabytes * _PER_MEGABYTE
    while left is None or left > 0:
        yield _PIECE
        left = None if left is None else left - 1


def padded(body: bytes, megabytes: int) -> Iterator[bytes]:
    """A valid JSON object with one additional field of that size."""
    yield body[:-1] + b',"padding":"'
    for _ in range(megabytes * _PER_MEGABYTE):
        yield _PIECE
    yield b'"}'


def gzip_bomb(body: bytes, megabytes: int) -> Iterator[bytes]:
    """The padded object compressed with gzip, to about a thousandth of its size.

    A block that ends in a full flush does not refer to earlier data, so one compressed megabyte can be repeated.
    """
    first, last, megabyte = body[:-1] + b',"padding":"', b'"}', _PIECE * _PER_MEGABYTE
    checksum, size = zlib.crc32(first), len(first) + megabytes * len(megabyte) + len(last)
    yield _GZIP_HEAD + _deflated(first)
    block = _deflated(megabyte)
    for _ in range(megabytes):
        checksum = zlib.crc32(megabyte, checksum)
        yield block
    checksum = zlib.crc32(last, checksum)
    yield (
        _deflated(last, zlib.Z_FINISH) + checksum.to_bytes(4, "little") + (size % 2**32).to_bytes(4, "little")
    )


def _deflated(data: bytes, flush: int = zlib.Z_FULL_FLUSH) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(flush)
