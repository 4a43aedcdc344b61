"""Why a run's verifier failed, and why attempts did: the most frequent messages in the failures file."""

from __future__ import annotations

from collections import Counter
from itertools import chain, islice

import msgspec

from rollforge.runtime.typed_decoding import json_decoder
from rollforge.statistics.counts import count_of
from rollforge.store.files import RunFiles
from rollforge.store.reading import UNREADABLE, lines_of
from rollforge.store.rollout_parts import parts_of

MOST_LINES = 100_000
"""Failures read; the reasons show in the first ones."""
LONGEST = 500
SHOWN = 200
"""Characters of a message of failed attempts that are shown: servers echo whole requests."""
OTHER_REASONS = "other reasons"
"""Stands for every failure beyond the most frequent ones."""


class _FailureLine(msgspec.Struct):
    kind: str | None = msgspec.field(name="class", default=None)
    message: str | None = None


def verifier_failures(files: RunFiles, most: int = 3) -> list[tuple[str, int]]:
    """The most frequent failures of the verifier with their counts, and the rest: text and place, as it raised them."""
    return most_frequent(_messages(files, of_verifier=True), most)


def attempt_failures(files: RunFiles, most: int = 3) -> list[tuple[str, int]]:
    """The most frequent messages of attempts that brought no rollout, with their counts, and the rest."""
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
    """The most frequent reasons with their counts; all others are one entry at the end, so that the counts still sum up."""
    named = Counter({text: count for text, count in counts.items() if text != OTHER_REASONS}).most_common(
        most
    )
    rest = counts.total() - sum(count for _, count in named)
    return [*named, (OTHER_REASONS, rest)] if rest else named


def failures_text(failures: list[tuple[str, int]]) -> str:
    """The most frequent failure in words: `the verifier failed 40 times: ValueError: … (my.py:3 in verify)`."""
    if not failures:
        return ""
    total = sum(count for _, count in failures)
    text, count = failures[0]
    part = f", {count:,} of them with" if count < total else ""
    return f"the verifier failed {count_of(total, 'time')}{part}: {text}"


def cause_text(failures: list[tuple[str, int]]) -> str:
    """The most frequent message of failed attempts, with its share: `HTTP 400: … (20 of 24 attempts)`."""
    total = sum(count for _, count in failures)
    text, count = failures[0]
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return f"{text} ({count:,} of {count_of(total, 'attempt')})"
