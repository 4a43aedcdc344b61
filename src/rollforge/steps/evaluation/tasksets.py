"""Joins several task files into one, so that one run contains the whole evaluation and can be resumed as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from rollforge.errors import DataError, UsageError
from rollforge.records import TASK_KEY, JsonFields, JsonObject, from_json, to_json
from rollforge.runtime.typed_decoding import convert
from rollforge.store.atomic import write_atomically
from rollforge.store.reading import UNREADABLE
from rollforge.tasks import (
    BadRow,
    FieldMap,
    HubChoice,
    HubName,
    HubSplit,
    TaskSource,
    is_hub_name,
    open_tasks,
)

TASKSET_KEY = "taskset"
EXPECTED_KEY = "expected_answer"


class Taskset(msgspec.Struct, frozen=True):
    """A named task file."""

    name: str
    path: str


class JoinedTasksets(msgspec.Struct, frozen=True):
    """Facts about the joined task file."""

    counts: dict[str, int]
    """Task set → number of tasks."""
    has_answers: bool
    """Whether every task has an expected answer."""
    origins: dict[str, JsonObject] = {}
    """Task set → path, map and dataset on the Hub, of the sets with a map or from the Hub."""


def parse_taskset(text: str) -> Taskset:
    """Parse `gsm8k=tasks.jsonl`, or a path, whose stem is then the name."""
    name, equals, path = text.partition("=")
    if not equals or is_hub_name(text):
        name, path = _stem(text), text
    if not name or not path or "/" in name or name != name.strip() or not name.isprintable():
        raise UsageError(f"-i {text!r} is not understood", hint="write -i NAME=FILE; a name has no slash")
    return Taskset(name, path)


def _stem(path: str) -> str:
    """The name of a task set that was given none: of its file, or of its dataset on the Hub."""
    if is_hub_name(path):
        hub = HubName.parse(path)
        path = hub.path or hub.repo
    return Path(path).name.split(".")[0]


def join_tasksets(
    tasksets: Sequence[Taskset],
    target: Path,
    *,
    limit: int | None = None,
    part: HubSplit | None = None,
    mapping: FieldMap | None = None,
    earlier: Mapping[str, JsonObject] | None = None,
) -> JoinedTasksets:
    """Write the joined task file, unless it exists with the same content.

    Args:
        limit: tasks of each set at most.
        part: split and config of the sets, all of which are then datasets on the Hub.
        mapping: makes the task fields of every set's rows.
        earlier: origins that a run recorded; datasets are read at their commits.
    """
    names = [taskset.name for taskset in tasksets]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise UsageError(
            f"two task sets are called {sorted(repeated)[0]!r}", hint="name them apart: -i a=… -i b=…"
        )
    lines: list[bytes] = []
    counts: dict[str, int] = {}
    has_answers = True
    origins: dict[str, JsonObject] = {}
    for taskset in tasksets:
        source = _open(taskset, part or HubSplit(), (earlier or {}).get(taskset.name))
        rows = list(_rows(taskset, source, limit, mapping))
        if not rows:
            raise UsageError(
                f"{taskset.path}: no tasks", hint=f"look at it: rollforge validate {taskset.path}"
            )
        has_answers = has_answers and all(EXPECTED_KEY in row for row in rows)
        counts[taskset.name] = len(rows)
        if origin := _origin(source, mapping):
            origins[taskset.name] = {"path": taskset.path, **origin}
        lines += [to_json(row) for row in rows]
    data = b"\n".join(lines) + b"\n"
    if not target.exists() or target.read_bytes() != data:
        write_atomically(target, data)
    return JoinedTasksets(counts, has_answers, origins)


def _open(taskset: Taskset, part: HubSplit, earlier: JsonObject | None) -> TaskSource:
    choice = None
    if earlier is not None and "commit" in earlier and earlier["path"] == taskset.path:
        choice = convert(earlier, HubChoice)
        if not part.allows(choice):
            choice = None
    return open_tasks(taskset.path, part=part, earlier_choice=choice)


def _origin(source: TaskSource, mapping: FieldMap | None) -> JsonObject:
    origin: JsonObject = {} if source.choice is None else msgspec.to_builtins(source.choice)
    return origin if mapping is None else {"map": mapping.text, **origin}


def _rows(
    taskset: Taskset, source: TaskSource, limit: int | None, mapping: FieldMap | None
) -> Iterator[JsonFields]:
    row_count = 0
    for file, number, line in source.lines():
        if not line.strip():
            continue
        if limit is not None and row_count >= limit:
            return
        try:
            row = from_json(line)
        except UNREADABLE as error:
            raise DataError(
                f"{file}:{number}: {error}", hint=f"see all: rollforge validate {taskset.path}"
            ) from error
        if not isinstance(row, dict):
            raise DataError(
                f"{file}:{number}: not an object", hint=f"find all such lines: rollforge validate {file}"
            )
        if mapping is not None:
            try:
                row = dict(mapping.apply(row))
            except BadRow as error:
                raise DataError(f"{file}:{number}: {error}", hint=error.hint) from error
        row.pop(TASK_KEY, None)
        row_count += 1
        yield {**row, TASKSET_KEY: taskset.name}
