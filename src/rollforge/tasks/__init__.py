"""Task files: reading rows from any container, making them Responses-shaped, and saying which lines are bad."""

from rollforge.tasks.file import TaskFile
from rollforge.tasks.reading import read_lines
from rollforge.tasks.rows import (
    BadRow,
    check_params,
    is_empty_prompt,
    is_typed_task,
    task_row,
    to_task_row,
    unwrap_typed_task,
)
from rollforge.tasks.template import PromptTemplate

__all__ = [
    "BadRow",
    "PromptTemplate",
    "TaskFile",
    "check_params",
    "is_empty_prompt",
    "is_typed_task",
    "read_lines",
    "task_row",
    "to_task_row",
    "unwrap_typed_task",
]
