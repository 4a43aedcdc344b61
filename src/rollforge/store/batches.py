"""`rollouts_batches.jsonl`: the batches of a run; every step of a batch is durable before the next one begins.

A batch is `planned` with all its requests before a byte is uploaded, `created` before it is polled, `ended` with the ids of its
results, and `settled` when every result is a rollout or a failure on disk. A batch that the provider refused is `dropped`: its
requests are owed again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from rollforge.runtime.typed_decoding import json_decoder
from rollforge.store.reading import UNREADABLE, lines_of

Step = Literal["planned", "uploaded", "created", "ended", "settled", "dropped"]


class BatchGroup(msgspec.Struct, frozen=True, array_like=True):
    """Requests for consecutive samples of one task, all at the same attempt."""

    task: int
    first: int
    count: int
    attempt: int


class BatchEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line."""

    batch: Annotated[str, msgspec.Meta(pattern=r"\A[\w-]{1,100}\Z")]
    """Our own name, also in the metadata at the provider and in names of files; a run may be somebody else's."""
    step: Step
    at: float
    requests: int = 0
    url: str = ""
    groups: list[BatchGroup] = []
    """Requested samples; only with `planned`."""
    file_id: str | None = None
    batch_id: str | None = None
    status: str | None = None
    """Final status in the provider's terms."""
    output_file_id: str | None = None
    error_file_id: str | None = None
    reason: str | None = None


@dataclass(slots=True)
class SentBatch:
    """State of a batch according to its lines."""

    name: str
    step: Step = "planned"
    requests: int = 0
    url: str = ""
    groups: list[BatchGroup] = field(default_factory=list)
    file_id: str | None = None
    batch_id: str | None = None
    planned_at: float = 0.0
    """Unix time in seconds."""
    done: int = 0
    """Requests that the provider has worked on, for the display."""
    unreadable: int = 0
    """Looks in a row that brought no state of a batch."""

    @property
    def is_open(self) -> bool:
        """Whether the batch was neither settled nor dropped."""
        return self.step not in ("settled", "dropped")

    def take(self, event: BatchEvent) -> None:
        """Apply a line to the state."""
        self.step = event.step
        if event.step == "planned":
            self.requests, self.url, self.groups = event.requests, event.url, event.groups
            self.planned_at = event.at
        self.file_id = event.file_id or self.file_id
        self.batch_id = event.batch_id or self.batch_id
        if not self.is_open:
            self.groups = []  # a long run has many batches


def read_batches(path: Path) -> dict[str, SentBatch]:
    """The batches of a run by name, in planning order."""
    decode = json_decoder(BatchEvent).decode
    batches: dict[str, SentBatch] = {}
    for line in lines_of(path):
        try:
            event = decode(line)
        except UNREADABLE:
            continue  # a torn last line: its step is taken again
        batches.setdefault(event.batch, SentBatch(event.batch)).take(event)
    return batches
