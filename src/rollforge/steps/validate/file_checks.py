"""Validates files: checks each row, compares rows with each other, and files with each other.

Rows are read one at a time; only hashes are kept in memory. `--fix` reads the file a second time and copies the good lines
unchanged.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from rollforge.errors import UsageError
from rollforge.records import FAILURE_KEY, PARAMS_KEY, ROLLOUT_KEY, TASK_KEY, JsonFields
from rollforge.statistics.counts import count_of
from rollforge.steps.validate.clean import copies_of, refuse_overwriting, write_clean
from rollforge.steps.validate.file_metrics import FileMetrics
from rollforge.steps.validate.prompts import is_one_split, prompt_of
from rollforge.steps.validate.repeats import Repeats
from rollforge.steps.validate.row_kinds import check_row, kind_of_row
from rollforge.steps.validate.row_reader import foreign_format, lines_of, read_rows, rows_of_lines
from rollforge.steps.validate.validation_records import (
    FileKind,
    FileReport,
    Level,
    LineFault,
    RowFault,
    ValidationReport,
    kind_of,
)
from rollforge.store import RunFiles
from rollforge.store.find import near_run, runs_in
from rollforge.store.rollout_parts import RunPart, parts_of
from rollforge.tasks import BadRow, FieldMap, HubSplit, PromptTemplate, is_hub_name, open_tasks

LISTED = 1000
"""Number of problems per file that are always listed."""
LISTED_KINDS = 100
"""Number of further problems that are listed if they are of a new kind."""
_DIGITS = re.compile(r"\d+")
_canonical = msgspec.json.Encoder(order="sorted").encode


class ValidateOptions(Struct, frozen=True, kw_only=True):
    """Options of a validation."""

    needs: Sequence[str] = ()
    """Task fields that every task must have, because the selected verifier reads them."""
    fix: bool = False
    """Write a clean copy and a file of rejects."""
    out: str | None = None
    """Folder for these files; by default beside the input."""
    prompt_template: PromptTemplate | None = None
    """Template for the prompt of every task row, as in `collect --prompt-template`."""
    part: HubSplit = HubSplit()
    """Split and config of datasets on the Hub."""
    mapping: FieldMap | None = None
    """Mapping of dataset fields to task fields, as in `collect --map`."""


def validate_files(paths: Sequence[str | Path], options: ValidateOptions | None = None) -> ValidationReport:
    """Validate all files; returns the report."""
    options = options or ValidateOptions()
    named = list(_named_files(paths, options.part))
    shards = {path: run for name, path in named if (run := RunFiles(name)).is_sharded}
    inputs = [path for _, path in named if path not in shards]
    for path in inputs:
        if not path.is_file():
            what = "a folder, not a file" if path.is_dir() else f"no such file{near_run(path)}"
            meant = " ".join(map(str, runs_in(path)[:5]))
            raise UsageError(
                f"{path}: {what}",
                hint=f"give the files in it: {meant} (a run's folder means its files)"
                if meant
                else "for example: rollforge validate tasks.jsonl",
            )
    if options.fix and options.out is None and any(is_hub_name(name) for name, _ in named):
        raise UsageError("--fix needs a folder for the copies of a dataset on the Hub", hint="give --out DIR")
    if options.fix and shards:
        run = next(iter(shards.values()))
        raise UsageError(
            f"--fix copies files, and {run.name} is a run of shards",
            hint=f"merge it first: rollforge merge {run.name}; then name the file: {run.rollouts}",
        )
    if options.fix:
        refuse_overwriting(inputs, options.out)
    checks = [
        _ShardedRun(path, options, name, parts_of(shards[path]).rollouts)
        if path in shards
        else _File(path, options, name)
        for name, path in named
    ]
    for check in checks:
        check.read()
    _find_shared_prompts(checks)
    return ValidationReport(
        ok=not any(check.errors for check in checks), files=[check.report() for check in checks]
    )


def _named_files(paths: Sequence[str | Path], part: HubSplit) -> Iterator[tuple[str, Path]]:
    """Display name and path of each file; a dataset on the Hub has several."""
    for path in paths:
        part.refuse_elsewhere(str(path))
        if is_hub_name(str(path)):
            yield from open_tasks(str(path), part=part).files()
        else:
            files = RunFiles(path)  # a folder means the run in it, as for every other command
            is_run = Path(path).is_dir() and files.rollouts.is_file() and not files.is_sharded
            yield (str(files.rollouts), files.rollouts) if is_run else (str(path), Path(path))


class _File:
    """State of one file under validation."""

    def __init__(self, path: Path, options: ValidateOptions, name: str) -> None:
        self.path = path
        self._name = name
        self.errors = 0
        self.prompts = Repeats()
        self._options = options
        self._rows = 0
        self._bad: list[LineFault] = []
        self._listed_kinds: set[str] = set()
        self._warnings: list[LineFault] = []
        self._bad_lines: set[int] = set()
        self._reasons: dict[int, list[str]] = {}
        """Faults by line, for lines omitted from the clean copy."""
        self._same_rows = Repeats()
        self._same_rollouts = Repeats(stays="last")
        self._lines_by_claim: dict[FileKind, array[int]] = {}
        self._kinds: dict[str, dict[str, array[int]]] = {}
        self._metrics = FileMetrics()

    def add(self, line: int, fault: RowFault, *, is_repeat: bool = False) -> None:
        """Record a fault. A line that only duplicates another may still be the one to keep."""
        problem = LineFault(line=line, path=fault.path, text=fault.text, hint=fault.hint, level=fault.level)
        if fault.level == "warning":
            if len(self._warnings) < LISTED:
                self._warnings.append(problem)
            return
        self.errors += 1
        self._bad_lines.add(line)
        if self._options.fix and not is_repeat:
            self._reasons.setdefault(line, []).append(f"{problem.path}: {problem.text}".removeprefix(": "))
        self._list(problem)

    def _list(self, problem: LineFault) -> None:
        """List the first problems, and later ones only of a new kind, so that a common fault does not hide a rare one."""
        if len(self._bad) >= LISTED + LISTED_KINDS:
            return
        kind = _DIGITS.sub("#", f"{problem.path}: {problem.text}")
        if len(self._bad) < LISTED or kind not in self._listed_kinds:
            self._bad.append(problem)
            self._listed_kinds.add(kind)

    def read(self) -> None:
        """Check every row."""
        if (fault := self._foreign_format()) is not None:
            self.add(1, fault)
            if self._options.fix:
                self._reasons = {number: [fault.text] for number, _ in lines_of(self.path)}
            return
        for number, row, fault in self._numbered_rows():
            if fault is not None:
                self.add(number, fault)
            if row is not None:
                self._rows += 1
                try:
                    self._check(number, row)
                except RecursionError:  # barely readable: checking it recurses some calls deeper
                    self.add(number, RowFault("", "nested too deeply", "write the deep part as text"))
        if not self._rows and not self.errors:
            self.add(1, RowFault("", "the file has no rows", "was it written to its end?"))
        self._find_strangers()
        self._find_mixed_types()

    def place(self, line: int) -> str:
        """A line, for messages about other files."""
        return f"{self.path}:{line}"

    def line_name(self, line: int) -> str:
        """A line, for messages about this file."""
        return f"line {line}"

    def _foreign_format(self) -> RowFault | None:
        return foreign_format(self.path)

    def _numbered_rows(self) -> Iterator[tuple[int, JsonFields | None, RowFault | None]]:
        return read_rows(self.path)

    @property
    def kind(self) -> FileKind:
        """The kind of most rows."""
        claims = self._lines_by_claim
        return max(claims, key=lambda kind: len(claims[kind]), default="empty")

    def _check(self, line: int, row: Mapping[str, object]) -> None:
        if self._options.mapping is not None:
            try:
                row = self._options.mapping.apply(row)
            except BadRow as error:
                self.add(line, RowFault(error.path, str(error), error.hint))
                return
        claimed = kind_of_row(row)
        if claimed is not None:
            self._lines_by_claim.setdefault(claimed, array("L")).append(line)
        before = self.errors
        for fault in check_row(row, self._options.needs, self._options.prompt_template):
            self.add(line, fault)
        self._check_duplicate(line, row, claimed)
        self._note_kinds(line, row)
        if self.errors == before:
            self._metrics.add(row)

    def _check_duplicate(self, line: int, row: Mapping[str, object], claimed: FileKind | None) -> None:
        task, rollout = row.get(TASK_KEY), row.get(ROLLOUT_KEY)
        if claimed == "rollouts":
            if isinstance(task, int) and isinstance(rollout, int) and FAILURE_KEY not in row:
                first = self._same_rollouts.note((task, rollout), line)
                if first is not None:
                    text = f"the same (task, rollout) as {self.line_name(first)}: {(task, rollout)}"
                    hint = "the last good one counts when the run is read, and --fix keeps it"
                    self.add(line, RowFault(TASK_KEY, text, hint), is_repeat=True)
            return
        prompt = prompt_of(row)
        asked_at = self.prompts.note(prompt, line) if prompt is not None else None
        same = self._same_rows.note(_digest(row), line)
        if same is not None:
            fault = RowFault("", f"the same row as line {same}", "--fix keeps the first good one", "warning")
            self.add(line, fault, is_repeat=True)
        elif asked_at is not None and claimed == "tasks" and rollout is None:
            text = f"the same prompt as line {asked_at}, with other fields"
            self.add(
                line,
                RowFault(PARAMS_KEY + ".input", text, "keep one of them, unless both are meant", "warning"),
            )

    def _note_kinds(self, line: int, row: Mapping[str, object]) -> None:
        for name, value in row.items():
            if value is None or name in (PARAMS_KEY, "response"):
                continue
            kind = "a number" if isinstance(value, bool | int | float) else kind_of(value)
            self._kinds.setdefault(name, {}).setdefault(kind, array("L")).append(line)

    def _find_strangers(self) -> None:
        """Find rows of another kind than most; possible only at the end, since even the first row may be the wrong one."""
        usual = self.kind
        for kind, lines in self._lines_by_claim.items():
            for line in lines if kind != usual else ():
                text = f"this row is one of {kind}, the file holds {usual}"
                self.add(line, RowFault("", text, "keep one kind of row per file"))

    def _find_mixed_types(self) -> None:
        """Find fields with one type in most rows and another in some; the minority counts as wrong."""
        # A verifier may well take a text or a list; a dataset's column has one type.
        level: Level = "error" if self.kind == "dataset" else "warning"
        for name, lines_by_kind in self._kinds.items():
            if len(lines_by_kind) < 2:
                continue
            usual = max(lines_by_kind, key=lambda kind: len(lines_by_kind[kind]))
            for kind, lines in lines_by_kind.items():
                if kind != usual:
                    text = f"{kind} in {count_of(len(lines), 'row')}, {usual} in the others"
                    for line in lines:
                        self.add(line, RowFault(name, text, "one field has one type", level))

    def report(self) -> FileReport:
        """Make the report; writes the clean copy if requested."""
        report = FileReport(
            path=self._name, kind=self.kind, rows=self._rows, errors=self.errors, bad_lines=len(self._bad_lines),
            bad=sorted(self._bad, key=lambda problem: problem.line), warnings=self._warnings, metrics=self._metrics.record(),
        )  # fmt: skip
        if self._options.fix:
            self._write_clean(report)
        return report

    def _write_clean(self, report: FileReport) -> None:
        replaced = [
            (line, f"line {kept_line} replaces it")
            for line, kept_line in self._same_rollouts.left_out(self._reasons)
        ]
        same = [
            (line, f"the same row as line {kept_line}")
            for line, kept_line in self._same_rows.left_out(self._reasons)
        ]
        for line, reason in replaced + same:
            self._reasons[line] = [reason]
        copies = copies_of(self.path, self._options.out)
        write_clean(self.path, copies, self._reasons)
        report.fixed, report.rejects = str(copies.clean), str(copies.rejects)


class _ShardedRun(_File):
    """A run of shards as one file: its lines are numbered over all parts, and reported by part."""

    def __init__(self, path: Path, options: ValidateOptions, name: str, parts: Sequence[RunPart]) -> None:
        super().__init__(path, options, name)
        self._parts = parts
        self._lines_before: list[int] = []
        """Number of lines before each part."""

    def place(self, line: int) -> str:
        part, number = self._located(line)
        return f"{part}:{number}"

    def line_name(self, line: int) -> str:
        return self.place(line)

    def _foreign_format(self) -> RowFault | None:
        return None

    def _numbered_rows(self) -> Iterator[tuple[int, JsonFields | None, RowFault | None]]:
        before = 0
        for part in self._parts:
            self._lines_before.append(before)
            number = 0
            for number, row, fault in rows_of_lines(enumerate(part.lines(), 1), part.path):
                yield before + number, row, fault
            before += number

    def _located(self, line: int) -> tuple[Path, int]:
        """The part that contains a line, and the line's number there."""
        part = bisect_left(self._lines_before, line) - 1
        return (self._parts[part].path, line - self._lines_before[part]) if self._parts else (self.path, line)

    def report(self) -> FileReport:
        report = super().report()
        for fault in (*report.bad, *report.warnings):
            path, fault.line = self._located(fault.line)
            fault.file = str(path)
        return report


def _digest(row: Mapping[str, object]) -> bytes:
    """Hash of a row's content, independent of the task's number and the order of keys.

    The rollout number is included, because NeMo Gym's materialized inputs have a line for each rollout.
    """
    content = {key: value for key, value in row.items() if key != TASK_KEY}
    return hashlib.sha256(_canonical(content)).digest()[:12]


def _find_shared_prompts(checks: list[_File]) -> None:
    """Find prompts that occur in two files, because test data must not be training data."""
    seen: dict[Hashable, tuple[_File, int]] = {}
    for check in checks:
        for prompt, line in check.prompts.first_by_key.items():
            other, first = seen.setdefault(prompt, (check, line))
            if other is check or is_one_split(other.path, check.path):
                continue
            text = f"the same prompt as {other.place(first)}"
            for each in check.prompts.lines(prompt):
                check.add(each, RowFault("", text, "take it out of one of the two files"))
