"""Reads and writes `rollouts_verdicts.jsonl`: judged rollouts of a verifier, and rows of verdicts."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import msgspec

from rollforge import __version__
from rollforge.errors import Failure, UsageError
from rollforge.records import (
    FAILURE_KEY,
    RECORDED,
    ROLLOUT_KEY,
    TASK_KEY,
    TERMINAL_KEY,
    Index,
    JsonFields,
    Verdict,
    to_json,
)
from rollforge.registry import did_you_mean
from rollforge.rollouts import Rollout
from rollforge.runtime.typed_decoding import json_decoder
from rollforge.store import RunFiles, mend_tail, read_manifest, write_atomically
from rollforge.store.atomic import open_for_writing
from rollforge.store.lock import is_held
from rollforge.store.reading import UNREADABLE, bounded_lines, read_json
from rollforge.store.rollout_parts import parts_of
from rollforge.store.shipping import ship_lines
from rollforge.text_safety.outgoing import outgoing_bytes
from rollforge.verifiers.running.ready_verifier import RunningJudge

Key = tuple[int, int]
ROW_KEYS = ("verifier", "fingerprint", "mode", "at", "seconds", "shared", "error", "_rf")


class VerdictRow(msgspec.Struct, frozen=True):
    """The fields of a verdicts line that are read back."""

    verifier: str
    fingerprint: str | None = None
    mode: str | None = None
    reward: float | None = None
    error: str | None = None
    task: Index = msgspec.field(name=TASK_KEY, default=-1)
    rollout: Index = msgspec.field(name=ROLLOUT_KEY, default=-1)

    @property
    def key(self) -> Key:
        return self.task, self.rollout


def read_verdicts(path: Path) -> Iterator[tuple[VerdictRow, bytes]]:
    """Rows of a verdicts file in file order; invalid lines are skipped, so a torn verdict is owed again."""
    if not path.exists():
        return
    decode = json_decoder(VerdictRow, strict=False).decode
    with path.open("rb", buffering=1 << 20) as file:
        for line in bounded_lines(file):
            try:
                yield decode(line), line
            except UNREADABLE:
                continue


class KeySet:
    """A set of (task, rollout), stored as one bit mask per task."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: Key) -> bool:
        return bool(self._bits.get(key[0], 0) >> key[1] & 1)

    def add(self, key: Key) -> None:
        if key not in self:
            self._bits[key[0]] = self._bits.get(key[0], 0) | 1 << key[1]
            self._count += 1

    def remove(self, key: Key) -> None:
        if key in self:
            self._bits[key[0]] &= ~(1 << key[1])
            self._count -= 1


def verdict_line(rollout: Rollout, judge: RunningJudge, verdict: Verdict, **about: object) -> bytes:
    """Make the row of a verdict; a verifier's field with a reserved name is renamed to `verdict.NAME`."""
    fields = {
        f"verdict.{name}" if name in ROW_KEYS else name: value for name, value in verdict.to_fields().items()
    }
    row: JsonFields = {
        TASK_KEY: rollout.task,
        ROLLOUT_KEY: rollout.rollout,
        "verifier": judge.name,
        "fingerprint": judge.fingerprint,
        "mode": judge.mode,
        "at": time.time(),
        **about,
        **fields,
    }
    row.setdefault("error", None)
    return to_json(row)


def failure_line(rollout: Rollout, judge: RunningJudge, failure: Failure, seconds: float) -> bytes:
    """Make the failures-file row of a failed verdict."""
    return to_json(
        {
            TASK_KEY: rollout.task,
            ROLLOUT_KEY: rollout.rollout,
            FAILURE_KEY: failure.kind,
            TERMINAL_KEY: False,
            "class": failure.kind,
            "boundary": failure.boundary,
            "message": failure.message,
            "verifier": judge.name,
            "fingerprint": judge.fingerprint,
            "at": time.time(),
            "seconds": seconds,
            "response": None,
        }
    )


class FailureFile:
    """Appends failed verdicts to the run's failures file, to which a collecting process may append concurrently.

    Failures are also durable in the verdicts file, so these lines may be buffered.
    """

    def __init__(self, path: Path, lock: Path | None = None) -> None:
        self._path = path
        self._lock = lock
        """File lock of processes that append to this file."""
        self._lines: list[bytes] = []

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        if len(self._lines) >= 1000:
            self.flush()

    def flush(self) -> None:
        """Write buffered lines in a single append, so that lines of two processes do not mix."""
        if not self._lines:
            return
        if self._lock is None or not is_held(self._lock):
            mend_tail(self._path)  # no writer is in the middle of a line now
        data = outgoing_bytes(b"\n".join([*self._lines, b""]))
        self._lines.clear()
        handle = open_for_writing(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, data)
            os.fsync(handle)
        finally:
            os.close(handle)
        ship_lines(self._path, data)


def whose_count(
    files: RunFiles, run: str | Path, name: str, *, fingerprint: str, has_reward: bool
) -> list[str]:
    """Says whose verdicts later commands read after `name` judged, and how to change that; empty where it is the only one.

    Args:
        run: the run as the user calls it.
        fingerprint: the version of `name` that judged.
        has_reward: `name` gave a reward.
    """

    def use(verifier: str) -> str:
        return f"rollforge verify {shlex.quote(str(run))} --use {shlex.quote(verifier)}"

    change = f"; to read those of {name}: {use(name)}" if has_reward else ""
    manifest = read_manifest(files)
    of_record = manifest.verdict_of_record if manifest is not None else None
    if of_record not in (None, RECORDED):
        return [] if of_record == name else [f"later commands still read the verdicts of {of_record}{change}"]
    if of_record == RECORDED or _has_rewards_of_others(files, name):
        return [
            f"later commands still read the rewards in the rollouts file, and others only where it has none{change}"
        ]
    if (earlier := _own_fingerprint(files, name)) not in (None, fingerprint):
        versions = shlex.join([f"{name}@{earlier}", f"{name}@{fingerprint}"])
        return [
            f"another version of {name} had judged in the collection; its rewards no longer count where this one judged; "
            f"to go back: {use(RECORDED)}; to compare: rollforge verify {shlex.quote(str(run))} --diff {versions}"
        ]
    others = [other for other in _later_verifiers(files) if other != name]
    if not others:
        return []
    if not has_reward:
        return [f"{name} gave no reward: later commands still read the verdicts of {', '.join(others)}"]
    return [
        f"later commands read the verdicts of {name} from now on, and those of {', '.join(others)} where it gave no reward; "
        f"to go back: {use(others[-1])}"
    ]


def use_verifier(run: str | Path, name: str) -> Path:
    """Select the verifier whose verdicts later commands read, or the recorded ones; returns the manifest's path."""
    files = RunFiles(run)
    if not files.rollouts.exists() and not files.is_sharded:
        raise UsageError(f"{files.rollouts}: no such run", hint="give a run: a rollouts file, or its folder")
    if is_held(files.lock):
        raise UsageError(
            "the run is still being collected, and its manifest belongs to the collecting process",
            hint="wait for it to end, then choose",
        )
    verifier_names = known_verifiers(files)
    if name not in verifier_names and name != RECORDED:
        has_failed = any(row.verifier == name for row, _ in _later_rows(files))
        what = (
            f"{name!r} gave no reward in this run" if has_failed else f"no verdict in this run is by {name!r}"
        )
        raise UsageError(
            f"{what}{did_you_mean(name, verifier_names)}",
            hint=f"judged by: {', '.join(verifier_names) or 'nobody'}; first run: rollforge verify {run} --verifier {name}",
        )
    manifest: JsonFields = {"rollforge": __version__, "state": "done"}
    if files.manifest.exists():
        manifest = read_json(files.manifest, JsonFields, hint="restore the file, or move it aside")
    manifest["verdict_of_record"] = name
    write_atomically(files.manifest, msgspec.json.format(to_json(manifest), indent=2) + b"\n")
    return files.manifest


def add_note(files: RunFiles, note: str) -> None:
    """Add a message about how the run was judged to its manifest, unless a collecting process owns it."""
    if not files.manifest.exists() or is_held(files.lock):
        return
    manifest = read_json(files.manifest, JsonFields, hint="restore the file, or move it aside")
    notes = manifest.get("notes")
    earlier_notes = notes if isinstance(notes, list) else []
    if note not in earlier_notes:
        manifest["notes"] = [*earlier_notes, note]
        write_atomically(files.manifest, msgspec.json.format(to_json(manifest), indent=2) + b"\n")


class _Inline(msgspec.Struct):
    class _Own(msgspec.Struct):
        verifier: str | None = None
        fingerprint: str | None = None

    own: _Own | None = msgspec.field(name="_rf", default=None)
    reward: object = None


def known_verifiers(files: RunFiles) -> list[str]:
    """Names of all verifiers that gave a reward in the run; for inline verdicts the first rows are asked."""
    names = dict.fromkeys(_later_verifiers(files))
    names |= dict.fromkeys(row.own.verifier for row in _first_rows(files) if row.own and row.own.verifier)
    return list(names)


def default_verifier(files: RunFiles) -> str:
    """How `--use` names whose verdicts count without a choice: the run's own verifier if it judged again, else `recorded`."""
    own = (row.own.verifier for row in _first_rows(files) if row.reward is not None and row.own is not None)
    first = next((name for name in own if name), None)
    return first if first is not None and first in _later_verifiers(files) else RECORDED


def _later_verifiers(files: RunFiles) -> list[str]:
    """Names of the verifiers that gave a reward in a later verdict."""
    return list(dict.fromkeys(row.verifier for row, _ in _later_rows(files) if row.reward is not None))


def _later_rows(files: RunFiles) -> Iterator[tuple[VerdictRow, bytes]]:
    """The rows of all verdicts files of a run."""
    return chain.from_iterable(read_verdicts(part.path) for part in parts_of(files).verdicts)


def _own_fingerprint(files: RunFiles, name: str) -> str | None:
    """Fingerprint of the version of `name` that judged the first rollouts in the collection; None if it judged none."""
    own = (row.own for row in _first_rows(files) if row.reward is not None and row.own is not None)
    return next((one.fingerprint for one in own if one.verifier == name), None)


def _has_rewards_of_others(files: RunFiles, name: str) -> bool:
    """Whether one of the first rollouts has a reward that it did not get from this verifier."""
    return any(
        row.reward is not None and (row.own is None or row.own.verifier != name) for row in _first_rows(files)
    )


def _first_rows(files: RunFiles) -> Iterator[_Inline]:
    decode = json_decoder(_Inline, strict=False).decode
    for line in islice(chain.from_iterable(part.lines() for part in parts_of(files).rollouts), 1000):
        try:
            yield decode(line)
        except UNREADABLE:
            continue
