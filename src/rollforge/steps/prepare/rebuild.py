"""Rebuilds the dataset of a manifest from the same inputs, and compares the result with the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollforge.errors import UsageError
from rollforge.steps.prepare.dataset_manifest import (
    CheckRecord,
    DatasetManifest,
    find_run,
    read_manifest,
    refuse_changed_inputs,
    runs_of,
)
from rollforge.steps.prepare.pipeline import prepare, silent
from rollforge.steps.prepare.write_rows import ContractBroken, Progress


def prepare_again(
    manifest: str | Path,
    *,
    out: str | Path,
    runs: Sequence[str] = (),
    check: CheckRecord | None = None,
    progress: Progress = silent,
) -> DatasetManifest:
    """Rebuild the dataset of a manifest; raises if an input has changed or a byte differs.

    Args:
        runs: the current paths of the manifest's runs, in its order, if they were moved.
    """
    before = read_manifest(manifest)
    named = runs_of(before)
    if runs and len(runs) != len(named):
        raise UsageError(f"{manifest} names {len(named)} runs, {len(runs)} were given", hint=", ".join(named))
    runs = list(runs) or [find_run(name, Path(manifest)) for name in named]
    refuse_changed_inputs(before, runs)
    options = msgspec.to_builtins(before.options)
    again = prepare(
        before.recipe, runs, to=before.to, out=out, check=check or before.check, progress=progress, **options
    )
    differing = [a.path for a, b in zip(before.files, again.files, strict=False) if a != b]
    if differing or len(before.files) != len(again.files):
        changed = [
            f"{k} {v} → {again.versions.get(k)}"
            for k, v in before.versions.items()
            if again.versions.get(k) != v
        ]
        raise ContractBroken(
            f"made again, {', '.join(differing) or 'the files'} came out different",
            hint=f"versions that changed: {', '.join(changed) or 'none'}",
        )
    return again
