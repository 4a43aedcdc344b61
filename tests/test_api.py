"""The Python door: collect, read, check, prepare, each one call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollforge as rf
from rollforge.errors import GateFailed
from rollforge.simulate import example_tasks
from tests.builders import make_rollout, write_rows


def length_verifier(task: rf.Task, response: rf.Response) -> dict[str, float]:
    return {
        "reward": float(str(task["expected_answer"]) in response.text),
        "words": len(response.text.split()),
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rf.Run:
    folder = tmp_path_factory.mktemp("api")
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(150, 0, "math")))
    return rf.collect(tasks, model="simulated", verifier=length_verifier, samples=8, out=folder / "run")


def test_collect_takes_a_function_and_returns_the_run(run: rf.Run) -> None:
    assert run.result is not None and run.result.ending == "done"
    assert sum(1 for _ in run) == 1200


def test_every_number_of_the_verifier_is_a_metric(run: rf.Run) -> None:
    fields = run.metrics().fields
    assert fields["reward"].n == fields["words"].n == 1200
    assert 0 < fields["reward"].mean < 1


def test_the_profile_is_a_table_per_task(run: rf.Run) -> None:
    assert run.profile().tasks.num_rows == 150


def test_check_says_whether_it_is_fit(run: rf.Run) -> None:
    report = run.check("grpo")
    assert report.ok, report.findings


def test_prepare_writes_what_was_asked_and_the_gate_stops_what_is_not_fit(
    run: rf.Run, tmp_path: Path
) -> None:
    manifest = run.prepare("dpo", to="trl", out=tmp_path / "dpo", min_gap=0.3)
    assert manifest.counts["examples"]["written"] > 0
    zero = tmp_path / "zero" / "rollouts.jsonl"
    zero.parent.mkdir()
    zero.write_text("".join(json.dumps(row | {"reward": 0.0}) + "\n" for row in run))
    with pytest.raises(GateFailed, match="identical-rewards"):
        rf.open_run(zero.parent).prepare("dpo", to="trl", out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_status_tells_how_far_it_is(run: rf.Run) -> None:
    assert run.status().state == "done"


def test_several_files_open_as_one_run_and_take_the_options_of_the_commands(tmp_path: Path) -> None:
    for number in range(2):
        row = {"_ng_task_index": 0, "_ng_rollout_index": number, "reward": float(number), "prompt": "p"}
        (tmp_path / f"{number}.jsonl").write_text(json.dumps(row) + "\n")
    for given in ([tmp_path / "0.jsonl", tmp_path / "1.jsonl"], str(tmp_path / "*.jsonl")):
        both = rf.open_run(given)
        assert both.metrics().counts.finished == 2 and len(list(both)) == 2
        assert both.metrics(where="reward > 0").counts.finished == 1
        assert both.profile(threshold=2).tasks.column("num_solved").to_pylist() == [0]


def test_a_misspelt_option_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    write_rows(tmp_path / "rollouts.jsonl", [make_rollout()])
    run = rf.open_run(tmp_path)
    with pytest.raises(rf.RollforgeError, match="did you mean 'threshold'"):
        run.metrics(treshold=1)
    with pytest.raises(rf.RollforgeError, match="did you mean 'tolerance'"):
        run.profile(tolerence=1)
    with pytest.raises(rf.RollforgeError, match="did you mean 'min_gap'"):
        run.prepare("dpo", to="trl", out=tmp_path / "data", mingap=1, force=True)


def test_a_traceback_says_what_to_do_next(tmp_path: Path) -> None:
    with pytest.raises(rf.RollforgeError) as raised:
        rf.open_run(tmp_path / "nothing").metrics()
    assert raised.value.__notes__ == [f"next: {raised.value.hint}"]
