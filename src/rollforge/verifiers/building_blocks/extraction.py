"""Extracts an answer from a text with a regular expression, in a worker process.

Expression and text are both untrusted and may backtrack for ever, which cannot be interrupted in our own process. A search that
takes too long gives no answer.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rollforge.records import Response, Task
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.building_blocks.answer_limit import AnswerTooSlow, answer_limit
from rollforge.verifiers.building_blocks.verdict_fields import SearchJson
from rollforge.verifiers.running.engines import PoolOnDemand
from rollforge.verifiers.running.worker_pool import WorkerPool

SECONDS = 10.0
"""Time limit of one search in seconds."""
MEMORY_MB = 1024

_NOTHING = Response({})


class Extractor:
    """Searches texts in worker processes, which start at the first search."""

    def __init__(self) -> None:
        verifier = load_verifier(search)
        self._pool = PoolOnDemand(WorkerPool(verifier, workers="auto", timeout=SECONDS, memory_mb=MEMORY_MB))

    async def extracted(self, text: str, regex: str | None) -> str | None:
        """The first non-empty group of the last match, or the whole match; the text itself without a match.

        None when the search takes too long.
        """
        if not regex:
            return text
        _, (verdict,) = await self._pool.run(Task({"text": text, "regex": regex}), [_NOTHING])
        extracted: str | None = verdict.details.get("extracted")
        return extracted

    async def close(self) -> None:
        await self._pool.close()


def search(task: Task, response: Response) -> SearchJson:
    """Run one search; the result has the form of a verdict."""
    try:
        with answer_limit():
            return {"reward": None, "extracted": extracted(task["text"], task["regex"])}
    except AnswerTooSlow:
        return {"reward": None, "extracted": None}


def extracted(text: str, regex: str) -> str:
    """The first non-empty group of the last match, else the whole match; the text itself without a match."""
    pattern = _compiled(regex)
    last = None
    for last in pattern.finditer(text) if pattern else ():  # noqa: B007  (the last one is kept)
        pass
    if last is None:
        return text
    return next((group.strip() for group in last.groups() if group and group.strip()), last.group().strip())


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern, re.MULTILINE | re.DOTALL)
    except re.error:
        return None
