"""Addresses of buckets: which schemes exist, and the address of each working copy, so that messages show what users typed."""

from __future__ import annotations

import re

from rollforge.errors import UsageError

SCHEMES = ("s3://", "gs://", "az://")
"""How the address of a bucket begins."""

OTHER_STORES = (
    *(
        "gcs://",
        "s3a://",
        "s3n://",
        "r2://",
        "azure://",
        "abfs://",
        "abfss://",
        "wasb://",
        "wasbs://",
        "adl://",
    ),
    *("oss://", "cos://", "hdfs://", "file://", "sftp://", "ftp://"),
)
"""How other tools write addresses of stores and files; as a path it would be `gcs:` and folders below it."""

_ANY_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def refuse_other_scheme(out: str) -> None:
    """Raise if an output is an address, but of no bucket: taken as a path, it would become a folder `gcs:`."""
    if _ANY_SCHEME.match(out) and not out.startswith(SCHEMES):
        raise UsageError(
            f"{out}: no bucket has such an address",
            hint="write s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH, or a path on this disk",
        )


def refuse_other_store(word: str) -> None:
    """Raise if a word, or the value of `--flag=value`, is an address of a store as other tools write it."""
    value = word.partition("=")[2] if word.startswith("--") else word
    if value.lower().startswith(OTHER_STORES):
        refuse_other_scheme(value)


class Addresses:
    """Paths of working copies with the addresses of their buckets."""

    def __init__(self) -> None:
        self._address_by_path: dict[str, str] = {}

    def add(self, path: str, address: str) -> None:
        """Show `address` wherever `path` would be printed or written.

        The dictionary is replaced, not changed: threads print and write meanwhile.
        """
        self._address_by_path = {**self._address_by_path, path: address}

    def text(self, text: str) -> str:
        """The text with addresses instead of paths."""
        for path, address in self._address_by_path.items():
            text = text.replace(path, address)
        return text

    def data(self, data: bytes) -> bytes:
        """The bytes with addresses instead of paths; the same object when there is none."""
        for path, address in self._address_by_path.items():
            if path.encode() in data:
                data = data.replace(path.encode(), address.encode())
        return data


ADDRESSES = Addresses()
"""The working copies of this process."""
