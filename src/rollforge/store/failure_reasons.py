"""The most frequent failure messages of a run, for its verifier and for its attempts."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import msgspec

from rollforge.runtime.typed_decoding import json_decoder
from rollforge.store.files import RunFiles
from rollforge.store.reading import UNREADABLE, lines_of
from rollforge.store.rollout_parts import parts_of

MOST_LINES = 100_000
"""Most failures that are read; frequent reasons show among the first ones."""
LONGEST = 500
SHOWN = 200
"""Most characters shown of a failed attempt's message, since servers echo whole requests."""
OTHER_REASONS = "other reasons"
"""Label for all failures beyond the most frequent ones."""


class _FailureLine(msgspec.Struct):
    kind: str | None = msgspec.field(name="class", default=None)
    message: str | None = None


def verifier_failures(files: RunFiles, most: int = 3) -> list[tuple[str, int]]:
    """The most frequent verifier failures (text and location, as raised) with their counts, and the rest as one entry."""
    return most_frequent(_messages(files, of_verifier=True), most)


def attempt_failures(files: RunFiles, most: int = 3) -> list[tuple[str, int]]:
    """The most frequent messages of attempts without a rollout, with their counts, and the rest as one entry."""
    return most_frequent(_messages(files, of_verifier=False), most)


def _messages(files: RunFiles, *, of_verifier: bool) -> Counter[str]:
    decode = json_decoder(_FailureLine, strict=False).decode
    counts: Counter[str] = Counter()
    lines = (
        chain.from_iterable(part.lines() for part in parts_of(files).failures)
        if files.is_sharded
        else lines_of(files.failures)
    )
    for line in islice(lines, MOST_LINES):
        try:
            failure = decode(line)
        except UNREADABLE:
            continue
        if (failure.kind == "verifier") is of_verifier and failure.message:
            counts[" ".join(failure.message.split())[:LONGEST]] += 1
    return counts


def most_frequent(counts: Counter[str], most: int) -> list[tuple[str, int]]:
    """The most frequent reasons with their counts; all others become one final entry, so that the counts add up."""
    named = Counter({text: count for text, count in counts.items() if text != OTHER_REASONS}).most_common(
        most
    )
    rest = counts.total() - sum(count for _, count in named)
    return [*named, (OTHER_REASONS, rest)] if rest else named


def failures_text(failures: list[tuple[str, int]]) -> str:
    """The most frequent failure as text: `the verifier failed 40 times: ValueError: … (my.py:3 in verify)`."""
    if not failures:
        return ""
    total = sum(count for _, count in failures)
    text, count = failures[0]
    part = f", {count:,} of them with" if count < total else ""
    return f"the verifier failed {total:,} {'time' if total == 1 else 'times'}{part}: {text}"


def cause_text(failures: list[tuple[str, int]]) -> str:
    """The most frequent message of failed attempts as text: `HTTP 400: … (20 of 24 attempts)`."""
    total = sum(count for _, count in failures)
    text, count = failures[0]
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return f"{text} ({count:,} of {total:,} {'attempt' if total == 1 else 'attempts'})"
