"""Resuming a run: checks the fingerprint, repairs torn files, moves aside runs that cannot be resumed.

A run is resumed when its fingerprint matches, and refused, naming what differs, when it does not. A task file may grow: rows may
be appended, provided that the old rows give the same tasks. What is owed is counted by the ledger (`store/ledger.py`).
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from rollforge.errors import ResumeRefused, UsageError
from rollforge.records import OWN_KEY, PARAMS_KEY, JsonFields, JsonObject, from_json, to_json
from rollforge.steps.collect.collect_options import CollectOptions, verifier_name
from rollforge.store import UNREADABLE, Manifest, RunFiles, damaged_bytes, damaged_file, mend_tail
from rollforge.store.atomic import sync_directory
from rollforge.store.reading import lines_of
from rollforge.tasks import FieldMap, TaskSource

SUSPECT = "suspect"
"""The manifest's key for the window of rollouts that the detectors distrust."""
VERIFIER_SOURCE = "verifier_source"
GROWING = ("samples", "limit")
"""Keys of the fingerprint that may grow when a run is resumed."""

_IDENTIFYING = ("map", "commit", "split", "config")
"""Keys of a task set's origin that its rows depend on."""

COMPARE_BYTES = 1 << 20


def fingerprint_of_run(
    options: CollectOptions, source: TaskSource, verifier_fingerprint: str | None
) -> JsonFields:
    """Settings and digests that must not change when the run is resumed."""
    template = None
    if options.prompt_template:
        template = Path(
            _existing(
                options.prompt_template, "--prompt-template takes a YAML file with `user:` and `system:`"
            )
        ).read_bytes()
    fingerprint: JsonFields = {
        "input": source.digest,
        "model": options.model,
        "step": options.step,
        "samples": options.samples,
        "limit": options.limit,
        "shuffle": options.seed if options.shuffle else None,
        "prompt_template": hashlib.sha256(template).hexdigest()[:16] if template else None,
        "logprobs": options.logprobs,
        "skip_bad": options.skip_bad,
        "verifier": verifier_name(options.verifier),
        VERIFIER_SOURCE: verifier_fingerprint,
    }
    if source.choice is not None:
        fingerprint["input_commit"] = source.choice.commit
    if (mapping := FieldMap.parse(options.map)) is not None:
        fingerprint["map"] = mapping.text
    for name, origin in options.tasksets.items():
        chosen = {key: origin[key] for key in _IDENTIFYING if origin.get(key) is not None}
        fingerprint |= dict(_flat(f"tasksets.{name}", chosen))
    return fingerprint | dict(_flat(PARAMS_KEY, options.overrides))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}", item)
    else:
        yield prefix, value


def _existing(source: str, hint: str) -> str:
    if not Path(source).is_file():
        raise UsageError(f"{source}: no such file", hint=hint)
    return source


def refuse_foreign_rollouts(files: RunFiles, notes: list[str], *, is_rehearsal: bool) -> None:
    """Refuse to append to a file that rollforge did not write; move aside our own run if its manifest is lost."""
    if not files.rollouts.exists() or not files.rollouts.stat().st_size:
        return
    if not _is_ours(files.rollouts):
        raise UsageError(
            f"{files.rollouts} exists, but was not collected by rollforge",
            hint="choose another -o, or move it aside with --fresh",
        )
    if is_rehearsal:
        notes.append(f"{files.rollouts} has no manifest: it would be moved aside")
    else:
        target = move_aside(files)
        notes.append(f"the run that was here has no manifest and cannot be resumed; it was moved to {target}")


def has_not_begun(files: RunFiles, manifest: Manifest) -> bool:
    """Whether a run ended before its first attempt (its verifier could not start), so that no setting binds yet."""
    if manifest.config.get("write_batch") or files.is_sharded:
        return False
    written = (files.rollouts, files.failures, files.verdicts, files.calls, files.batches, files.batch_files)
    return not any(path.is_dir() or (path.exists() and path.stat().st_size) for path in written)


def _is_ours(path: Path) -> bool:
    """Whether the first readable row carries rollforge's own key."""
    for line in itertools.islice(lines_of(path), 100):
        try:
            row = from_json(line)
        except UNREADABLE:
            continue
        return isinstance(row, dict) and OWN_KEY in row
    return False


def mend(files: RunFiles) -> list[str]:
    """Cut off torn ends of the run's files; returns descriptions of the cuts, for the summary."""
    notes = []
    for path in (files.rollouts, files.failures):
        cut = mend_tail(path)
        if cut:
            notes.append(
                f"cut {damaged_bytes(cut)} off the end of {path.name}, now in {damaged_file(path).name}"
            )
    return notes


def refuse_changes(old: JsonObject, new: JsonObject, files: RunFiles) -> None:
    """Raise `ResumeRefused` unless both fingerprints agree; `samples` and `limit` may grow."""
    differing = []
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        may_grow = key in GROWING and before is not None and (now is None or now >= before)
        if before != now and not may_grow:
            differing.append((key, before, now))
    if differing:
        changes = "\n".join(
            f"  {key}: was {_short(before)}, is {_short(now)}" for key, before, now in differing
        )
        raise ResumeRefused(
            f"{files.rollouts} was collected with other settings; nothing was changed\n{changes}",
            keys=tuple(key for key, _, _ in differing),
            hint="use the old settings to resume, another -o for a new run, or --fresh to move the old run aside"
            + (
                "; to judge again with another verifier: rollforge verify"
                if any(key.startswith("verifier") for key, _, _ in differing)
                else ""
            ),
        )


def _short(value: Any) -> str:
    text = "not set" if value is None else to_json(value).decode()
    return text if len(text) <= 60 else text[:57] + "…"


def refuse_rewritten(
    files: RunFiles, old: Manifest | None, fingerprint: JsonFields, new_tasks: BinaryIO
) -> None:
    """Refuse a changed task file, unless the tasks sent so far are its first ones, that is, it has only grown."""
    if old is None or old.fingerprint.get("input") == fingerprint["input"]:
        return
    if not files.tasks.exists() or not _begins_with(new_tasks, files.tasks):
        refuse_changes(old.fingerprint, fingerprint, files)


def _begins_with(file: BinaryIO, prefix: Path) -> bool:
    file.seek(0)
    with prefix.open("rb") as wanted:
        while block := wanted.read(COMPARE_BYTES):
            if file.read(len(block)) != block:
                file.seek(0, os.SEEK_END)
                return False
    file.seek(0, os.SEEK_END)
    return True


def move_aside(files: RunFiles) -> Path | None:
    """Move the run's files into a new folder; nothing is deleted."""
    siblings = [files.rollouts, files.tasks, files.failures, files.verdicts, files.manifest, files.index]
    siblings += [files.reward_profiling, files.agent_metrics, files.aggregate_metrics]
    siblings += [files.metrics, files.experiences, files.evaluation, files.calls, files.artifacts]
    siblings += sorted(files.rollouts.parent.glob(f"{files.stem}_calls_*.jsonl"))
    siblings += [files.batches, files.batch_files]
    siblings += [damaged_file(files.rollouts), damaged_file(files.failures)]
    present = [path for path in siblings if path.exists() or path.is_symlink()]
    if not present:
        return None
    target = files.rollouts.parent / f"{files.stem}_{time.strftime('%Y%m%d-%H%M%S')}"
    while target.exists():
        target = target.with_name(target.name + "x")
    target.mkdir(parents=True)
    for path in present:
        path.rename(target / path.name)
    sync_directory(target)
    sync_directory(files.rollouts.parent)
    return target
