"""Evaluation prompts for `--decontaminate`: from task files of any container, run folders and bench folders.

A file without prompts is refused, because held-out data could leak unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from rollforge.errors import UsageError
from rollforge.json_shapes import RowJson
from rollforge.records import PARAMS_KEY, Task, content_text
from rollforge.store import RunFiles
from rollforge.store.reading import UNREADABLE
from rollforge.tasks import is_typed_task, read_lines, unwrap_typed_task

_PROMPT_KEYS = ("prompt", "question", "problem", "input", "text", "messages")


def evaluation_files(paths: Sequence[str]) -> list[Path]:
    """Files named by `--decontaminate`; a folder means the tasks of the runs inside."""
    collected: list[Path] = []
    for name in paths:
        path = Path(name)
        if path.is_dir():
            inner = sorted(child for child in path.iterdir() if child.is_dir())
            files = [file for folder in (path, *inner) for file in _run_prompts(folder)]
            if not files:
                raise UsageError(
                    f"--decontaminate {path}: a folder without a run",
                    hint="give a task file, a run, or a folder of bench",
                )
            collected += files
        elif path.is_file():
            collected.append(path)
        else:
            raise UsageError(
                f"--decontaminate {path}: no such file", hint="name the file with the held-out prompts"
            )
    return list(dict.fromkeys(collected))


def _run_prompts(folder: Path) -> list[Path]:
    """Task files of the runs in a folder; rollouts for a run without task file."""
    tasks = sorted(folder.glob("*_tasks.jsonl*"))
    rollouts = RunFiles(folder).rollouts
    return tasks or ([rollouts] if rollouts.is_file() else [])


def read_prompts(path: Path) -> list[str]:
    """The prompts of a file; raises if there are none."""
    prompts = [text for text in _prompts(path) if text.strip()]
    if not prompts:
        raise UsageError(
            f"--decontaminate {path}: no prompt in it",
            hint=f"rows need responses_create_params or one of {', '.join(_PROMPT_KEYS)}; or give plain lines of text",
        )
    return prompts


def _prompts(path: Path) -> Iterator[str]:
    for number, line in read_lines(path):
        row = None
        if line.lstrip().startswith((b"{", b"\0")):
            try:
                row = msgspec.json.decode(line)
            except UNREADABLE:
                raise UsageError(
                    f"--decontaminate {path}: line {number:,} cannot be read, and its prompt would leak",
                    hint=f"mend the line, or leave it out: rollforge validate {path} --fix",
                ) from None
        yield _prompt_of(cast("RowJson", row)) if isinstance(row, dict) else line.decode("utf-8", "replace")


def _prompt_of(row: RowJson) -> str:
    """Text of the last user message; for a row whose prompt comes from a template, its longest text."""
    if is_typed_task(row):
        row = unwrap_typed_task(row)
    if isinstance(params := row.get(PARAMS_KEY), dict) and params.get("input"):
        return Task(row).prompt
    for key in _PROMPT_KEYS:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, list):
            users = [item for item in value if isinstance(item, dict) and item.get("role") == "user"]
            if users:
                return content_text(users[-1].get("content"))
    texts = [value for value in row.values() if isinstance(value, str)]
    return max(texts, key=len, default="")
