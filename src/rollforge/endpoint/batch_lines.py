"""Lines of batch files: requests out, results in, joined by custom id.

The form is OpenAI's, which vLLM's `run-batch` and other offline engines read and write too. A custom id names the run, the task,
the sample and the attempt, so that a result can be assigned to its rollout after any crash, from any file.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from rollforge.endpoint.failures import failure_from_error, failure_from_status
from rollforge.errors import Failure
from rollforge.json_shapes import ChatBodyJson, ParamsJson
from rollforge.records import to_json
from rollforge.store.reading import UNREADABLE

MOST_REQUESTS = 50_000
MOST_BYTES = 200_000_000
"""OpenAI's limit on the size of one file."""
EXPIRED = "batch_expired"
NOTHING_USED = {"input_tokens": 0, "output_tokens": 0}
"""Usage of a request that ended in an error: it costs nothing."""

_ID = re.compile(r"rf-([0-9a-f]+)-(\d{1,12})-(\d{1,9})-(\d{1,4})")


class RequestId(NamedTuple):
    """The rollout that a request belongs to."""

    run: str
    """Eight hexadecimal digits that identify the run."""
    task: int
    """The task's index."""
    sample: int
    attempt: int

    @property
    def text(self) -> str:
        """The id as a `custom_id`."""
        return f"rf-{self.run}-{self.task}-{self.sample}-{self.attempt}"

    @classmethod
    def parse(cls, text: object) -> RequestId | None:
        """The id in a `custom_id`; None if rollforge did not make it."""
        match = _ID.fullmatch(text) if isinstance(text, str) else None
        return None if match is None else cls(match[1], int(match[2]), int(match[3]), int(match[4]))


def request_line(name: RequestId, url: str, body: ParamsJson | ChatBodyJson) -> bytes:
    """One request as a line, with newline."""
    return to_json({"custom_id": name.text, "method": "POST", "url": url, "body": body}) + b"\n"


class _Answer(msgspec.Struct):
    status_code: int | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class BatchResult(msgspec.Struct):
    """One line of a results file."""

    custom_id: str | None = None
    response: _Answer | None = None
    error: object = None

    @property
    def is_answer(self) -> bool:
        """Whether the request was answered without an error."""
        return self.response is not None and self.response.status_code in (None, 200) and not self.error

    def body(self) -> bytes:
        """The bytes of the answer; raises the failure that the line reports."""
        if self.response is not None and not self.is_answer and self.response.status_code not in (None, 200):
            assert self.response.status_code is not None
            raise failure_from_status(self.response.status_code, bytes(self.response.body), {})
        if self.error:
            raise _failure_of(self.error)
        if self.response is None or bytes(self.response.body) == b"null":
            raise Failure(
                "model", "transient", "the batch gave neither an answer nor an error for this request"
            )
        return bytes(self.response.body)


def _failure_of(error: object) -> Failure:
    failure = failure_from_error(error)
    if isinstance(error, dict) and error.get("code") == EXPIRED:
        failure = Failure("model", "timeout", f"the batch expired: {error.get('message') or EXPIRED}")
    failure.usage = NOTHING_USED
    return failure


_decode = msgspec.json.Decoder(BatchResult).decode


def read_result(line: bytes) -> BatchResult | None:
    """The result in a line; None if the line is not a result."""
    try:
        result = _decode(line)
    except UNREADABLE:
        return None
    return result if result.custom_id is not None else None
