"""`/v1/files` and `/v1/batches`: request files, answer files, faults, and a count of paid requests.

A batch is processed when it is first polled after its due time. A request is paid when it is answered. Custom ids paid twice are
counted, so that tests can prove that a client never pays twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypedDict, cast

import msgspec

from rollforge.records import from_json, to_json
from rollforge.simulate.asks import Rejection
from rollforge.simulate.faults import Fault, Faults
from rollforge.simulate.wire import HttpReply, HttpRequest
from rollforge.store.reading import UNREADABLE

Answer = Callable[[HttpRequest], tuple[int, bytes]]

_MOST_LINES = 50_000
_OUR_ID = re.compile(r"rf-[0-9a-f]+-\d+-(\d+)-\d+")
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?')
_FIELD = re.compile(rb'name="([^"]*)"(?:; filename="([^"]*)")?')


class BatchStats(msgspec.Struct):
    """Counts of requested and paid work."""

    files: int = 0
    created: int = 0
    paid: int = 0
    """Number of answered requests."""
    paid_twice: int = 0
    """Number of answered requests whose custom id was answered before."""


class BatchErrorJson(TypedDict):
    """Why a batch was refused."""

    code: str
    message: str
    line: int | None


class BatchErrorsJson(TypedDict):
    """The errors of a batch."""

    object: str
    data: list[BatchErrorJson]


class BatchCountsJson(TypedDict):
    """Progress of a batch in requests."""

    total: int
    completed: int
    failed: int


class BatchJson(TypedDict, total=False):
    """A batch in API format; empty if the request that created it was lost."""

    id: str
    object: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    errors: BatchErrorsJson | None
    request_counts: BatchCountsJson
    metadata: object


class BatchListJson(TypedDict):
    """A page of batches."""

    object: str
    data: list[BatchJson]
    has_more: bool


class FileJson(TypedDict):
    """An uploaded file."""

    id: str
    object: str
    bytes: int
    filename: str
    purpose: str


class AskedJson(TypedDict, total=False):
    """The body of a create request, or one line of a batch file."""

    input_file_id: str
    endpoint: str
    metadata: object
    custom_id: str
    url: str
    body: object


@dataclass(slots=True)
class _Batch:
    id: str
    input_file_id: str
    endpoint: str
    metadata: object
    created: float
    due: float
    status: str = "validating"
    output_file_id: str | None = None
    error_file_id: str | None = None
    completed: int = 0
    failed: int = 0
    total: int = 0
    errors: list[BatchErrorJson] = field(default_factory=list)

    def to_json(self) -> BatchJson:
        """The batch in API format."""
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": int(self.created),
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": self.metadata,
        }


class BatchDesk:
    """In-memory files and batches of one server."""

    def __init__(self, faults: Faults, stats: BatchStats, answer: Answer, clock: Callable[[], float]) -> None:
        self._faults = faults
        self._stats = stats
        self._answer = answer
        self._clock = clock
        self._files: dict[str, tuple[str, bytes]] = {}
        self._batches: dict[str, _Batch] = {}
        self._paid: set[str] = set()
        self._lost: Fault | None = None

    def take_lost(self) -> Fault | None:
        """The fault that makes the current reply get lost, if any; it is consumed."""
        lost, self._lost = self._lost, None
        return lost

    @staticmethod
    def serves(request: HttpRequest) -> bool:
        """Whether the request is about files or batches."""
        return request.path.removeprefix("/v1").split("/")[1:2] in (["files"], ["batches"])

    def reply(self, request: HttpRequest) -> HttpReply:
        """The reply to a request about files or batches."""
        words = [word for word in request.path.removeprefix("/v1").split("/") if word]
        try:
            match (request.method, *words):
                case ("POST", "files"):
                    return _ok(self._upload(request))
                case ("GET", "files"):
                    return _ok({"object": "list", "data": [self._file(name) for name in self._files]})
                case ("GET", "files", name, "content"):
                    return HttpReply(200, self._content(name), "application/octet-stream")
                case ("GET", "files", name):
                    self._content(name)
                    return _ok(self._file(name))
                case ("POST", "batches"):
                    return _ok(self._create(request))
                case ("GET", "batches"):
                    return _ok(self._list(request.query))
                case ("GET", "batches", name):
                    return _ok(self._worked(name).to_json())
                case ("POST", "batches", name, "cancel"):
                    return _ok(self._cancel(name))
        except Rejection as rejection:
            return HttpReply(rejection.status, to_json(rejection.body))
        return HttpReply(404, to_json(Rejection(404, f"{request.method} {request.path}: no such path").body))

    # -- files --------------------------------------------------------------------------------------------------------

    def _upload(self, request: HttpRequest) -> FileJson:
        fields = _form(request)
        if fields.get("purpose", ("", b""))[1] != b"batch" or "file" not in fields:
            raise Rejection(400, "a batch needs a file and the purpose batch")
        name = self._keep(fields["file"][0] or "requests.jsonl", fields["file"][1])
        self._stats.files += 1
        self._lost = self._faults.for_batch("batch-lost-upload", self._stats.files)
        return self._file(name)

    def _keep(self, filename: str, data: bytes) -> str:
        name = f"file-{len(self._files) + 1:06d}"
        self._files[name] = (filename, data)
        return name

    def _file(self, name: str) -> FileJson:
        filename, data = self._files[name]
        return {"id": name, "object": "file", "bytes": len(data), "filename": filename, "purpose": "batch"}

    def _content(self, name: str) -> bytes:
        if name not in self._files:
            raise Rejection(404, f"No such File object: {name}")
        return self._files[name][1]

    # -- batches ------------------------------------------------------------------------------------------------------

    def _create(self, request: HttpRequest) -> BatchJson:
        body = _decoded(request.body)
        self._content(str(body.get("input_file_id")))
        self._stats.created += 1
        number = self._stats.created
        self._lost = self._faults.for_batch("batch-lost", number)
        if self._lost is not None and self._lost.options["when"] == "before":
            return {}  # the request itself got lost
        now = self._clock()
        delay = self._faults.for_batch("batch-delay", number)
        batch = _Batch(
            id=f"batch_{number:06d}",
            input_file_id=str(body["input_file_id"]),
            endpoint=str(body.get("endpoint")),
            metadata=body.get("metadata"),
            created=now,
            due=now + (delay.seconds() if delay is not None else 0.0),
        )
        self._batches[batch.id] = batch
        return batch.to_json()

    def _list(self, query: dict[str, str]) -> BatchListJson:
        names = list(reversed(self._batches))
        after = query.get("after", "")
        if after in self._batches:
            names = names[names.index(after) + 1 :]
        limit = int(query.get("limit", "20"))
        shown = [self._batches[name].to_json() for name in names[:limit]]
        return {"object": "list", "data": shown, "has_more": len(names) > limit}

    def _cancel(self, name: str) -> BatchJson:
        batch = self._worked(name)
        if batch.status in ("validating", "in_progress"):
            batch.status = "cancelled"
        return batch.to_json()

    def _worked(self, name: str) -> _Batch:
        """The batch, processed if it is due."""
        batch = self._batches.get(name)
        if batch is None:
            raise Rejection(404, f"No batch found with id '{name}'.")
        if batch.status in ("validating", "in_progress"):
            batch.status = "in_progress"
            if self._clock() >= batch.due:
                self._work(batch)
        return batch

    def _work(self, batch: _Batch) -> None:
        lines = self._content(batch.input_file_id).splitlines()
        batch.total = len(lines)
        fault = self._faults.for_batch("batch-failed", batch.id)
        code = fault.options["code"] if fault is not None else ""
        if len(lines) > _MOST_LINES:
            code = "too_many_requests"
        if code:
            batch.status = "failed"
            batch.errors = [{"code": code, "message": f"refused on demand: {code}", "line": None}]
            return
        expired = self._faults.for_batch("batch-expired", batch.id)
        done = len(lines) if expired is None else int(len(lines) * float(expired.options["share"]))
        output: list[bytes] = []
        errors: list[bytes] = []
        for number, line in enumerate(lines):
            if number >= done:
                batch.failed += 1
                errors.append(_late(line))
            elif (answered := self._work_line(batch, line, number)) is not None:
                is_right, written = answered
                (output if is_right else errors).append(written)
                batch.completed += is_right
                batch.failed += not is_right
        output.reverse()  # results come in any order
        batch.output_file_id = self._keep("output.jsonl", b"".join(output)) if output else None
        batch.error_file_id = self._keep("errors.jsonl", b"".join(errors)) if errors else None
        batch.status = "completed" if expired is None else "expired"

    def _work_line(self, batch: _Batch, line: bytes, number: int) -> tuple[bool, bytes] | None:
        """Whether the request was answered, and its results line; None if it has no line."""
        request = _decoded(line)
        name = str(request.get("custom_id"))
        if self._faults.for_batch("batch-partial", batch.id, name) is not None:
            return None
        failed = self._faults.for_batch("batch-error", batch.id, name)
        if failed is not None:
            status = int(failed.options["status"])
            body = to_json(Rejection(status, "fails on demand").body)
        else:
            match = _OUR_ID.fullmatch(name)
            headers = {"x-rollforge-sample": match[1]} if match else {}
            http_request = HttpRequest("POST", str(request.get("url")), headers, to_json(request.get("body")))
            status, body = self._answer(http_request)
        if status == 200:
            self._stats.paid += 1
            self._stats.paid_twice += name in self._paid
            self._paid.add(name)
        answer = {"status_code": status, "request_id": f"req_{number}", "body": msgspec.Raw(body)}
        row = {"id": f"batch_req_{number}", "custom_id": name, "response": answer, "error": None}
        return status == 200, to_json(row) + b"\n"


def _late(line: bytes) -> bytes:
    """Result of a request that the batch did not process before it expired."""
    message = "This request could not be executed before the completion window expired."
    error = {"code": "batch_expired", "message": message}
    name = _decoded(line).get("custom_id")
    return to_json({"id": "batch_req", "custom_id": name, "response": None, "error": error}) + b"\n"


def _decoded(line: bytes) -> AskedJson:
    try:
        value = from_json(line)
    except UNREADABLE:
        return {}
    return cast("AskedJson", value) if isinstance(value, dict) else {}


def _form(request: HttpRequest) -> dict[str, tuple[str, bytes]]:
    """Fields of a multipart form: file name and bytes by field name."""
    boundary = _BOUNDARY.search(request.headers.get("content-type", ""))
    if boundary is None:
        raise Rejection(400, "a file is uploaded as multipart/form-data")
    fields: dict[str, tuple[str, bytes]] = {}
    for part in (b"\r\n" + request.body).split(b"\r\n--" + boundary[1].encode()):
        head, _, data = part.partition(b"\r\n\r\n")
        named = _FIELD.search(head)
        if named is not None:
            fields[named[1].decode()] = ((named[2] or b"").decode("utf-8", "replace"), data)
    return fields


def _ok(value: object) -> HttpReply:
    return HttpReply(200, to_json(value))
