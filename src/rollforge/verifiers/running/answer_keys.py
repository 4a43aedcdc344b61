"""Equality of answers: a digest of everything that a verifier sees.

It covers all output items and how the output ended. Random ids from servers (items, calls), token ids and usage are excluded; a
verifier that reads those must declare `is_deterministic = False`.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from rollforge.records import JsonFields, Response, Task

_TASK_LEFT_OUT = frozenset(
    {"_ng_task_index", "_ng_rollout_index", "_ng_attempt_index", "_ng_rollout_id", "_rf"}
)
_ITEM_LEFT_OUT = frozenset(
    {
        "id",
        "prompt_token_ids",
        "generation_token_ids",
        "generation_log_probs",
        "routed_experts",
        "encrypted_content",
        "_rf",
    }
)
_MESSAGE_KEYS = frozenset({"id", "type", "role", "status", "content"})
_TEXT_KEYS = frozenset({"type", "text", "annotations", "logprobs"})

_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class AnswerKeys:
    """Answer keys for one verifier; a task's digest is computed once for all its samples."""

    def __init__(self, fingerprint: str, remembered_bytes: int = 32 << 20) -> None:
        self._fingerprint = fingerprint.encode()
        self._room = remembered_bytes
        self._digest_by_task: dict[int, tuple[Task, bytes, int]] = {}

    def key(self, task: Task, response: Response) -> bytes:
        """A 16-byte key that is equal for equal answers to equal tasks."""
        digest = hashlib.blake2b(self._task_digest(task), digest_size=16)
        digest.update(answer_bytes(response))
        return digest.digest()

    def _task_digest(self, task: Task) -> bytes:
        cached_digest = self._digest_by_task.get(id(task))
        if cached_digest is not None:
            return cached_digest[1]
        row = _encode_sorted({key: value for key, value in task.items() if key not in _TASK_LEFT_OUT})
        digest = hashlib.blake2b(self._fingerprint + row, digest_size=16).digest()
        size = len(row) + 1000
        # The task is kept so that no other object gets its id.
        self._digest_by_task[id(task)] = (task, digest, size)
        self._room -= size
        while self._room < 0 and len(self._digest_by_task) > 1:
            _, _, freed = self._digest_by_task.pop(next(iter(self._digest_by_task)))
            self._room += freed
        return digest


def answer_bytes(response: Response) -> bytes:
    """The answer in canonical form."""
    raw = response.raw
    output = raw.get("output")
    ordinal_by_call: dict[str, int] = {}
    items = [_plain_item(item, ordinal_by_call) for item in output] if isinstance(output, list) else output
    ending = [raw.get(key) for key in ("status", "incomplete_details", "finish_reason", "error")]
    # Programs with equal answers may have left other files: each working directory is its own.
    left = [raw[key] for key in ("workdir", "result", "artifacts") if raw.get(key)]
    return _encode_sorted([items, ending, left] if left else [items, ending])


def _plain_item(item: Any, ordinal_by_call: dict[str, int]) -> Any:
    if not isinstance(item, dict):
        return item
    if item.keys() <= _MESSAGE_KEYS and item.get("type") == "message":
        short = _short_message(item)
        if short is not None:
            return short
    plain: JsonFields = {
        key: value for key, value in item.items() if key not in _ITEM_LEFT_OUT and value is not None
    }
    if "call_id" in plain:
        call = plain["call_id"]
        plain["call_id"] = ordinal_by_call.setdefault(
            call if isinstance(call, str) else repr(call), len(ordinal_by_call)
        )
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = [_plain_part(part) for part in content]
    return plain


def _short_message(item: JsonFields) -> list[Any] | None:
    """Key of a message of plain text parts, as a list; keys of other items are never lists, so there are no collisions."""
    content = item.get("content")
    if not isinstance(content, list):
        return None
    short: list[Any] = [item.get("role"), item.get("status")]
    for part in content:
        if not isinstance(part, dict) or not part.keys() <= _TEXT_KEYS or part.get("annotations"):
            return None
        short += (part.get("type"), part.get("text"))
    return short


def _plain_part(part: Any) -> Any:
    if not isinstance(part, dict) or "logprobs" not in part:
        return part
    return {key: value for key, value in part.items() if key != "logprobs"}
