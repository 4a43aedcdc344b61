"""Builders shared by the verifiers' tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rollforge.records import Response, Task


def make_response(*texts: str) -> Response:
    """One assistant message per text."""
    return Response(
        {
            "status": "completed",
            "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
                for text in texts
            ],
        }
    )


@pytest.fixture
def judged() -> Callable[..., dict[str, Any]]:
    """Judge one text by one verifier object; the row's fields are given by name."""

    def judge(verifier: Any, text: str, **fields: Any) -> dict[str, Any]:
        row = {"responses_create_params": {"input": [{"role": "user", "content": "the question"}]}, **fields}
        verdict: dict[str, Any] = verifier.verify(Task(row), make_response(text))
        return verdict

    return judge
