"""Bucket addresses on the command line: each is replaced by a local working copy while the command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rollforge.text_safety.bucket_addresses import split_bucket_word

OUT_FLAGS = ("-o", "--out")
WRITE_TO_RUN = frozenset({"collect", "verify", "profile", "eval", "bench", "import", "merge"})
"""Commands that write into their input run; the others write only to the path of -o."""


READ_FEW = frozenset({"show", "query"})
"""Commands that read the index and only a few lines."""
LINES = frozenset({"--line"})
"""Flags with which those commands read the whole file."""


def run_with_copies(words: list[str], run: Callable[[list[str]], object]) -> object:
    """Run a command whose words name buckets; its output is in the bucket when it ends."""
    from rollforge.index.bucket_index import indexed_run
    from rollforge.store.bucket import input_copy, is_bucket_url, run_copy

    verb = words[0] if words else ""
    with ExitStack() as stack:
        local: list[str] = []
        for position, word in enumerate(words):
            flag, value = split_bucket_word(word)
            if not is_bucket_url(value):
                local.append(word)
                continue
            before = flag.removesuffix("=") or (words[position - 1] if position else "")
            is_out = before in OUT_FLAGS
            is_input = before in ("-i", "--input", "--decontaminate", "--tasks")
            writes = is_out or (verb in WRITE_TO_RUN and not is_input)
            labels = verb == "view" or (verb == "show" and "--label" in words)
            # Many processes may collect shards of one run: the step takes the lock where one process must be alone.
            locks = verb != "collect"
            if is_input:
                path = stack.enter_context(input_copy(value))
            elif is_out and verb != "collect":
                path = stack.enter_context(run_copy(value, writes=True))
            elif not writes and not labels:
                is_lean = verb in READ_FEW and not LINES.intersection(words)
                path = stack.enter_context(indexed_run(value, is_lean=is_lean))
            else:
                path = stack.enter_context(
                    run_copy(value, writes=writes, labels=labels, locks=locks, whole=locks)
                )
                stack.enter_context(_indexed(path))
            local.append(f"{flag}{path}")
        return run(local)


@contextmanager
def _indexed(run: Path) -> Iterator[None]:
    """Use the bucket's index if there is one; upload an index built meanwhile."""
    from rollforge.index.bucket_index import fetch_indexes, send_quietly
    from rollforge.store import RunFiles
    from rollforge.store.shipping import copy_of

    copy = copy_of(RunFiles(run).manifest)
    from rollforge.store.bucket import WorkingCopy

    if not isinstance(copy, WorkingCopy):
        yield
        return
    fetch_indexes(copy, run)
    yield
    send_quietly(copy, run)
