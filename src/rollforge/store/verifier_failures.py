"""Why a run's verifier failed: the most frequent messages in the failures file."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import msgspec

from rollforge.store.files import RunFiles
from rollforge.store.reading import UNREADABLE, lines_of

MOST_LINES = 100_000
"""Failures read; the reasons show in the first ones."""
LONGEST = 500


class _FailureLine(msgspec.Struct):
    kind: str | None = msgspec.field(name="class", default=None)
    message: str | None = None


def verifier_failures(files: RunFiles, most: int = 3) -> list[tuple[str, int]]:
    """The most frequent failures of the verifier with their counts: text and place, as it raised them."""
    decode = msgspec.json.Decoder(_FailureLine, strict=False).decode
    found: Counter[str] = Counter()
    for line in islice(lines_of(files.failures), MOST_LINES):
        try:
            failure = decode(line)
        except UNREADABLE:
            continue
        if failure.kind == "verifier" and failure.message:
            found[" ".join(failure.message.split())[:LONGEST]] += 1
    return found.most_common(most)


def failures_text(failures: list[tuple[str, int]]) -> str:
    """The first failure in words: `the verifier failed 40 times: ValueError: … (my.py:3 in verify)`."""
    if not failures:
        return ""
    total = sum(count for _, count in failures)
    more = f" (and {len(failures) - 1} other reasons)" if len(failures) > 1 else ""
    return f"the verifier failed {total:,} {'time' if total == 1 else 'times'}{more}: {failures[0][0]}"
