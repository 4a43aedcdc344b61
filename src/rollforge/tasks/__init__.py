"""Task files: reading rows from any container, making them Responses-shaped, and saying which lines are bad."""

from rollforge.tasks.file import TaskFile
from rollforge.tasks.reading import read_lines
from rollforge.tasks.rows import BadRow, check_params, to_task_row
from rollforge.tasks.template import PromptTemplate

__all__ = ["BadRow", "PromptTemplate", "TaskFile", "check_params", "read_lines", "to_task_row"]
