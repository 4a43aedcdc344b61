"""The failure class and message of a request, from its status and body or from the exception."""

from __future__ import annotations

import asyncio
import email.utils
import re
import time
from collections.abc import Mapping

import aiohttp
import msgspec

from rollforge.errors import Failure, FailureClass
from rollforge.store.reading import UNREADABLE
from rollforge.text_safety.outgoing import cut

_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size)|maximum context|too many tokens|prompt is too long|reduce the length|"
    r"longer than the maximum|exceeds? the (available )?context|input.{0,20}too long|max_model_len",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content[ _-]?(filter|policy)|content management policy|safety system", re.IGNORECASE)
_UNKNOWN_MODEL = re.compile(
    r"model[_ ]not[_ ]found|model.{0,80}(does not exist|not found|not exist)|unknown model|"
    r"invalid model (name|id)|not a valid model",
    re.I | re.S,
)

LONGEST_RETRY_AFTER_S = 300.0

_TRANSIENT_STATUSES = frozenset({408, 409, 425, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})


def failure_from_status(status: int, body: bytes, headers: Mapping[str, str]) -> Failure:
    """The failure for an answer with a status other than 200."""
    message = f"HTTP {status}: {message_of(body)}"
    return Failure(
        "model",
        _class_of(status, message),
        message,
        status=status,
        retry_after=retry_after_s(headers, time.time()),
    )


def _class_of(status: int, message: str) -> FailureClass:
    if status == 429:
        return "rate-limited"
    if status in (401, 403):
        return "refused" if _FILTERED.search(message) else "auth"
    if status in (400, 413, 422) and _OVERFLOW.search(message):
        return "context-overflow"
    if status in (400, 422) and _FILTERED.search(message):
        return "refused"
    if status == 404 or (status == 400 and _UNKNOWN_MODEL.search(message)):
        return "not-found"
    return "transient" if status in _TRANSIENT_STATUSES or status >= 500 else "permanent"


def failure_from_error(error: object) -> Failure:
    """The failure for an error object that arrived with status 200."""
    about = error if isinstance(error, dict) else {"message": error}
    message = f"the server answered with an error: {about.get('message') or about.get('code')}"
    error_text = f"{about.get('code')} {message}"
    if _OVERFLOW.search(error_text):
        return Failure("model", "context-overflow", message)
    return Failure("model", "refused" if _FILTERED.search(error_text) else "transient", message)


def failure_from_exception(error: BaseException, timeout_s: float) -> Failure:
    """The failure for an exception of the HTTP library."""
    if isinstance(error, asyncio.TimeoutError):
        return Failure("model", "timeout", f"no answer within {timeout_s:g} s")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Failure("model", "unavailable", f"cannot connect: {error.os_error.strerror or error.os_error}")
    return Failure("model", "transient", f"{type(error).__name__}: {cut(str(error), 500)}")


def message_of(body: bytes) -> str:
    """The server's error text from any common format, shortened."""
    try:
        value = msgspec.json.decode(body)
    except UNREADABLE:
        value = None
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    text = value if isinstance(value, str) else body.decode("utf-8", "replace")
    text = " ".join(text.split())
    return cut(text, 500) + ("…" if len(text) > 500 else "")


def retry_after_s(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the server asks us to wait (a number or a date), bounded; None if it does not say."""
    for name, scale in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            seconds = float(value) * scale
        except ValueError:
            parsed = email.utils.parsedate_tz(value)
            if not parsed:
                continue
            try:
                seconds = email.utils.mktime_tz(parsed) - now
            except (ValueError, OverflowError):
                continue
        return min(max(0.0, seconds), LONGEST_RETRY_AFTER_S)
    return None
