"""Tests a verifier on its author's cases: full reward, zero reward, malformed rows, determinism."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from rollforge.errors import DataError, Failure, UsageError
from rollforge.records import JsonObject, Response, Task
from rollforge.runtime.typed_decoding import json_decoder
from rollforge.store.reading import UNREADABLE, lines_of, reason_of
from rollforge.verifiers.base import Mode, load_verifier
from rollforge.verifiers.running.ready_verifier import RunningJudge, Workers, make_judge

CaseKind = Literal["full_reward", "zero_reward", "malformed", "determinism"]
KINDS: tuple[CaseKind, ...] = ("full_reward", "zero_reward", "malformed", "determinism")

_DEFAULT_REWARD = {"full_reward": 1.0, "zero_reward": 0.0}


class VerifierCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a cases file."""

    name: str
    kind: CaseKind
    task: JsonObject = {}
    """The task row."""
    answer: str | None = None
    """The answer's text; alternatively a whole `response`."""
    response: JsonObject | None = None
    request: JsonObject | None = None
    """Alternative in NeMo Gym's form: the task row with its `response` inside."""
    expected_reward: float | None = None
    """By default 1 for full_reward and 0 for zero_reward."""
    expected_error: str | None = None
    """For a malformed case: part of the error message. Without it, any failure or verdict without reward passes."""

    def material(self) -> tuple[Task, Response]:
        """Task and response to judge."""
        if self.request is not None:
            row = {key: value for key, value in self.request.items() if key != "response"}
            return Task(row), Response(self.request.get("response") or {})
        response = (
            Response(self.response) if self.response is not None else Response.from_text(self.answer or "")
        )
        return Task(self.task), response


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one case."""

    name: str
    kind: CaseKind
    ok: bool
    text: str
    """Expected and actual result, if they differ."""


class CasesReport(msgspec.Struct, frozen=True, kw_only=True):
    """Results of all cases."""

    verifier: str
    fingerprint: str
    cases: str
    results: list[CaseResult]
    missing: list[CaseKind]
    """Kinds of cases that the file lacks."""

    @property
    def ok(self) -> bool:
        """Whether every case passed."""
        return all(result.ok for result in self.results)


class CaseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Verifier and cases to test."""

    verifier: str
    cases: str | Path | None = None
    """None means the cases file beside the verifier."""
    options: JsonObject = {}
    mode: Mode | None = None
    repeats: int = 5
    """Number of calls per determinism case."""
    workers: Workers = 1
    timeout: float = 60.0


async def run_cases(options: CaseOptions) -> CasesReport:
    """Run the verifier on every case."""
    verifier = load_verifier(options.verifier, options.options, options.mode)
    if verifier.is_group:
        raise UsageError(
            f"{verifier.name} scores samples of a task together; cases are single answers",
            hint="test it on a run: rollforge verify RUN --verifier NAME",
        )
    path = Path(options.cases) if options.cases is not None else cases_beside(options.verifier)
    cases = list(read_cases(path))
    if not cases:
        raise UsageError(
            f"{path}: no cases", hint="each line is one case; rollforge init verifier writes some"
        )
    judge = make_judge(verifier, workers=options.workers, timeout=options.timeout, sharing="never")
    await judge.start()
    try:
        results = [await _run(judge, case, options.repeats) for case in cases]
    finally:
        await judge.close()
    kinds = {case.kind for case in cases}
    return CasesReport(
        verifier=verifier.name,
        fingerprint=verifier.fingerprint,
        cases=str(path),
        results=results,
        missing=[kind for kind in KINDS if kind not in kinds],
    )


def cases_beside(verifier: str) -> Path:
    """Path of `my_verifier_cases.jsonl` beside `my_verifier.py`."""
    path = Path(verifier.partition(":")[0])
    if path.suffix != ".py":
        raise UsageError(f"which cases for {verifier}?", hint="--cases FILE")
    cases = path.with_name(f"{path.stem}_cases.jsonl")
    if not cases.exists():
        raise UsageError(
            f"{cases}: no such file", hint="write one case per line, or name the file with --cases FILE"
        )
    return cases


def read_cases(path: Path) -> Iterator[VerifierCase]:
    """The cases of a file; raises `DataError` with the line of the first invalid one."""
    if not path.exists():
        raise UsageError(
            f"{path}: no such file", hint="give a file of cases, one JSON object per line: --cases FILE"
        )
    decode = json_decoder(VerifierCase).decode
    for number, line in enumerate(lines_of(path), start=1):
        if not line.strip():
            continue
        try:
            yield decode(line)
        except UNREADABLE as error:
            raise DataError(
                f"{path}:{number}: {reason_of(error)}",
                hint='a case is {"name", "kind", "task", "answer"} with kind full_reward, zero_reward, malformed or determinism',
            ) from error


async def _run(judge: RunningJudge, case: VerifierCase, repeats: int) -> CaseResult:
    task, response = case.material()
    outcomes: list[Any] = []
    for _ in range(max(2, repeats) if case.kind == "determinism" else 1):
        try:
            outcomes.append((await judge.call_once(task, response)).reward)
        except Failure as failure:
            outcomes.append(failure)
    text = _problem(case, outcomes)
    return CaseResult(name=case.name, kind=case.kind, ok=not text, text=text)


def _problem(case: VerifierCase, outcomes: list[Any]) -> str:
    """Difference between expected and actual outcomes; empty if there is none."""
    first = outcomes[0]
    if case.kind == "malformed":
        if isinstance(first, Failure):
            is_expected = case.expected_error is None or case.expected_error in first.message
            return (
                "" if is_expected else f"expected an error with {case.expected_error!r}, got: {first.message}"
            )
        return (
            "" if first is None and case.expected_error is None else f"expected a failure, got reward {first}"
        )
    failed = next((one for one in outcomes if isinstance(one, Failure)), None)
    if failed is not None:
        return f"it failed: {failed.message}"
    if len(set(outcomes)) > 1:
        return f"the same call gave {', '.join(str(reward) for reward in outcomes)}"
    expected = case.expected_reward if case.expected_reward is not None else _DEFAULT_REWARD.get(case.kind)
    return "" if expected is None or first == expected else f"expected reward {expected:g}, got {first}"
