"""This module has a large run read from the first moment on, while the command that was asked for is still being loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rollforge.index import head_start, ranges

VERBS = frozenset({"profile", "metrics", "query"})
"""Commands that read all of the run that follows them, if it has no index yet."""


def read_early(words: Sequence[str]) -> None:
    """Begin to read the run that the words of a command are about, where several are to read it."""
    verb, run = [*words, "", ""][:2]
    if verb not in VERBS or "--config" in words or any(name.startswith("ROLLFORGE_") for name in os.environ):
        return
    path = run if run.endswith(".jsonl") else os.path.join(run, "rollouts.jsonl")  # noqa: PTH118  (not loaded yet)
    try:
        size = os.stat(path).st_size  # noqa: PTH116
        count = ranges.readers(size, _workers(words))
        has_index = os.path.exists(f"{path.removesuffix('.jsonl')}_index/rollouts/state.json")  # noqa: PTH110
        may_have = os.access(os.path.dirname(path) or ".", os.W_OK)  # noqa: PTH120  (else it lies somewhere else)
        if size >= ranges.WORTH_A_WORKER and count > 1 and may_have and not has_index:
            head_start.begin(path, count)
    except (OSError, ValueError, RuntimeError):
        return  # the command itself tells what is wrong; and where no thread may be started, it reads later


def _workers(words: Sequence[str]) -> int | None:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--workers":
            return int(value if equals else following)
    return None
