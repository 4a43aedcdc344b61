"""Lines of batch files: requests out, results in, joined by custom id.

The form is OpenAI's, which vLLM's `run-batch` and other offline engines read and write too. A custom id names the run, the task, the
sample and the attempt, so that a result finds its rollout whatever file it is in, after any crash.
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
"""Most that OpenAI takes in one file."""
EXPIRED = "batch_expired"
NOTHING_USED = {"input_tokens": 0, "output_tokens": 0}
"""Usage of a request that ended in an error: nobody pays for it."""

_ID = re.compile(r"rf-([0-9a-f]+)-(\d{1,12})-(\d{1,9})-(\d{1,4})")


class RequestId(NamedTuple):
    """Whose answer a request asks for."""

    run: str
    """Eight hexadecimal digits of the run."""
    task: int
    """The task's index."""
    sample: int
    attempt: int

    @property
    def text(self) -> str:
        """As `custom_id`."""
        return f"rf-{self.run}-{self.task}-{self.sample}-{self.attempt}"

    @classmethod
    def parse(cls, text: object) -> RequestId | None:
        """The id that a `custom_id` names; None for one that is not ours."""
        match = _ID.fullmatch(text) if isinstance(text, str) else None
        return None if match is None else cls(match[1], int(match[2]), int(match[3]), int(match[4]))


def request_line(name: RequestId, url: str, body: ParamsJson | ChatBodyJson) -> bytes:
    """One request, with its newline."""
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
        """The request was answered, and not with an error."""
        return self.response is not None and self.response.status_code in (None, 200) and not self.error

    def body(self) -> bytes:
        """The bytes of the answer; raises the failure that the line tells of."""
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
    """The result in a line; None when the line is none."""
    try:
        result = _decode(line)
    except UNREADABLE:
        return None
    return result if result.custom_id is not None else None
