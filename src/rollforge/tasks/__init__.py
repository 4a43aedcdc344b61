"""Tasks: reads rows from files and the Hub, converts them to Responses form, and reports bad lines."""

from rollforge.tasks.containers import read_lines
from rollforge.tasks.file import TaskFile
from rollforge.tasks.hub import HubChoice, HubName, is_hub_name
from rollforge.tasks.line_to_row import (
    BadRow,
    check_params,
    is_empty_prompt,
    is_typed_task,
    task_row,
    to_task_row,
    unwrap_typed_task,
)
from rollforge.tasks.mapping import FieldMap
from rollforge.tasks.prompt_template import PromptTemplate
from rollforge.tasks.source import HubSplit, TaskSource, open_tasks

__all__ = [
    "BadRow",
    "FieldMap",
    "HubChoice",
    "HubName",
    "HubSplit",
    "PromptTemplate",
    "TaskFile",
    "TaskSource",
    "check_params",
    "is_empty_prompt",
    "is_hub_name",
    "is_typed_task",
    "open_tasks",
    "read_lines",
    "task_row",
    "to_task_row",
    "unwrap_typed_task",
]
