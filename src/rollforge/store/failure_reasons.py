"""The most frequent failure messages of a run, for its verifier and for its attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import msgspec

from rollforge.runtime.typed_decoding import json_decoder
from rollforge.statistics.counts import count_of
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
    verifier: str | None = None
    """Of a failed later verdict; None while the rollout was collected."""


def verifier_failures(files: RunFiles, most: int = 3) -> list[tuple[str, int]]:
    """The most frequent failures of the verifier with their counts, and the rest: text and place, as it raised them."""
    return most_frequent(sum(_verdict_messages(files).values(), Counter()), most)


def attempt_failures(files: RunFiles, most: int = 3) -> list[tuple[str, int]]:
    """The most frequent messages of attempts that brought no rollout, with their counts, and the rest."""
    counts: Counter[str] = Counter()
    for failure, message in _messages(files):
        if failure.kind != "verifier":
            counts[message] += 1
    return most_frequent(counts, most)


def failures_by_verifier(runs: Sequence[RunFiles], verifier: str | None = None) -> str:
    """The failures of each verifier in words; `verifier`: those of this one, and of the run's own while it was collected."""
    counts_by_name: dict[str | None, Counter[str]] = {}
    for files in runs:
        for name, counts in _verdict_messages(files).items():
            counts_by_name.setdefault(name, Counter()).update(counts)
    texts = [
        failures_text(most_frequent(counts, 1), f"the verifier {name}" if name else "the verifier")
        for name, counts in counts_by_name.items()
        if verifier is None or name in (None, verifier)
    ]
    return "; ".join(texts)


def _verdict_messages(files: RunFiles) -> dict[str | None, Counter[str]]:
    """The messages of failed verdicts, by verifier."""
    counts: dict[str | None, Counter[str]] = {}
    for failure, message in _messages(files):
        if failure.kind == "verifier":
            counts.setdefault(failure.verifier, Counter())[message] += 1
    return counts


def _messages(files: RunFiles) -> Iterator[tuple[_FailureLine, str]]:
    decode = json_decoder(_FailureLine, strict=False).decode
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
        if failure.message:
            yield failure, " ".join(failure.message.split())[:LONGEST]


def most_frequent(counts: Counter[str], most: int) -> list[tuple[str, int]]:
    """The most frequent reasons with their counts; all others become one final entry, so that the counts add up."""
    named = Counter({text: count for text, count in counts.items() if text != OTHER_REASONS}).most_common(
        most
    )
    rest = counts.total() - sum(count for _, count in named)
    return [*named, (OTHER_REASONS, rest)] if rest else named


def failures_text(failures: list[tuple[str, int]], subject: str = "the verifier") -> str:
    """The most frequent failure in words: `the verifier failed 40 times: ValueError: … (my.py:3 in verify)`."""
    if not failures:
        return ""
    total = sum(count for _, count in failures)
    text, count = failures[0]
    part = f", {count:,} of them with" if count < total else ""
    return f"{subject} failed {count_of(total, 'time')}{part}: {text}"


def cause_text(failures: list[tuple[str, int]]) -> str:
    """The most frequent message of failed attempts as text: `HTTP 400: … (20 of 24 attempts)`."""
    total = sum(count for _, count in failures)
    text, count = failures[0]
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return f"{text} ({count:,} of {count_of(total, 'attempt')})"
