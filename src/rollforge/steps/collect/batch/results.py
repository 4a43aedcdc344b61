"""Batch results by custom id: the file and line of every request's answer.

Results may come in any order, over several files, some of them twice. Which of two duplicates counts does not depend on their
order: an answer beats an error; otherwise the line that sorts first wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from rollforge.endpoint.batch_lines import BatchResult, RequestId, read_result
from rollforge.errors import Failure
from rollforge.steps.collect.batch.batch_options import refuse_missing
from rollforge.steps.collect.plan import CollectPlan
from rollforge.text_safety.outgoing import cut

SHOWN = 10
"""Most ids of each kind that a report lists."""
_OFFSET_BITS = 44
_MOST_ATTEMPTS = 1000


class BatchReport(msgspec.Struct, kw_only=True):
    """Contents of the results files."""

    files: int = 0
    lines: int = 0
    used: int = 0
    """Results that became rollouts or failures in this session."""
    unknown: int = 0
    """Lines whose custom id belongs to no rollout of this run."""
    unknown_ids: list[str] = []
    doubles: int = 0
    """Lines whose custom id occurs in another line too."""
    double_ids: list[str] = []
    unreadable: int = 0
    unreadable_lines: list[str] = []
    """Unreadable lines, as file and line number."""
    gaps: int = 0
    """Owed rollouts without a result."""
    gap_ids: list[str] = []

    def notes(self) -> list[str]:
        """Notes for the user, one sentence each."""
        named = (
            (self.unknown, "lines are of no rollout of this run", self.unknown_ids),
            (
                self.doubles,
                "lines repeat the custom id of another; an answer beats an error",
                self.double_ids,
            ),
            (self.unreadable, "lines are no results", self.unreadable_lines),
            (self.gaps, "owed rollouts have no result in the files", self.gap_ids),
        )
        return [
            f"{count:,} {text}: {', '.join(ids)}{' …' if count > len(ids) else ''}"
            for count, text, ids in named
            if count
        ]


class BatchResults:
    """Results by request."""

    def __init__(self, plan: CollectPlan, run: str, *, max_response_bytes: int) -> None:
        self.report = BatchReport()
        self._longest = line_limit(max_response_bytes)
        self._plan = plan
        self._run = run
        self._files: list[Path] = []
        self._place_by_request: dict[int, int] = {}
        self._failure_by_request: dict[int, Failure] = {}

    def add(self, path: Path) -> None:
        """Read a results file."""
        refuse_missing(path)
        number = len(self._files)
        self._files.append(path)
        self.report.files += 1
        line_number = offset = 0
        with path.open("rb") as file:
            while line := file.readline(self._longest):
                line_number += 1
                size = len(line)
                is_whole = size < self._longest or line.endswith(b"\n")
                while not is_whole and (
                    rest := file.readline(1 << 20)
                ):  # only counted: it does not fit into memory
                    size += len(rest)
                    is_whole = rest.endswith(b"\n")
                if line.strip():
                    self.report.lines += 1
                    self._add_line(
                        line if size == len(line) else b"", number, offset, f"{path.name}:{line_number}"
                    )
                offset += size

    def _add_line(self, line: bytes, file: int, offset: int, where: str) -> None:
        result = read_result(line)
        if result is None:
            self.report.unreadable += 1
            _keep(self.report.unreadable_lines, where)
            return
        key = self._key(RequestId.parse(result.custom_id))
        if key is None:
            self.report.unknown += 1
            _keep(self.report.unknown_ids, cut(str(result.custom_id), 80))
            return
        at = file << _OFFSET_BITS | offset
        other = self._place_by_request.setdefault(key, at)
        if other == at:
            return
        self.report.doubles += 1
        _keep(self.report.double_ids, str(result.custom_id))
        before = self._line(other)
        earlier = read_result(before)
        assert earlier is not None
        if (not result.is_answer, line) < (not earlier.is_answer, before):
            self._place_by_request[key] = at

    def fail(self, position: int, sample: int, attempt: int, failure: Failure) -> None:
        """Record a request that ended without a results line."""
        key = self._number(position, sample, attempt)
        if key not in self._place_by_request:
            self._failure_by_request[key] = failure

    def has(self, position: int, sample: int, attempt: int) -> bool:
        """Whether there is a result for this attempt."""
        key = self._number(position, sample, attempt)
        return key in self._place_by_request or key in self._failure_by_request

    def result(self, position: int, sample: int, attempt: int) -> tuple[BatchResult, str]:
        """The result of this attempt, and its file; raises the failure of a request without a results line."""
        key = self._number(position, sample, attempt)
        if key in self._failure_by_request:
            raise self._failure_by_request[key]
        packed = self._place_by_request[key]
        answer = read_result(self._line(packed))
        assert answer is not None, "the file of results has changed"
        return answer, self._files[packed >> _OFFSET_BITS].name

    def requests(self) -> list[tuple[int, int, int]]:
        """(position, sample, attempt) of every result, sorted."""
        samples = self._plan.ledger.samples
        numbers = sorted(self._place_by_request.keys() | self._failure_by_request.keys())
        return [
            (number // _MOST_ATTEMPTS // samples, number // _MOST_ATTEMPTS % samples, number % _MOST_ATTEMPTS)
            for number in numbers
        ]

    def forget(self) -> None:
        """Drop all results, after they are on disk as rollouts and failures."""
        self._files, self._place_by_request, self._failure_by_request = [], {}, {}

    def count_gaps(self, requested_keys: Iterable[tuple[int, int]], attempts: int) -> None:
        """Record owed rollouts, by position and sample, that have no result in any file."""
        ledger = self._plan.ledger
        for position, sample in requested_keys:
            if sample in ledger.owed_samples(position, attempts):
                attempt = ledger.attempts(position, sample)
                name = RequestId(self._run, int(ledger.task_ids[position]), sample, attempt)
                self.report.gaps += 1
                _keep(self.report.gap_ids, name.text)

    def _line(self, packed: int) -> bytes:
        with self._files[packed >> _OFFSET_BITS].open("rb") as file:
            file.seek(packed & ((1 << _OFFSET_BITS) - 1))
            return file.readline()

    def _key(self, name: RequestId | None) -> int | None:
        if name is None or name.run != self._run or name.attempt >= _MOST_ATTEMPTS:
            return None
        position = self._plan.ledger.position(name.task)
        if position is None or not 0 <= name.sample < self._plan.ledger.samples:
            return None
        return self._number(position, name.sample, name.attempt)

    def _number(self, position: int, sample: int, attempt: int) -> int:
        return (position * self._plan.ledger.samples + sample) * _MOST_ATTEMPTS + attempt


def line_limit(max_response_bytes: int) -> int:
    """Size limit of a results line: the answer plus the batch's envelope."""
    return max_response_bytes + (64 << 10)


def _keep(names: list[str], name: str) -> None:
    if len(names) < SHOWN:
        names.append(name)
