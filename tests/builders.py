"""Rows with defaults that a test overrides by name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def make_rollout(
    task: int | None = 0,
    rollout: int | None = 0,
    reward: float | None = 1.0,
    *,
    text: str = "the answer is 42",
    prompt: str | None = None,
    agent: str | None = "model_call",
    usage: Row | None = None,
    **fields: Any,
) -> Row:
    """A rollout row of one turn; `task` or `rollout` None leaves the key out, as files of the first generation do."""
    row: Row = {
        "responses_create_params": {"input": [{"role": "user", "content": prompt or f"question {task}", "type": "message"}]},
        "response": {
            "id": "resp_1", "object": "response", "model": "simulated", "status": "completed", "incomplete_details": None,
            "output": [{"type": "message", "role": "assistant", "status": "completed", "id": "msg_1",
                        "content": [{"type": "output_text", "text": text, "annotations": []}]}],
            "usage": usage or {"input_tokens": 10, "output_tokens": 20, "total_tokens": 30},
        },
        "reward": reward,
    }  # fmt: skip
    if task is not None:
        row["_ng_task_index"] = task
    if rollout is not None:
        row["_ng_rollout_index"] = rollout
    if agent is not None:
        row["agent_ref"] = {"name": agent}
    return row | fields


def write_rows(path: Path, rows: Iterable[Row | bytes]) -> Path:
    """The rows as JSONL; bytes go in as they are (a newline follows each)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for row in rows:
            file.write(
                (row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode()) + b"\n"
            )
    return path
