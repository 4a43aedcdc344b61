"""The part of a run's manifest that is needed for reading it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from rollforge.adaptive.design import SamplingDesign, read_design
from rollforge.index.schema import literal
from rollforge.store import RunFiles, read_json


class RunFacts(NamedTuple):
    """Facts from a run's manifest; None if rollforge did not collect the run."""

    created: float | None = None
    expected: int | None = None
    samples: int | None = None
    verifier: str | None = None
    """The verdict of record."""
    input_digest: str | None = None
    design: SamplingDesign | None = None
    """The sampling design, if it is not uniform."""


def run_facts(files: RunFiles) -> RunFacts:
    """Facts from the manifest; values of an unexpected type count as missing, since another tool may have written it."""
    try:
        manifest = read_json(files.manifest, hint="delete it to read the rollouts alone")
    except FileNotFoundError:
        return RunFacts()
    if not isinstance(manifest, dict):
        return RunFacts()
    extra = manifest.get("extra")
    design = read_design(extra) if isinstance(extra, dict) else None
    created, verifier, input_facts = (
        manifest.get(name) for name in ("created", "verdict_of_record", "input")
    )
    return RunFacts(
        created=created if isinstance(created, int | float) and created else None,
        expected=_whole(manifest.get("expected")),
        samples=None if design is not None else _whole(manifest.get("samples")),
        verifier=str(verifier) if verifier else None,
        input_digest=str(input_facts.get("digest")) if isinstance(input_facts, dict) else None,
        design=design,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None


def run_numbers(facts: Sequence[RunFacts]) -> list[int]:
    """Run number of each file: files of one collection share a run, and so do all files without a manifest."""
    created = [one.created for one in facts]
    return [created.index(one) if one else 0 for one in created]


def per_run(facts: Sequence[RunFacts], name: Literal["expected", "samples"]) -> list[int]:
    """A number from each run's manifest, counted once per run; empty if a file has no such number."""
    by_run: dict[int, int] = {}
    for run, one in zip(run_numbers(facts), facts, strict=True):
        number = one.expected if name == "expected" else one.samples
        if number is None:
            return []
        by_run.setdefault(run, number)
    return [*by_run.values()]


def samples_per_task(facts: Sequence[RunFacts], *, has_shifts: bool) -> int | None:
    """Rollouts requested per task; with shifts, runs of the same tasks are combined and their samples add up."""
    samples = per_run(facts, "samples")
    if not has_shifts:
        return samples[0] if len(set(samples)) == 1 else None
    inputs = {one.input_digest for one in facts}
    return (sum(samples) or None) if len(inputs) == 1 else None


def first_stages(facts: Sequence[RunFacts], files: Sequence[Path], shifts: Mapping[int, int]) -> str | None:
    """SQL condition for each run's first-stage rollouts; None without an adaptive run, or if a run has several files."""
    if not any(one.design for one in facts) or len(files) != len(facts):
        return None
    return " and ".join(
        f"not (file = {literal(str(file))} and rollout >= {one.design.first + shifts.get(number, 0)})"
        for number, (file, one) in enumerate(zip(files, facts, strict=True))
        if one.design is not None
    )
