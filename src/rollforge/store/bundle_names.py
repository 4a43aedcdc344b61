"""Object names of indexes in a bucket, which encode what a bundle was made from."""

from __future__ import annotations

import hashlib

ENDING = ".bundle"


def bundle_name(folder: str, kind: str, source: str) -> str:
    """Object name of one index; `source` is the identity of the objects that it was made from."""
    return f"{folder}/{kind}-{hashlib.sha256(source.encode()).hexdigest()[:24]}{ENDING}"


def source_of(objects: list[str], tags: dict[str, str]) -> str:
    """Identity of a file: its last object, and the number of objects."""
    return f"{objects[-1]} {tags[objects[-1]]} {len(objects)}"
