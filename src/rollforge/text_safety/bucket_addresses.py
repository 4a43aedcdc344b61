"""Bucket addresses: known schemes, and the address of each working copy, so that messages show what the user typed."""

from __future__ import annotations

import re

from rollforge.errors import UsageError

SCHEMES = ("s3://", "gs://", "az://")
"""URL schemes of bucket addresses."""

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
"""URL schemes of other tools for stores and files; used as a path, `gcs://x` would become a folder `gcs:`."""

_ANY_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def refuse_other_scheme(out: str) -> None:
    """Raise if an output is an address with an unsupported scheme, which would otherwise become a folder such as `gcs:`."""
    if _ANY_SCHEME.match(out) and not out.startswith(SCHEMES):
        raise UsageError(
            f"{out}: no bucket has such an address",
            hint="write s3://BUCKET/PATH, gs://BUCKET/PATH or az://CONTAINER/PATH, or a path on this disk",
        )


def refuse_other_store(word: str) -> None:
    """Raise if a word, or the value of `--flag=value`, is an address of a store in another tool's notation."""
    value = word.partition("=")[2] if word.startswith("--") else word
    if value.lower().startswith(OTHER_STORES):
        refuse_other_scheme(value)


def split_bucket_word(word: str) -> tuple[str, str]:
    """Split `FLAG=ADDRESS` into the flag with its `=` and the address, which may contain a `=` itself; other words are values."""
    start = min((at for scheme in SCHEMES if (at := word.find(scheme)) >= 0), default=0)
    return (word[:start], word[start:]) if word[:start].endswith("=") else ("", word)


class Addresses:
    """Map from paths of working copies to bucket addresses."""

    def __init__(self) -> None:
        self._address_by_path: dict[str, str] = {}

    def add(self, path: str, address: str) -> None:
        """Replace `path` by `address` in all later output.

        The dictionary is replaced instead of mutated, because other threads print and write meanwhile.
        """
        self._address_by_path = {**self._address_by_path, path: address}

    def text(self, text: str) -> str:
        """The text with paths replaced by addresses."""
        for path, address in self._address_by_path.items():
            text = text.replace(path, address)
        return text

    def data(self, data: bytes) -> bytes:
        """The bytes with paths replaced by addresses; the same object if there are none."""
        for path, address in self._address_by_path.items():
            if path.encode() in data:
                data = data.replace(path.encode(), address.encode())
        return data


ADDRESSES = Addresses()
"""The working copies of this process."""
