"""Reads the calls file: lists recorded attempts, and the calls of an attempt.

A torn line is ignored: its call was never answered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import cast

import msgspec

from rollforge.errors import Failure, FailureClass
from rollforge.proxy.calls import CallJson, RecordedCall, whole_inputs
from rollforge.records import ROLLOUT_KEY, TASK_KEY, Index, from_json
from rollforge.runtime.typed_decoding import json_decoder
from rollforge.store.reading import UNREADABLE, lines_of


class _Place(msgspec.Struct):
    session: str
    task: Index = msgspec.field(name=TASK_KEY)
    sample: Index = msgspec.field(name=ROLLOUT_KEY)
    at: float = 0.0


class RecordedAttempt(msgspec.Struct, kw_only=True):
    """One attempt at a rollout, according to the calls file."""

    session: str
    task: int
    sample: int
    started: float
    calls: int = 0


def recorded_attempts(paths: Iterable[Path]) -> list[RecordedAttempt]:
    """Every attempt with a call, in the order of their first calls, without texts."""
    attempts: dict[str, RecordedAttempt] = {}
    decode = json_decoder(_Place).decode
    for path in paths:
        for line in lines_of(path):
            try:
                origin = decode(line)
            except UNREADABLE:
                continue
            attempt = attempts.setdefault(
                origin.session,
                RecordedAttempt(
                    session=origin.session, task=origin.task, sample=origin.sample, started=origin.at
                ),
            )
            attempt.calls += 1
    return list(attempts.values())


def read_calls(paths: Iterable[Path], sessions: Collection[str]) -> dict[str, list[RecordedCall]]:
    """The calls of these attempts by session, in request order."""
    rows_by_session: dict[str, list[CallJson]] = {session: [] for session in sessions}
    for path in paths:
        for row in _rows(path):
            rows = rows_by_session.get(row.get("session", ""))
            if rows is not None:
                rows.append(row)
    return {
        session: sorted((_call(row) for row in whole_inputs(rows)), key=lambda call: call.number)
        for session, rows in rows_by_session.items()
    }


def _rows(path: Path) -> Iterator[CallJson]:
    for line in lines_of(path):
        try:
            row = from_json(line)
        except UNREADABLE:
            continue
        if isinstance(row, dict):
            yield cast("CallJson", row)


def _call(row: CallJson) -> RecordedCall:
    failure = row.get("failure")
    return RecordedCall(
        number=row["call"],
        api=row["api"],
        is_streamed=row["stream"],
        params=row["params"],
        response=row.get("response"),
        failure=None
        if not failure
        else Failure("model", cast("FailureClass", failure["class"]), failure["message"]),
        endpoint=row["endpoint"],
        requests=row["requests"],
        started=row["at"],
        seconds=row["seconds"],
    )
