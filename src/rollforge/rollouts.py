"""Streams a run's rollouts, each with its task.

Rows of all NeMo Gym generations are supported; rows without indices get the index's numbers.
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import msgspec
import numpy as np

from rollforge.conversations.typed_rows import classic_line
from rollforge.errors import UsageError
from rollforge.records import (
    FAILURE_KEY,
    OWN_KEY,
    PARAMS_KEY,
    ROLLOUT_KEY,
    TASK_KEY,
    Index,
    JsonFields,
    Response,
    Task,
    as_received,
    is_mark,
    to_json,
)
from rollforge.runtime.typed_decoding import decode_json, json_decoder
from rollforge.store import RunFiles
from rollforge.store.reading import LONGEST_LINE, UNREADABLE, bounded_lines
from rollforge.store.rollout_parts import parts_of
from rollforge.tasks import BadRow, read_lines, to_task_row

if TYPE_CHECKING:
    from rollforge.index import LineKeys

REMEMBERED_BYTES = 64 << 20
LONGEST_PLAIN = 15
"""Most digits of a row's own index that is used without asking the index: floats represent it exactly."""
COMPARED_PROMPTS = 200
NOT_TASK_FIELDS = frozenset({"response", "reward", ROLLOUT_KEY, "_ng_attempt_index", OWN_KEY})


class Own(msgspec.Struct):
    """The verifier that judged while the rollout was collected."""

    verifier: str | None = None
    fingerprint: str | None = None
    mode: str | None = None


class _Line(msgspec.Struct):
    """The fields of a row that verification needs; others are skipped."""

    task: msgspec.Raw = msgspec.field(name=TASK_KEY, default=msgspec.Raw())
    rollout: msgspec.Raw = msgspec.field(name=ROLLOUT_KEY, default=msgspec.Raw())
    response: JsonFields | None = None
    reward: float | None = None
    own: Own | None = msgspec.field(name=OWN_KEY, default=None)
    mask_sample: Any = None
    verification_skipped: Any = None
    failure: Any = msgspec.field(name=FAILURE_KEY, default=None)

    def measured(self) -> float | None:
        """The reward; None if the row marks it as no measurement, as in the index."""
        is_marked = is_mark(self.mask_sample) or is_mark(self.verification_skipped)
        return None if is_marked or self.failure else self.reward


class _TaskLine(msgspec.Struct):
    """The task number of a line."""

    task: Index | None = msgspec.field(name=TASK_KEY, default=None)


class Rollout(msgspec.Struct, frozen=True):
    """One finished rollout of a run."""

    task: int
    rollout: int
    response: Response
    reward: float | None
    """The row's own reward; None if the row marks it as no measurement."""
    own: Own
    line: bytes
    is_numbered: bool = True
    """Whether the row itself has a task number. If not, `task` only groups rows by prompt, in order of appearance."""

    @property
    def key(self) -> tuple[int, int]:
        return self.task, self.rollout


def _plain_key(task: msgspec.Raw, rollout: msgspec.Raw) -> tuple[int, int] | None:
    """The key in the row itself, which nearly all rows have; None if the index must determine it."""
    numbers = bytes(task), bytes(rollout)
    is_plain = all(number.isdigit() and len(number) <= LONGEST_PLAIN for number in numbers)
    return (int(numbers[0]), int(numbers[1])) if is_plain else None


def has_plain_key(line: bytes) -> bool:
    """Whether a row contains its task and rollout numbers."""
    try:
        row = decode_json(classic_line(line), _Line, strict=False)
    except UNREADABLE:
        return False
    return _plain_key(row.task, row.rollout) is not None


class RolloutReader:
    """Converts lines to rollouts; lists and counts invalid lines."""

    def __init__(self, path: Path, files: RunFiles | None = None) -> None:
        self.path = path
        self.files = files or RunFiles(path)
        self.bad: list[tuple[int, str]] = []
        self.bad_count = 0
        self._decode = json_decoder(_Line, strict=False).decode
        self._keys: LineKeys | None = None

    def parse(self, number: int, line: bytes) -> Rollout | None:
        """The rollout in a line; None, with a note, for an invalid line."""
        line = classic_line(line)
        try:
            row = self._decode(line)
        except UNREADABLE as error:
            self._reject(number, f"not a rollout: {error}")
            return None
        if row.response is None:
            self._reject(number, "no response")
            return None
        key = _plain_key(row.task, row.rollout) or self._key_of(number)
        if key is None:
            self._reject(number, "not a rollout: the index has no row of it")
            return None
        is_numbered = bytes(row.task) not in (b"", b"null")
        response = as_received(Response(row.response))
        if "artifacts" in response:
            response = Response({**response, "artifacts_root": str(self.path.parent.absolute())})
        return Rollout(*key, response, row.measured(), row.own or Own(), line, is_numbered)

    def _key_of(self, number: int) -> tuple[int, int] | None:
        """The index's key for the row in this line. The index is read once, and again if the file has grown."""
        from rollforge.index import line_keys

        if self._keys is None or number > self._keys.last:
            self._keys = line_keys(self.files)
        return self._keys.get(number)

    def _reject(self, number: int, reason: str) -> None:
        self.bad_count += 1
        if len(self.bad) < 10:
            self.bad.append((number, reason))

    def __iter__(self) -> Iterator[Rollout]:
        """Every rollout in the current file."""
        lines = enumerate(self._lines_of_shards(), 1) if self.files.is_sharded else read_lines(self.path)
        for number, line in lines:
            rollout = self.parse(number, line)
            if rollout is not None:
                yield rollout

    def _lines_of_shards(self) -> Iterator[bytes]:
        for part in parts_of(self.files).rollouts:
            yield from part.lines()


class GrowingLines:
    """Reads the complete lines of a file to which another process appends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._number = 0
        self._rest = b""

    def read(self) -> Iterator[tuple[int, bytes]]:
        """The lines completed since the last call."""
        if self._file is None:
            if not self._path.exists():
                return
            self._file = self._path.open("rb")
        while piece := self._file.readline(LONGEST_LINE):
            self._rest += piece
            if len(self._rest) > LONGEST_LINE:  # a NUL, as in `bounded_lines`
                self._rest = b"\0" + piece[-1:]
            if self._rest.endswith(b"\n"):
                line, self._rest = self._rest, b""
                self._number += 1
                if not line.isspace():
                    yield self._number, line

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _PromptLocation(msgspec.Struct, frozen=True):
    """A task row located by its prompt."""

    offset: int
    line: int
    fields: int
    """Hash of all fields of the row except its number."""
    other_line: int | None = None
    """Number of a later row with the same prompt and other fields, which makes the join ambiguous."""


def _prompt_of(line: bytes) -> int | None:
    try:
        row = msgspec.json.decode(line)
    except UNREADABLE:
        return None
    return _asked(row) if isinstance(row, dict) else None


def _asked(row: Mapping[str, object]) -> int | None:
    """Canonical hash of a row's prompt."""
    from rollforge.index import prompt_hash

    params = row.get(PARAMS_KEY)
    if not isinstance(params, dict):
        return None
    instructions = params.get("instructions")
    return prompt_hash(params.get("input"), instructions if isinstance(instructions, str) else None)


class TaskFields:
    """The tasks of a run by index, read from their file on demand."""

    def __init__(self, files: RunFiles, path: str | Path | None = None) -> None:
        self._remembered: dict[int, tuple[Task, int]] = {}
        self._room = REMEMBERED_BYTES
        self._ids = array("q")
        self._offsets = array("q")
        self._order: np.ndarray[tuple[int], np.dtype[np.int64]] | None = None
        self._file: BinaryIO | None = None
        self._files = files
        self._scanned_size = 0
        self._is_given = path is not None
        self._compared: dict[tuple[int, int], bool] = {}
        """For the first rollouts: whether its prompt differs from its task's."""
        self.moved: set[tuple[int, int]] = set()
        """Number of rollouts whose task number leads to another prompt while their own prompt is on another line."""
        self._location_by_prompt: dict[int, _PromptLocation] | None = None
        self.joined_by_prompt: set[int] = set()
        """Groups of rollouts without a task number whose task was found by prompt."""
        self.without_task: set[int] = set()
        """Groups of rollouts without a task number and without a task row for their prompt; the rollouts' own fields are used."""
        self.path = Path(path) if path is not None else self._find(files)
        if self.path is not None:
            self._scan(self.path)

    @staticmethod
    def _find(files: RunFiles) -> Path | None:
        for path in (files.tasks, files.materialized_inputs):
            if path.exists():
                return path
        return None

    def __enter__(self) -> TaskFields:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __len__(self) -> int:
        return len(self._ids)

    def indices(self) -> list[int]:
        """Every task index once, in file order."""
        return list(dict.fromkeys(self._ids))

    def _scan(self, path: Path) -> None:
        """Record the offset of every task. Files without random access (archives, Parquet) are unpacked to a temporary file."""
        is_plain = path.suffix == ".jsonl" and path.is_file()
        file = path.open("rb") if is_plain else tempfile.TemporaryFile()  # noqa: SIM115  (read from as long as this object lives)
        self._file = cast(BinaryIO, file)
        decode = json_decoder(_TaskLine, strict=False).decode
        self._scanned_size = path.stat().st_size if path.exists() else 0
        end = 0
        for number, line in enumerate(bounded_lines(self._file), 1) if is_plain else self._lines(path):
            if not is_plain:
                file.write(line)
            offset, end = end, file.tell()
            try:
                index = decode(line).task
            except UNREADABLE:
                continue
            self._ids.append(number - 1 if index is None else index)
            self._offsets.append(offset)
        ids = np.asarray(self._ids, dtype=np.int64)
        self._order = np.argsort(ids, kind="stable")

    @staticmethod
    def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
        if not path.exists():
            raise UsageError(
                f"{path}: no such file", hint="--tasks takes the task file that the run was collected from"
            )
        for number, line in read_lines(path):
            yield number, line.rstrip(b"\n") + b"\n"

    def get(self, index: int) -> Task | None:
        """The task; None if no file contains it."""
        task_and_length = self._remembered.get(index)
        if task_and_length is not None:
            return task_and_length[0]
        offset = self._offset(index)
        if offset is None and self._has_grown():
            offset = self._offset(index)
        if offset is None or self._file is None:
            return None
        self._file.seek(offset)
        line = self._file.readline()
        try:
            task = Task(to_task_row(line, may_lack_prompt=True), index)
        except BadRow:
            return None
        self._remember(task, len(line))
        return task

    def _offset(self, index: int) -> int | None:
        if self._order is None:
            return None
        ids = np.asarray(self._ids, dtype=np.int64)
        position = int(np.searchsorted(ids, index, sorter=self._order))
        if position >= len(self._order) or ids[self._order[position]] != index:
            return None
        return self._offsets[int(self._order[position])]

    def _has_grown(self) -> bool:
        """Check whether a collecting process created or extended the file; returns True if it was read again."""
        path = self.path or self._find(self._files)
        if path is None or path.suffix != ".jsonl" or path.stat().st_size == self._scanned_size:
            return False
        if self._file is not None:
            self._file.close()
        self.path, self._ids, self._offsets = path, array("q"), array("q")
        self._scan(path)
        return True

    def notes(self) -> list[str]:
        """Notes for the user on how rollouts and tasks were joined."""
        notes = []
        others = sum(self._compared.values())
        if others:
            notes.append(
                f"{others:,} of the first {len(self._compared):,} rollouts have another prompt than their task in"
                f" {self.path}: is it the right file?"
            )
        if self.moved:
            notes.append(
                f"{self.path} is in another order than {TASK_KEY} says: {len(self.moved):,} rollouts were joined to it by prompt"
            )
        if not self.joined_by_prompt:
            return notes
        rest = f"; {len(self.without_task):,} prompts are not in it" if self.without_task else ""
        count = len(self.joined_by_prompt)
        joined = f"the rollouts of {count:,} tasks have no {TASK_KEY}: joined to {self.path} by prompt{rest}"
        return [*notes, joined]

    def of(self, rollout: Rollout) -> Task:
        """The task of a rollout: from the task file, else from the row's own fields.

        A row without a task number is joined by prompt, never by position.
        """
        task = self._of_number(rollout) if rollout.is_numbered else self._of_prompt(rollout)
        if task is not None:
            return task
        row: JsonFields = msgspec.json.decode(rollout.line)
        fields = {key: value for key, value in row.items() if key not in NOT_TASK_FIELDS}
        fields.setdefault(PARAMS_KEY, {"input": ""})
        return Task(fields, rollout.task)

    def _of_number(self, rollout: Rollout) -> Task | None:
        """The task with the rollout's number; in a file without task numbers, that line, unless its prompt differs."""
        task = self.get(rollout.task)
        if task is None or not self._is_given:
            return task
        is_position = TASK_KEY not in task
        if not is_position and len(self._compared) >= COMPARED_PROMPTS:
            return task
        prompt = _prompt_of(rollout.line)
        is_other = prompt is not None and _asked(task) not in (None, prompt)
        key = (rollout.task, rollout.rollout)
        by_prompt = self._read_by_prompt(rollout, prompt) if is_other and is_position else None
        if by_prompt is not None:
            self.moved.add(key)
            return by_prompt[0]
        if len(self._compared) < COMPARED_PROMPTS:
            self._compared[key] = is_other
        return task

    def _of_prompt(self, rollout: Rollout) -> Task | None:
        task_and_length = self._remembered.get(rollout.task)
        if task_and_length is None:
            task_and_length = self._read_by_prompt(rollout, _prompt_of(rollout.line))
            if task_and_length is not None:
                self._remember(*task_and_length)
        if task_and_length is None:
            if self.path is not None:
                self.without_task.add(rollout.task)
            return None
        self.joined_by_prompt.add(rollout.task)
        return task_and_length[0]

    def _read_by_prompt(self, rollout: Rollout, prompt: int | None) -> tuple[Task, int] | None:
        """The task with this prompt, and the length of its line."""
        if self._location_by_prompt is None:
            self._location_by_prompt = self._scan_prompts()
        task_line = self._location_by_prompt.get(prompt) if prompt is not None else None
        if task_line is None or self._file is None:
            return None
        if task_line.other_line is not None:
            why = (
                f"line {rollout.task + 1} asks something else"
                if rollout.is_numbered
                else f"{TASK_KEY} is missing"
            )
            raise UsageError(
                f"{self.path}: lines {task_line.line} and {task_line.other_line} have the same prompt and different fields, and the"
                f" rollouts do not say which of them they answer ({why})",
                hint=f"give the rollouts {TASK_KEY}, or leave one of the two lines out of the task file",
            )
        self._file.seek(task_line.offset)
        line = self._file.readline()
        return Task(to_task_row(line), rollout.task), len(line)

    def _scan_prompts(self) -> dict[int, _PromptLocation]:
        """Record the location of each prompt; of equal rows the first counts."""
        locations: dict[int, _PromptLocation] = {}
        if self._file is None:
            return locations
        self._file.seek(0)
        end = 0
        for number, line in enumerate(bounded_lines(self._file), start=1):
            offset, end = end, self._file.tell()
            try:
                row = to_task_row(line)
            except BadRow:
                continue
            prompt = _asked(row)
            fields = to_json({key: value for key, value in row.items() if key not in (TASK_KEY, ROLLOUT_KEY)})
            if prompt is not None:
                first = locations.setdefault(prompt, _PromptLocation(offset, number, hash(fields)))
                if first.fields != hash(fields) and first.other_line is None:
                    locations[prompt] = msgspec.structs.replace(first, other_line=number)
        return locations

    def _remember(self, task: Task, size: int) -> None:
        self._remembered[task.index] = (task, size)
        self._room -= size
        while self._room < 0 and len(self._remembered) > 1:
            _, freed = self._remembered.pop(next(iter(self._remembered)))
            self._room += freed
