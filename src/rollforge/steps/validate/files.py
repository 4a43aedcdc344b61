"""This module validates files: reads each row, checks it, and compares rows with each other and files with each other.

Rows are read one at a time; what is remembered of them is hashes. `--fix` reads the file a second time, and copies the lines that
are good as they stand.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from rollforge.errors import UsageError
from rollforge.index.prompts import prompt_hash, split_messages
from rollforge.records import PARAMS_KEY, ROLLOUT_KEY, TASK_KEY, JsonObject
from rollforge.steps.validate.file_metrics import FileMetrics
from rollforge.steps.validate.reading import lines_of, read_rows
from rollforge.steps.validate.records import FileKind, FileReport, Finding, Problem, Report, kind_of
from rollforge.steps.validate.rows import check_row, kind_of_row
from rollforge.store.files import file_stem

LISTED = 1000
_canonical = msgspec.json.Encoder(order="sorted").encode


class ValidateOptions(Struct, frozen=True, kw_only=True):
    """How files are validated."""

    needs: Sequence[str] = ()
    """Fields every task must have, because the chosen verifier reads them."""
    fix: bool = False
    """Write a clean copy and a file of rejects."""
    out: str | None = None
    """The folder for them; by default beside the file."""


def validate_files(paths: Sequence[str | Path], options: ValidateOptions | None = None) -> Report:
    """The report on all files."""
    options = options or ValidateOptions()
    found = [Path(path) for path in paths]
    for path in found:
        if not path.is_file():
            raise UsageError(f"{path}: no such file")
    checks = [_File(path, options) for path in found]
    for check in checks:
        check.read()
    _find_shared_prompts(checks)
    return Report(ok=not any(check.errors for check in checks), files=[check.report() for check in checks])


class _File:
    """One file being validated."""

    def __init__(self, path: Path, options: ValidateOptions) -> None:
        self.path = path
        self.kind: FileKind = "empty"
        self.errors = 0
        self.line_by_prompt: dict[int, int] = {}
        self._options = options
        self._rows = 0
        self._bad: list[Problem] = []
        self._warnings: list[Problem] = []
        self._bad_lines: set[int] = set()
        self._reasons: dict[int, list[str]] = {}
        """Of every line that is left out of the clean copy."""
        self._line_by_row: dict[bytes, int] = {}
        self._line_by_key: dict[tuple[int, int], int] = {}
        self._kinds: dict[str, dict[str, array[int]]] = {}
        self._metrics = FileMetrics()

    def add(self, line: int, finding: Finding, *, instead: int | None = None) -> None:
        """Take note of a finding; `instead` of this line, an earlier one has to go for it."""
        problem = Problem(
            line=line, path=finding.path, text=finding.text, hint=finding.hint, level=finding.level
        )
        if finding.level == "warning":
            if len(self._warnings) < LISTED:
                self._warnings.append(problem)
            return
        self.errors += 1
        self._bad_lines.add(line)
        if self._options.fix:
            reason = f"{problem.path}: {problem.text}".removeprefix(": ")
            if instead is not None:
                reason = f"line {line} replaces it"
            self._reasons.setdefault(instead or line, []).append(reason)
        if len(self._bad) < LISTED:
            self._bad.append(problem)

    def read(self) -> None:
        """Check every row."""
        for number, row, finding in read_rows(self.path):
            if finding is not None:
                self.add(number, finding)
            if row is not None:
                self._rows += 1
                try:
                    self._check(number, row)
                except RecursionError:  # it could just be read: what looks at it goes some calls deeper
                    self.add(number, Finding("", "nested too deeply"))
        self._find_mixed_types()

    def _check(self, line: int, row: JsonObject) -> None:
        if self.kind == "empty":
            self.kind = kind_of_row(row) or "empty"
        before = self.errors
        for finding in check_row(row, self.kind, self._options.needs):
            self.add(line, finding)
        self._check_duplicate(line, row)
        self._note_kinds(line, row)
        if self.errors == before:
            self._metrics.add(row)

    def _check_duplicate(self, line: int, row: JsonObject) -> None:
        task, rollout = row.get(TASK_KEY), row.get(ROLLOUT_KEY)
        if self.kind == "rollouts" and isinstance(task, int) and isinstance(rollout, int):
            self._check_key(line, (task, rollout))
            return
        digest = hashlib.sha256(
            _canonical({k: v for k, v in row.items() if k not in (TASK_KEY, ROLLOUT_KEY)})
        ).digest()[:12]
        first = self._line_by_row.setdefault(digest, line)
        if first != line and self.kind != "rollouts":
            self.add(line, Finding("", f"the same row as line {first}", "--fix keeps the first one"))
            return
        asked = _prompt_of(row)
        if asked is not None:
            first = self.line_by_prompt.setdefault(asked, line)
            if first != line and self.kind == "tasks":
                text = f"the same prompt as line {first}, with other fields"
                self.add(line, Finding(PARAMS_KEY + ".input", text, level="warning"))

    def _check_key(self, line: int, key: tuple[int, int]) -> None:
        """A rollout that is there twice: the last good row is the one that counts, and that stays."""
        is_good = line not in self._bad_lines
        known = self._line_by_key.get(key)
        if known is not None:
            text = f"the same (task, rollout) as line {known}: {key}"
            hint = "the last one counts when the run is read, and --fix keeps it"
            self.add(line, Finding(TASK_KEY, text, hint), instead=known if is_good else None)
        if known is None or is_good:
            self._line_by_key[key] = line

    def _note_kinds(self, line: int, row: JsonObject) -> None:
        for name, value in row.items():
            if value is None or name in (PARAMS_KEY, "response"):
                continue
            kind = "a number" if isinstance(value, bool | int | float) else kind_of(value)
            self._kinds.setdefault(name, {}).setdefault(kind, array("L")).append(line)

    def _find_mixed_types(self) -> None:
        """A field that is of one type in most rows and of another in some: the few are wrong."""
        for name, lines_by_kind in self._kinds.items():
            if len(lines_by_kind) < 2:
                continue
            usual = max(lines_by_kind, key=lambda kind: len(lines_by_kind[kind]))
            for kind, lines in lines_by_kind.items():
                if kind != usual:
                    text = f"{kind} in {len(lines):,} rows, {usual} in the others"
                    for line in lines:
                        self.add(line, Finding(name, text, "one field has one type"))

    def report(self) -> FileReport:
        """The report; writes the clean copy when asked to."""
        report = FileReport(
            path=str(self.path), kind=self.kind, rows=self._rows, errors=self.errors, bad_lines=len(self._bad_lines),
            bad=sorted(self._bad, key=lambda problem: problem.line), warnings=self._warnings, metrics=self._metrics.record(),
        )  # fmt: skip
        if self._options.fix:
            self._write_clean(report)
        return report

    def _write_clean(self, report: FileReport) -> None:
        folder = Path(self._options.out) if self._options.out else self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        stem = file_stem(self.path)
        clean, rejects = folder / f"{stem}.clean.jsonl", folder / f"{stem}.rejects.jsonl"
        with clean.open("wb") as good, rejects.open("wb") as bad:
            for number, data in lines_of(self.path):
                if number in self._reasons:
                    text = data.decode("utf-8", "replace")
                    record = {"line": number, "reasons": self._reasons[number], "text": text}
                    bad.write(msgspec.json.encode(record) + b"\n")
                elif data.strip():
                    good.write(data + b"\n")
        report.fixed, report.rejects = str(clean), str(rejects)


def _prompt_of(row: JsonObject) -> int | None:
    params = row.get(PARAMS_KEY)
    if isinstance(params, dict):
        instructions = params.get("instructions")
        return prompt_hash(params.get("input"), instructions if isinstance(instructions, str) else None)
    if isinstance(row.get("messages"), list):
        return prompt_hash(split_messages(row["messages"])[0])
    return prompt_hash(row.get("prompt"))


def _find_shared_prompts(checks: list[_File]) -> None:
    """A prompt that stands in two files: what is trained on must not be what is tested on."""
    seen: dict[int, tuple[_File, int]] = {}
    for check in checks:
        if check.kind == "rollouts":
            continue
        for asked, line in check.line_by_prompt.items():
            other, first = seen.setdefault(asked, (check, line))
            if other is not check:
                text = f"the same prompt as {other.path}:{first}"
                check.add(line, Finding("", text, "take it out of one of the two files"))
