"""Experiences from a run on disk: the ledger, the file, the buffer, later verdicts."""

import json
import re
import shutil

import pytest

from rollforge.buffer import open_buffer
from rollforge.cli import main
from rollforge.errors import UsageError
from rollforge.steps.experiences import ExperienceOptions, make_experiences


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "math"
    folder.mkdir()
    lines = []
    for task in range(3):
        for rollout in range(4):
            reward = None if (task, rollout) == (0, 3) else float(rollout % 2 if task != 1 else 0)
            text = {"type": "output_text", "text": f"answer {task} {rollout}"}
            row = {
                "_ng_task_index": task,
                "_ng_rollout_index": rollout,
                "reward": reward,
                "accuracy": bool(reward),
                "responses_create_params": {"input": [{"role": "user", "content": "?", "type": "message"}]},
                "response": {
                    "status": "completed",
                    "model": "m",
                    "output": [{"type": "message", "role": "assistant", "content": [text]}],
                    "usage": {"output_tokens": 5},
                },
            }
            lines.append(json.dumps(row))
    (folder / "rollouts.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def pipeline(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('[[operator]]\nuse = "zero_signal_filter"\n\n[[operator]]\nuse = "group_advantages"\n')
    return path


def test_a_run_becomes_experiences_with_a_ledger(run, pipeline):
    result = make_experiences(ExperienceOptions(run=str(run), pipeline=str(pipeline), step_size=2))
    assert (result.rollouts, result.experiences, result.steps) == (12, 7, 2)
    assert [(row["in"], row["out"], row["dropped"]) for row in result.ledgers] == [
        (12, 8, {"zero_signal": 4}),
        (8, 7, {"unjudged": 1}),
    ]
    assert result.fidelity == {"text": 7}
    rows = [json.loads(line) for line in (run / "rollouts_experiences.jsonl").read_text().splitlines()]
    assert re.fullmatch(r"math-[0-9a-f]{8}/0/0", rows[0]["id"])
    assert rows[0]["metrics"]["accuracy"] == 0.0
    steps = [json.loads(line) for line in (run / "rollouts_metrics.jsonl").read_text().splitlines()]
    assert [step["metrics"]["experience_pipeline/zero_signal_filter/dropped"] for step in steps] == [4, 0]


def test_the_same_run_gives_the_same_bytes(run, pipeline, tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        make_experiences(ExperienceOptions(run=str(run), pipeline=str(pipeline), out=str(tmp_path / name)))
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def test_later_verdicts_count(run):
    verdict = {"_ng_task_index": 0, "_ng_rollout_index": 3, "verifier": "exact", "reward": 1.0, "at": 1.0}
    (run / "rollouts_verdicts.jsonl").write_text(json.dumps(verdict) + "\n")
    make_experiences(ExperienceOptions(run=str(run)))
    rows = [json.loads(line) for line in (run / "rollouts_experiences.jsonl").read_text().splitlines()]
    assert rows[3]["reward"] == 1.0


def test_the_verdict_of_a_named_verifier_brings_nothing_of_another(run):
    rows = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"length_ok": 1.0, "_rf": {"verifier": "mine", "fingerprint": "f1", "mode": "fast"}}
    (run / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdict = {
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
        "verifier": "other",
        "fingerprint": "f2",
        "at": 1.0,
    }
    (run / "rollouts_verdicts.jsonl").write_text(
        json.dumps(verdict | {"reward": 0.5, "accuracy": 0.25}) + "\n"
    )
    make_experiences(ExperienceOptions(run=str(run), verifier="other"))
    made = [json.loads(line) for line in (run / "rollouts_experiences.jsonl").read_text().splitlines()]
    assert (made[0]["reward"], made[0]["metrics"]) == (0.5, {"accuracy": 0.25})
    assert made[0]["info"] == {"verifier": "other", "fingerprint": "f2"}
    assert not {"reward", "metrics", "info"} & set(made[1])
    make_experiences(ExperienceOptions(run=str(run), verifier="mine"))
    made = [json.loads(line) for line in (run / "rollouts_experiences.jsonl").read_text().splitlines()]
    assert made[0]["metrics"] == {"accuracy": 0.0, "length_ok": 1.0}
    assert made[0]["info"]["verifier"] == "mine"


def test_a_second_time_the_buffer_takes_nothing_twice(run, tmp_path):
    place = str(tmp_path / "b.db")
    first = make_experiences(ExperienceOptions(run=str(run), buffer=place, where="reward is not null"))
    second = make_experiences(ExperienceOptions(run=str(run), buffer=place, where="reward is not null"))
    assert (first.experiences, first.duplicates, second.duplicates) == (11, 0, 11)

    with open_buffer(place) as buffer:
        assert len(buffer) == 11
    assert not (run / "rollouts_experiences.jsonl").exists()


def test_runs_in_folders_of_one_name_are_told_apart(run, tmp_path):
    place = str(tmp_path / "b.db")
    other = tmp_path / "other" / "math"
    shutil.copytree(run, other)
    results = [make_experiences(ExperienceOptions(run=str(each), buffer=place)) for each in (run, other)]
    assert [result.duplicates for result in results] == [0, 0]


def test_a_dry_run_writes_nothing(run, pipeline):
    before = sorted(path.name for path in run.iterdir())
    make_experiences(ExperienceOptions(run=str(run), pipeline=str(pipeline), dry_run=True))
    assert sorted(path.name for path in run.iterdir() if path.name != "rollouts_index") == before
    with pytest.raises(UsageError, match="step-size"):
        make_experiences(ExperienceOptions(run=str(run), step_size=0))


def test_the_command_prints_one_json_object(run, pipeline, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["experiences", str(run), "--pipeline", str(pipeline), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["experiences"] == 7


def test_the_command_names_a_missing_run(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["experiences", str(tmp_path / "nothing")])
    assert ended.value.code == 2
    assert "nothing" in capsys.readouterr().err


def test_a_password_in_a_buffers_url_is_refused_before_it_is_written_anywhere(run, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["experiences", str(run), "--buffer", "postgresql://me:hidden@db/x"])
    assert ended.value.code == 2
    output = capsys.readouterr().err
    assert "PGPASSWORD" in output
    assert "hidden" not in output
