"""Checks a run on disk, with evidence from its index, its manifest and its other files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from rollforge.adaptive.design import stage_condition
from rollforge.checks.building_blocks.evidence import Evidence
from rollforge.checks.building_blocks.evidence_source import About, EvidenceSource, ProbeOutcome
from rollforge.checks.building_blocks.stream import SuspectWindow
from rollforge.index import Index, open_index
from rollforge.json_shapes import RowJson
from rollforge.review.labels import run_rates
from rollforge.runtime.typed_decoding import convert
from rollforge.statistics.stats import Floats
from rollforge.steps.check.other_verdicts import other_rewards
from rollforge.steps.check.readiness import CheckOptions, Report, check_evidence
from rollforge.store import Manifest, RunFiles, is_alive, read_manifest
from rollforge.store.failure_reasons import failures_by_verifier


def check_run(
    runs: str | Path | Sequence[str | Path] | Index,
    *,
    recipe: str | None = None,
    workers: int | None = None,
    **options: Any,
) -> Report:
    """Check a run, or several files as one, or an index that is already open; `options` are those of `CheckOptions`.

    Args:
        workers: threads that read the text; by default one per core for large files.
    """
    chosen = CheckOptions(recipe=recipe, **options)
    if isinstance(runs, Index):
        evidence = index_evidence(runs, chosen)
        return check_evidence(evidence, chosen, first_stage=_first_stage(runs, evidence, chosen))
    with open_index(runs, verifier=chosen.verifier, workers=workers) as index:
        pa.default_memory_pool().release_unused()  # release the build's memory before the columns need as much again
        evidence = index_evidence(index, chosen)
        return check_evidence(evidence, chosen, first_stage=_first_stage(index, evidence, chosen))


def _first_stage(index: Index, whole: Evidence, options: CheckOptions) -> Evidence | None:
    """The evidence of an adaptive run's first stage; None for a uniform run."""
    if index.first_stage is None:
        return None
    about = replace(whole.about, samples=index.design.first if index.design else None, expected=None)
    source = IndexSource(index, stage_condition(options.where, index.first_stage))
    return Evidence(source, about, places_limit=options.places_limit)


class IndexSource:
    """An index as evidence source: all its rollouts, or those that an expression selects."""

    def __init__(self, index: Index, where: str | None = None) -> None:
        self._index = index
        self._where = where

    @property
    def numbers(self) -> Sequence[str]:
        return self._index.numbers

    @property
    def whole_numbers(self) -> frozenset[str]:
        return self._index.whole_numbers

    @property
    def texts(self) -> Sequence[str]:
        return self._index.texts

    @property
    def task_texts(self) -> Sequence[str]:
        return self._index.columns("tasks")

    def table(self, columns: Sequence[str]) -> pa.Table:
        return self._index.table(columns, self._where, may_code=True)

    def task_table(self, columns: Sequence[str]) -> pa.Table:
        chosen = ", ".join(f'"{name}"' for name in columns)
        return self._index.select(f"SELECT {chosen} FROM tasks WHERE task IS NOT NULL")

    def read(self, rows: Sequence[int]) -> Iterator[bytes]:
        return self._index.read(rows)

    def task_rows(self, tasks: Sequence[int]) -> Iterator[tuple[int, RowJson]]:
        return self._index.task_rows(tasks)

    def other_rewards(self) -> Mapping[str, Floats]:
        if len(self._index.runs) != 1 or not self._index.runs[0].verdicts.is_file():
            return {}
        table = self.table(["task", "rollout", "verifier"])
        return other_rewards(self._index.runs[0].verdicts, table)

    def connection(self) -> Any:
        """A SQL connection for user-defined checks: `evidence.index.connection()`."""
        return self._index.connection()


def index_evidence(index: Index, options: CheckOptions) -> Evidence:
    """The evidence of an opened run."""
    manifests = [read_manifest(files) for files in index.runs]
    own_manifests = [manifest for manifest in manifests if manifest is not None]
    is_whole = len(own_manifests) == len(index.runs) and bool(own_manifests) and options.where is None
    per_task = [] if is_whole or options.where is not None else _rollouts_per_task(index)
    samples = {index.samples} if is_whole else set(per_task)
    lost = [] if is_whole or per_task or options.where is not None else index.failed_tasks()
    texts = {str(files.rollouts) for files in index.runs}
    about = About(
        name=" ".join(_run_name(files) for files in index.runs),
        runs=len(index.runs),
        model=next((str(item.config["model"]) for item in own_manifests if item.config.get("model")), None),
        expected=(index.expected if is_whole else sum(per_task) or (len(index) + len(lost) if lost else 0))
        or None,
        failed_tasks=lost,
        samples=samples.pop() if len(samples) == 1 else None,
        is_running=any(
            manifest is not None and manifest.state == "running" and is_alive(files, manifest)
            for files, manifest in zip(index.runs, manifests, strict=True)
        ),
        rejected_lines=index.rejected_lines,
        noted=[(bad.line, bad.reason) for bad in index.rejects if bad.is_kept and bad.file in texts],
        duplicates=index.duplicate_count,
        duplicate_locations=[
            {"task": item.task, "rollout": item.rollout, "line": item.line} for item in index.duplicates
        ],
        where=options.where,
        declared=options.reward_range or _declared(own_manifests, index.verifier),
        probe=next((outcome for item in own_manifests if (outcome := _probe(item)) is not None), None),
        is_collected=bool(own_manifests),
        open_programs=any(
            item.fingerprint.get("agent") == "program" and item.fingerprint.get("sandbox") == "off"
            for item in own_manifests
        ),
        logprobs=any(item.config.get("logprobs") is True for item in own_manifests),
        timed_out=_timed_out(index) if options.where is None else [],
        timeout_s=next((limit for item in own_manifests if (limit := _timeout(item)) is not None), None),
        verifier_failures=failures_by_verifier(index.runs, index.verifier),
        suspect=next(
            (window for item in own_manifests if (window := _suspect(item, index)) is not None), None
        ),
        labels=run_rates(index),
        design=next(iter(index.designs), None),
    )
    source: EvidenceSource = IndexSource(index, options.where)
    return Evidence(source, about, places_limit=options.places_limit)


def _suspect(manifest: Manifest, index: Index) -> SuspectWindow | None:
    """The window that `collect` marked; None if the manifest has none, an invalid one, or its verifier's verdicts no longer count."""
    if not manifest.extra.get("suspect"):
        return None
    source = manifest.extra.get("suspect_verifier")
    if source is not None and source not in set(index.table(["fingerprint"]).column(0).to_pylist()):
        return None  # judged again since
    try:
        return convert(manifest.extra["suspect"], SuspectWindow)
    except msgspec.ValidationError:
        return None


def _probe(manifest: Manifest) -> ProbeOutcome | None:
    """The last probe's result, or None."""
    if not manifest.extra.get("probe"):
        return None
    try:
        return convert(manifest.extra["probe"], ProbeOutcome)
    except msgspec.ValidationError:
        return None


def _timed_out(index: Index) -> list[int]:
    """The task of each attempt that timed out."""
    if not any(files.failures.exists() for files in index.runs):
        return []
    tasks = index.select("SELECT task FROM failures WHERE class = 'timeout' AND task IS NOT NULL ORDER BY 1")
    return [int(task) for task in tasks["task"].to_pylist()]


def _timeout(manifest: Manifest) -> float | None:
    """Timeout of one request in seconds."""
    limit = manifest.config.get("request_timeout_s")
    return float(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _rollouts_per_task(index: Index) -> list[int]:
    """Number of rollouts per task in NeMo Gym's materialized inputs; empty without them."""
    inputs = index.inputs_per_task()
    return [] if inputs is None else inputs[1].tolist()


def _declared(manifests: Sequence[Manifest], verifier: str | None) -> tuple[float, float] | None:
    """The range that the run's own verifier declared; None if another verifier's verdicts are checked."""
    if verifier is not None or len(manifests) != 1 or not manifests[0].extra.get("reward_range"):
        return None
    low, high = manifests[0].extra["reward_range"]
    return float(low), float(high)


def _run_name(files: RunFiles) -> str:
    """The name of a run in commands: its folder, if that is unambiguous."""
    return shlex.quote(
        str(files.rollouts.parent if files.rollouts.name == "rollouts.jsonl" else files.rollouts)
    )
