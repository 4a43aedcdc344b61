"""What only flags could say: metrics per step, shards and workers, probes, flips, another tool's numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollforge as rf
from rollforge.errors import UsageError
from rollforge.simulate import example_tasks


def rows(count: int) -> list[dict[str, Any]]:
    return [dict(row) for row in example_tasks(count, 0, "math")]


def always_right(task: rf.Task, response: rf.Response) -> float:
    return 1.0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rf.Run:
    out = tmp_path_factory.mktemp("twins") / "run"
    return rf.collect(rows(20), model="simulated", verifier="exact", k=4, out=out)


def command(folder: Path, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    return json.loads(done.stdout)


def test_a_collection_reports_its_steps_to_sinks_and_a_buffer(tmp_path: Path) -> None:
    done = rf.collect(
        rows(12),
        model="simulated",
        verifier="exact",
        k=2,
        out=tmp_path / "run",
        step_size=4,
        sink="console",
        metric_names="trinity-0.6",
        buffer=str(tmp_path / "buffer.db"),
        model_version=7,
    )
    steps = [json.loads(line) for line in done.files.metrics.read_text().splitlines()]
    assert sorted(step["step"] for step in steps) == [1, 2, 3]
    with pytest.raises(UsageError, match="read only with --step-size"):
        rf.collect(rows(2), model="simulated", out=tmp_path / "other", sink="console")
    assert not (tmp_path / "other").exists()
    assert (tmp_path / "buffer.db").exists()


def test_workers_and_shards_collect_the_same_rollouts_as_one_process(run: rf.Run, tmp_path: Path) -> None:
    asked: Any = {"model": "simulated", "verifier": "exact", "k": 4}
    spread = rf.collect(rows(20), out=tmp_path / "spread", workers=2, **asked)
    rf.collect(rows(20), out=tmp_path / "shards", shard="0/2", progress="none", strict=False, **asked)
    whole = rf.collect(rows(20), out=tmp_path / "shards", shard="1/2", **asked)
    for other in (spread, whole):
        assert other.metrics()["reward"].mean == run.metrics()["reward"].mean
        assert len(other.rollouts) == 80
    with pytest.raises(UsageError, match="one process"):
        rf.collect(rows(20), out=tmp_path / "spread", workers=2, step_size=4, **asked)


GROUP_VERIFIER = """
def verify_group(task, responses):
    longest = max(len(response.text) for response in responses)
    return [len(response.text) / longest for response in responses]
"""


def test_groups_of_a_collection_by_workers_are_judged_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "longest.py").write_text(GROUP_VERIFIER)
    verifier = f"{tmp_path / 'longest.py'}:verify_group"
    done = rf.collect(
        rows(6), model="simulated", verifier=verifier, k=3, out=tmp_path / "run", workers=2, progress="none"
    )
    assert done.metrics().counts.judged == 18


def test_verdicts_by_workers_are_those_of_one_process(run: rf.Run, tmp_path: Path) -> None:
    summary = run.verify("math", workers=2)
    assert (summary.state, summary.judged) == ("done", 80)
    again = run.verify("math")
    assert (again.already, again.judged) == (80, 80), "they are there already"
    table = run.diff("recorded", "math")
    assert table.n == 80 and table.agree + table.up + table.down + table.changed == 80


def test_a_probe_finds_a_verifier_that_passes_everything(run: rf.Run) -> None:
    assert run.probe(always_right, n=20).is_broken
    assert not run.probe("exact", n=20).is_broken


def test_the_verdicts_of_record_are_chosen_and_unchosen(run: rf.Run, tmp_path: Path) -> None:
    strange = run.verify(always_right)
    before = run.metrics()["reward"].mean
    run.use(strange.verifier)
    try:
        assert run.metrics()["reward"].mean == 1.0
    finally:
        run.use("recorded")
    assert run.metrics()["reward"].mean == before


def test_another_tools_numbers_and_files_are_those_of_the_command_line(run: rf.Run, tmp_path: Path) -> None:
    folder = run.path.parent
    assert run.compat("nemo-gym") == command(folder, "metrics", "run", "--compat", "nemo-gym")
    assert run.compat("trinity") == command(folder, "metrics", "run", "--compat", "trinity")
    with pytest.raises(UsageError, match="no tool 'verl'"):
        run.compat("verl")  # type: ignore[arg-type]
    command(folder, "profile", "run", "--out", str(tmp_path / "shell"), "--gym-files")
    run.write_profile(out=tmp_path / "python", gym_files=True)
    shell, python = (
        sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("shell", "python")
    )
    assert python == shell
    for name in shell:
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "shell" / name).read_bytes()


def test_two_runs_are_compared_in_pairs(run: rf.Run, tmp_path: Path) -> None:
    same = run.compare(run)
    assert (
        same.shared_tasks == 20 and "reward" in same.fields and (same.only_run, same.only_against) == (0, 0)
    )


def test_calls_of_a_run_without_programs_are_refused_with_the_reason(run: rf.Run) -> None:
    with pytest.raises(UsageError, match="no recorded calls"):
        run.calls()


def test_nothing_is_labelled_until_somebody_labels(run: rf.Run) -> None:
    assert run.labels() is None


def test_an_index_made_by_other_processes_is_used(tmp_path: Path) -> None:
    fresh = rf.collect(rows(8), model="simulated", verifier="exact", k=2, out=tmp_path / "run")
    fresh.index(workers=2)
    assert len(fresh.rollouts) == 16 and fresh.metrics()["reward"].mean is not None
