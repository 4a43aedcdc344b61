"""`rollforge check` on files: its JSON, its exit codes, its options, and a user's own check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.steps.check import check_run
from rollforge.testing import Shape, healthy_run, sick_run
from tests.builders import make_rollout, write_rows

KEYS = {"level", "id", "text", "value", "threshold", "n", "interval", "where", "next"}


def check(folder: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "rollforge", "check", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout or done.stderr


def record(folder: Path, *words: str) -> dict[str, Any]:
    code, text = check(folder, *words, "--json")
    found: dict[str, Any] = json.loads(text)
    assert found["exit_code"] == code
    return found


def zeros(folder: Path, tasks: int, samples: int) -> Path:
    rows = (
        make_rollout(task, sample, 0.0, text=f"a long answer number {sample} that ends in nothing of use")
        for task in range(tasks)
        for sample in range(samples)
    )
    return write_rows(folder / "rollouts.jsonl", rows)


def test_the_object_has_the_shape_that_pipelines_read(tmp_path: Path) -> None:
    healthy_run(Shape(tasks=80, samples=4), seed=4).write(tmp_path / "run")
    found = record(tmp_path, "run", "--for", "grpo")
    assert found["ok"] is True and found["exit_code"] == 0
    assert all(item.keys() >= KEYS for item in found["findings"])
    assert set(found["recipes"]) == {"sft", "dpo", "kto", "rm", "ppo", "grpo"}
    assert {item["verdict"] for item in found["recipes"].values()} <= {"ready", "not yet", "no"}
    assert found["recipes"]["grpo"]["verdict"] == "ready"
    assert found["thresholds"]["identical-rewards"]["min_rate"] == 0.01


def test_two_thousand_zeros_are_broken_verification_and_twenty_are_a_note(tmp_path: Path) -> None:
    zeros(tmp_path / "many", 250, 8)
    zeros(tmp_path / "few", 20, 1)
    many, few = record(tmp_path, "many"), record(tmp_path, "few")
    assert many["exit_code"] == 5 and few["exit_code"] == 0
    [note] = [item for item in few["findings"] if item["id"] == "identical-rewards"]
    assert note["level"] == "note"
    [error] = [item for item in many["findings"] if item["id"] == "identical-rewards"]
    assert (
        error["n"] == 2000
        and len(error["where"]) == 2000
        and {"task", "rollout", "line"} <= error["where"][0].keys()
    )
    assert all(verdict["verdict"] == "no" for verdict in many["recipes"].values())


def test_a_run_nobody_judged_is_too_incomplete_to_say(tmp_path: Path) -> None:
    write_rows(tmp_path / "rollouts.jsonl", (make_rollout(task, 0, None) for task in range(50)))
    assert check_run(tmp_path).exit_code == 3


def test_a_gate_that_fails_for_one_recipe_only(tmp_path: Path) -> None:
    rows = (
        make_rollout(task, 0, float(task % 2), text=f"answer {task} in some words") for task in range(300)
    )
    write_rows(tmp_path / "rollouts.jsonl", rows)
    assert check_run(tmp_path).exit_code == 0
    report = check_run(tmp_path, recipe="grpo")
    assert report.exit_code == 4 and not report.ok
    assert report.recipes["grpo"].verdict == "no" and report.recipes["sft"].verdict == "ready"


def test_the_level_that_fails_the_gate_can_be_chosen(tmp_path: Path) -> None:
    rows = (
        make_rollout(task, 0, float(task % 8 == 0), text=f"answer {task} in some words")
        for task in range(400)
    )
    write_rows(tmp_path / "rollouts.jsonl", rows)
    report = check_run(tmp_path)
    assert report.exit_code == 0 and "mean-too-low" in {item.id for item in report.at("warning")}
    assert check_run(tmp_path, fail_on="warning").exit_code == 4
    ids = tuple({item.id for item in report.at("warning")})
    assert check_run(tmp_path, fail_on="warning", ignore=ids).exit_code == 0
    settled = check_run(tmp_path, settings={"mean-too-low": {"min_mean": 0.05}})
    assert "mean-too-low" not in {item.id for item in settled.findings}
    assert settled.thresholds["mean-too-low"]["min_mean"] == 0.05


def test_an_unknown_check_or_option_is_told_with_the_nearest_one(tmp_path: Path) -> None:
    zeros(tmp_path, 5, 1)
    with pytest.raises(UsageError, match="identical-rewards"):
        check_run(tmp_path, ignore=("identical-reward",))
    with pytest.raises(UsageError, match="min_rate"):
        check_run(tmp_path, settings={"identical-rewards": {"min_rat": 1}})
    code, text = check(tmp_path, str(tmp_path), "--set", "identical-rewards=3")
    assert code == 2 and "not understood" in text


def test_limits_may_stand_in_a_config_file(tmp_path: Path) -> None:
    healthy_run(Shape(tasks=60, samples=4, mean=0.15), seed=4).write(tmp_path / "run")
    (tmp_path / "limits.toml").write_text("[check.limits.mean-too-low]\nmin_mean = 0.01\n")
    found = record(tmp_path, "run", "--config", "limits.toml")
    assert found["thresholds"]["mean-too-low"]["min_mean"] == 0.01
    assert "mean-too-low" not in {item["id"] for item in found["findings"]}


def test_a_check_of_ones_own_is_a_function_over_the_evidence(tmp_path: Path) -> None:
    zeros(tmp_path / "run", 5, 2)
    (tmp_path / "mine.py").write_text(
        "def too_many(run):\n"
        "    [count] = run.index.connection().execute('select count(*) from rollouts').fetchone()\n"
        "    return {'level': 'error', 'text': f'{count} rollouts in {run.groups} tasks'}\n"
        "def broken(run):\n"
        "    raise ValueError('oops')\n"
    )
    found = record(tmp_path, "run", "--check", "mine.py:too_many", "--check", "mine.py:broken")
    by_id = {item["id"]: item for item in found["findings"]}
    assert by_id["too-many"]["text"] == "10 rollouts in 5 tasks" and found["exit_code"] == 4
    assert "ValueError: oops" in by_id["broken"]["text"] and by_id["broken"]["level"] == "error"


def test_a_made_run_is_judged_the_same_on_disk_as_in_memory(tmp_path: Path) -> None:
    from rollforge.steps.check import CheckOptions, check_evidence

    for defect in ("breaks-halfway", "rewards-echoes", "seed-fixed", "two-modes"):
        run = sick_run(defect, seed=7, shape=Shape(tasks=150, samples=8))
        run.write(tmp_path / defect)
        in_memory = check_evidence(run.evidence(), CheckOptions())
        on_disk = check_run(tmp_path / defect)
        assert {item.id for item in on_disk.at("error")} == {item.id for item in in_memory.at("error")}, (
            defect
        )


def test_error_words_as_answers_are_found(tmp_path: Path) -> None:
    texts = [
        "ERROR",
        "FAILED",
        "Traceback (most recent call last):\n  x",
        '{"error": {"message": "overloaded"}}',
        "<html>502</html>",
    ]
    rows = [
        make_rollout(task, 0, float(task % 2), text=f"a fine answer, number {task}") for task in range(200)
    ]
    rows += [make_rollout(200 + place, 0, 0.0, text=text) for place, text in enumerate(texts * 3)]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    [finding] = [item for item in check_run(tmp_path).findings if item.id == "error-answers"]
    assert finding.level == "error" and len(finding.where) == 15


def test_nan_rewards_are_an_error_and_not_zero(tmp_path: Path) -> None:
    rows: list[Any] = [make_rollout(task, 0, float(task % 2), text=f"answer {task}") for task in range(100)]
    broken = json.dumps(make_rollout(100, 0, 1.0)).replace('"reward": 1.0', '"reward": NaN').encode()
    write_rows(tmp_path / "rollouts.jsonl", [*rows, broken])
    report = check_run(tmp_path)
    assert "non-finite-rewards" in {item.id for item in report.at("error")} and report.exit_code == 5
    assert report.counts.judged == 100


def test_a_declared_range_is_kept_to(tmp_path: Path) -> None:
    rewards = [0.0, 5.0, 10.0, 50.0] * 50
    write_rows(
        tmp_path / "rollouts.jsonl",
        (make_rollout(task, 0, reward, text=f"t{task}") for task, reward in enumerate(rewards)),
    )
    assert "extreme-rewards" in {item.id for item in check_run(tmp_path).findings}
    wide = {item.id for item in check_run(tmp_path, reward_range=(0, 100)).findings}
    narrow = check_run(tmp_path, reward_range=(0, 10))
    assert not {"extreme-rewards", "out-of-range"} & wide
    assert "out-of-range" in {item.id for item in narrow.at("error")}


def test_people_get_a_page_and_pull_requests_a_table(tmp_path: Path) -> None:
    zeros(tmp_path / "run", 250, 8)
    code, page = check(tmp_path, "run")
    assert code == 5 and "verification is judged broken" in page and "rollforge show run --limit 5" in page
    code, table = check(tmp_path, "run", "--markdown")
    assert code == 5 and "| error | `identical-rewards` |" in table and "| grpo | no |" in table


def test_a_reward_that_follows_the_form_is_told(tmp_path: Path) -> None:
    rows = [
        make_rollout(
            task,
            sample,
            float(sample % 2),
            text=f"some words {task}/{sample} " + ("**so** it is" if sample % 2 else "it is"),
        )
        for task in range(60)
        for sample in range(4)
    ]
    write_rows(tmp_path / "rollouts.jsonl", rows)
    findings = {item.id: item for item in check_run(tmp_path).findings}
    assert "bold text" in findings["format-bias"].text and findings["format-bias"].value == pytest.approx(1.0)


def test_a_condition_chooses_the_rollouts_that_are_looked_at(tmp_path: Path) -> None:
    good = [make_rollout(task, n, (task + n) % 2, agent="good") for task in range(200) for n in range(8)]
    stuck = [
        make_rollout(task, n, 0.0, agent="stuck") | {"odd": 1} for task in range(200, 400) for n in range(8)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", good + stuck)
    chosen = record(tmp_path, "run", "--where", "agent = 'good'")
    assert chosen["where"] == "agent = 'good'"
    assert (chosen["counts"]["rollouts"], chosen["counts"]["reward"]["mean"]) == (1600, 0.5)
    assert record(tmp_path, "run", "--where", "odd = 1")["exit_code"] == 5
    assert record(tmp_path, "run")["where"] is None
    _, text = check(tmp_path, "run", "--where", "agent = 'good'")
    assert "only rollouts where agent = 'good'" in text
    _, text = check(tmp_path, "run", "--where", "agent = 'good'", "--markdown")
    assert "only rollouts where `agent = 'good'`" in text


def test_what_a_condition_leaves_out_is_not_missed(tmp_path: Path) -> None:
    healthy_run(Shape(tasks=80, samples=4), seed=4).write(tmp_path / "run")
    found = record(tmp_path, "run", "--where", "task < 40")
    assert found["counts"]["expected"] is None and found["exit_code"] == 0
    nothing = record(tmp_path, "run", "--where", "task > 1000")
    assert nothing["exit_code"] == 3
    assert "no rollouts where task > 1000" in nothing["findings"][0]["text"]


def test_a_condition_on_an_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    zeros(tmp_path / "few", 20, 1)
    code, text = check(tmp_path, "few", "--where", "rewrad > 0")
    assert code == 2 and "did you mean 'reward'" in text


def test_two_runs_over_the_same_tasks_are_judged_side_by_side(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second"), 1):
        healthy_run(Shape(tasks=80, samples=4), seed=4).write(tmp_path / name)
        manifest = tmp_path / name / "rollouts_run.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"created": float(number)}))
    found = record(tmp_path, "first", "second", "--for", "grpo")
    alone = record(tmp_path, "first")["counts"]
    assert found["counts"]["rollouts"] == 2 * alone["rollouts"] and found["counts"]["expected"] == 640
    assert found["exit_code"] == 0
    assert "duplicate-rollouts" not in {item["id"] for item in found["findings"]}


def test_a_check_may_answer_in_numbers_of_numpy(tmp_path: Path) -> None:
    zeros(tmp_path / "run", 5, 2)
    (tmp_path / "mine.py").write_text(
        "def long(run):\n"
        "    return {'level': 'error', 'text': 'long', 'value': run.answer_chars.mean(), 'n': run.sizes.sum()}\n"
    )
    [found] = [
        item
        for item in record(tmp_path, "run", "--check", "mine.py:long")["findings"]
        if item["id"] == "long"
    ]
    assert found["level"] == "error" and found["n"] == 10 and found["value"] > 0


@pytest.mark.parametrize(
    "words", [["--reward-range", "1", "0"], ["--reward-range", "nan", "1"], ["--check", "mine.py:LIMIT"]]
)
def test_a_range_or_a_check_that_is_none_is_refused(words: list[str], tmp_path: Path) -> None:
    zeros(tmp_path / "run", 5, 2)
    (tmp_path / "mine.py").write_text("LIMIT = 3\n")
    code, text = check(tmp_path, "run", *words)
    assert code == 2 and "Traceback" not in text


def test_a_table_or_a_variable_that_is_misspelled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zeros(tmp_path / "run", 5, 2)
    (tmp_path / "limits.toml").write_text("[chek.limits.mean-too-low]\nmin_mean = 0.01\n")
    code, text = check(tmp_path, "run", "--config", "limits.toml")
    assert code == 2 and "did you mean 'check'" in text
    monkeypatch.setenv("ROLLFORGE_CHECK_FAILON", "warning")
    code, text = check(tmp_path, "run")
    assert code == 2 and "ROLLFORGE_CHECK_FAIL_ON" in text
