"""Every registered importer reads a log that its tool wrote: rewards as the tool gave them, missing ones null, failures apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollforge as rf
from rollforge.importers import IMPORTERS
from rollforge.steps.import_run import import_run
from tests.importers.test_importers import sample, write_log

LOGS = Path(__file__).parents[1] / "importers" / "logs"


def inspect_log(folder: Path) -> Path:
    """In the shape that inspect writes; tests/importers compares with its own reader where it is installed."""
    values = ["C", "I", None]
    return write_log(folder / "a.eval", [sample(n, epoch, values[n]) for n in range(3) for epoch in (1, 2)])


CASES = {
    "harbor": (lambda _: LOGS / "harbor", (4, 4, 2, 2), {0.5, 1.0}),
    "inspect": (inspect_log, (3, 4, 2, 0), {0.0, 1.0}),
    "verifiers": (lambda _: LOGS / "traces.jsonl", (3, 4, 2, 0), {0.25, 0.75}),
}
"""Importer → its log; tasks, judged, unjudged, failed; the rewards that the tool gave.

Harbor 0.24.0 and verifiers 0.4.0 wrote theirs themselves; tracebacks and paths are taken out."""


def test_every_importer_has_a_row_here() -> None:
    assert set(CASES) == set(IMPORTERS.names())


@pytest.mark.parametrize("kind", sorted(CASES))
def test_a_log_becomes_a_run_that_every_command_reads(tmp_path: Path, kind: str) -> None:
    log, counts, rewards = CASES[kind]
    made = import_run(kind, log(tmp_path), tmp_path / "run")
    assert (made.tasks, made.judged, made.unjudged, made.failed) == counts
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert {row["reward"] for row in rows} - {None} == rewards
    assert sum(row["reward"] is None for row in rows) == counts[2], "missing is null and never 0"
    assert all(row["responses_create_params"]["input"] and row["response"]["output"] for row in rows)
    groups = {}
    for row in rows:
        groups.setdefault(row["_ng_task_index"], []).append(row["_ng_rollout_index"])
    assert all(sorted(samples) == list(range(len(samples))) for samples in groups.values())
    run = rf.open_run(tmp_path / "run")
    assert run.metrics().fields["reward"].n == counts[1]
    assert run.check("sft").findings is not None
    again = import_run(kind, log(tmp_path), tmp_path / "again")
    assert (tmp_path / "again" / "rollouts.jsonl").read_bytes() == (
        tmp_path / "run" / "rollouts.jsonl"
    ).read_bytes()
    assert again.rollouts == made.rollouts
