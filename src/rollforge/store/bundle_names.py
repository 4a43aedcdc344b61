"""Names of the indexes that are kept in a bucket beside the run: they say what a bundle was made of."""

from __future__ import annotations

import hashlib

ENDING = ".bundle"


def bundle_name(folder: str, kind: str, source: str) -> str:
    """The object of one index; `source` is the identity of the objects that it was made of."""
    return f"{folder}/{kind}-{hashlib.sha256(source.encode()).hexdigest()[:24]}{ENDING}"


def source_of(objects: list[str], tags: dict[str, str]) -> str:
    """The identity of a file: its last object, and how many there are."""
    return f"{objects[-1]} {tags[objects[-1]]} {len(objects)}"
