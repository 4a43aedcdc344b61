"""This module holds the columns that every prompt set carries beside the prompt: ground truth, difficulty, the task.

All are on every row and of one type, so that a loader that infers types from the first rows reads the last ones the same way.
"""

from __future__ import annotations

from typing import Any

from rollforge.exporters.examples import Prompt
from rollforge.records import JsonObject

NUMBERS = ("n_rollouts", "mean_reward", "std_reward", "min_reward", "max_reward", "pass_rate", "difficulty")
"""Reward statistics of a task; the same names in every prompt set."""

PROMPT_COLUMNS: dict[str, Any] = {
    "ground_truth": str,
    "task_id": str,
    "data_source": str,
    "n_rollouts": int,
    "mean_reward": float | None,
    "std_reward": float | None,
    "min_reward": float | None,
    "max_reward": float | None,
    "pass_rate": float | None,
    "difficulty": float | None,
    "tool_schemas": str,
    "task_fields": str,
}


def prompt_columns(example: Prompt) -> JsonObject:
    """The columns of `PROMPT_COLUMNS` for one task."""
    return {
        "ground_truth": example.ground_truth,
        "task_id": example.task,
        "data_source": example.source,
        **{name: example.numbers.get(name) for name in NUMBERS},
        "tool_schemas": (example.tools or b"").decode(),
        "task_fields": example.fields.decode(),
    }
