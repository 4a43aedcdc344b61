"""What went wrong is named by what the server said."""

from __future__ import annotations

import json

import pytest

from rollforge.endpoint.failures import failure_from_status, message_of, retry_after_s


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (429, "slow down", "rate-limited"),
        (500, "oops", "transient"),
        (503, "overloaded", "transient"),
        (401, "Incorrect API key", "auth"),
        (403, "forbidden", "auth"),
        (404, "The model `x` does not exist.", "not-found"),
        (400, "The model `x` does not exist", "not-found"),
        (400, "Invalid model name passed in model=x. Call /v1/models", "not-found"),
        (400, "x is not a valid model ID", "not-found"),
        (400, "This model's maximum context length is 4096 tokens.", "context-overflow"),
        (400, "prompt is too long: 9000 tokens", "context-overflow"),
        (400, "Your request was flagged by the content filter", "refused"),
        (400, "temperature must be below 2", "permanent"),
        (422, "unknown field", "permanent"),
    ],
)
def test_the_class_follows_status_and_words(status: int, message: str, kind: str) -> None:
    body = json.dumps({"error": {"message": message}}).encode()
    assert failure_from_status(status, body, {}).kind == kind


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": {"message": "no"}}',
        b'{"error": "no"}',
        b'{"message": "no"}',
        b'{"detail": "no"}',
        b'"no"',
        b" no\n",
    ],
)
def test_the_servers_own_words_are_found_however_it_wraps_them(body: bytes) -> None:
    assert message_of(body) == "no"


def test_retry_after_is_read_as_a_number_or_a_date() -> None:
    assert retry_after_s({"Retry-After": "2.5"}, 0.0) == 2.5
    assert retry_after_s({"retry-after-ms": "250"}, 0.0) == 0.25
    assert retry_after_s({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40.0) == 60.0
    assert (
        retry_after_s({"Retry-After": "999999999"}, 0.0)
        == retry_after_s({"Retry-After": "inf"}, 0.0)
        == 300.0
    )
    assert retry_after_s({"Retry-After": "nan"}, 0.0) == retry_after_s({"Retry-After": "-5"}, 0.0) == 0.0
    assert retry_after_s({"Retry-After": "soon"}, 0.0) is None
    assert retry_after_s({}, 0.0) is None
