"""OpenAI's files and batches: upload requests, create a batch, poll it, fetch its results.

Every request but `create` can be repeated after a failure. `create` costs money: after a lost answer, look for the batch by its
metadata before repeating it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec

from rollforge.endpoint.client import Client
from rollforge.errors import Failure
from rollforge.records import to_json
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.reading import UNREADABLE

T = TypeVar("T")

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
ENDED = ("completed", "failed", "expired", "cancelled")
PAGE = 100
MOST_PAGES = 1000
"""Most pages of the batch list to read; a safety bound that is never reached in practice."""


_NOTHING = msgspec.Raw(b"null")
"""Default of fields that are parsed separately, so that absurd numbers do not make the whole batch unreadable."""
_MOST = 1 << 31

_Count = Annotated[int, msgspec.Meta(ge=0)]


class RequestCounts(msgspec.Struct, frozen=True):
    """Progress of a batch in requests."""

    total: _Count = 0
    completed: _Count = 0
    failed: _Count = 0


class BatchFault(msgspec.Struct, frozen=True):
    """Why a batch was refused."""

    code: str | None = None
    message: str | None = None
    line: int | None = None


class BatchFaults(msgspec.Struct, frozen=True):
    """Why a batch was refused, line by line."""

    data: list[BatchFault] = []


class ProviderBatch(msgspec.Struct, frozen=True):
    """A batch as the provider describes it."""

    id: str
    status: str = "validating"
    input_file_id: str | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    request_counts: msgspec.Raw = _NOTHING
    errors: msgspec.Raw = _NOTHING
    metadata: dict[str, str] | None = None

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def done(self) -> int | None:
        """Requests that were answered or failed; None if the provider gives no plausible number."""
        counts = _read(self.request_counts, RequestCounts)
        return None if counts is None else min(counts.completed, _MOST) + min(counts.failed, _MOST)

    @property
    def faults(self) -> list[BatchFault]:
        """Why the batch was refused, as far as it is readable."""
        faults = _read(self.errors, BatchFaults)
        return faults.data if faults else []


class _BatchPage(msgspec.Struct, frozen=True):
    data: list[ProviderBatch] = []
    has_more: bool = False


class _Uploaded(msgspec.Struct, frozen=True):
    id: str


class UnreadableAnswer(Failure):
    """The provider answers, and what it says is nothing that it should say."""


class BatchApi:
    """The files and batches of one provider."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def upload(self, path: Path) -> str:
        """Upload a file of requests; returns its id."""
        with path.open("rb") as file:
            form = aiohttp.FormData()
            form.add_field("purpose", "batch")
            form.add_field("file", file, filename=path.name, content_type="application/jsonl")
            body = form()
            kind = {"Content-Type": body.headers["Content-Type"]} if body.headers else {}
            data = await self._client.exchange("POST", "/files", data=body, headers=kind)
        return _decoded(data, _Uploaded).id

    async def create(self, file_id: str, url: str, metadata: dict[str, str]) -> ProviderBatch:
        """Start a batch. It costs money: repeat it only if `find` does not find the batch."""
        body = {"input_file_id": file_id, "endpoint": url, "completion_window": "24h", "metadata": metadata}
        return _decoded(await self._client.exchange("POST", "/batches", data=to_json(body)), ProviderBatch)

    async def look(self, batch_id: str) -> ProviderBatch:
        """The current state of the batch."""
        return _decoded(
            await self._client.exchange("GET", f"/batches/{quote(batch_id, safe='')}"), ProviderBatch
        )

    async def find(self, metadata: dict[str, str]) -> ProviderBatch | None:
        """The batch that was created with this metadata, or None."""
        async for batch in self.all():
            if batch.metadata is not None and metadata.items() <= batch.metadata.items():
                return batch
        return None

    async def all(self) -> AsyncIterator[ProviderBatch]:
        """All batches of this API key, newest first."""
        after = ""
        for _ in range(MOST_PAGES):
            query = urlencode({"limit": PAGE, **({"after": after} if after else {})})
            page = _decoded(await self._client.exchange("GET", f"/batches?{query}"), _BatchPage)
            for batch in page.data:
                yield batch
            if not page.has_more or not page.data:
                return
            after = page.data[-1].id

    async def download(self, file_id: str, write: Callable[[bytes], object], *, limit: int) -> None:
        """Fetch a file of results of at most `limit` bytes."""
        path = f"/files/{quote(file_id, safe='')}/content"
        await self._client.exchange_into(write, "GET", path, limit=limit)


def _read(raw: msgspec.Raw, kind: type[T]) -> T | None:
    """A part of an answer; None if absent or unreadable."""
    try:
        return decode_json(bytes(raw), kind)
    except UNREADABLE:
        return None


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return decode_json(data, kind)
    except UNREADABLE as error:
        raise UnreadableAnswer(
            "model", "transient", f"the provider's answer is no {kind.__name__}: {error}"
        ) from error
