"""`rollforge prepare` on the command line: exit codes, what goes to stdout, what the summary says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.cli import main
from tests.builders import make_rollout, write_rows
from tests.prepare_runs import mixed_run, read_lines


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_run(tmp_path_factory.mktemp("run"))


def rollforge(*words: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    assert isinstance(left.value.code, int)
    return left.value.code


def test_json_is_the_manifest_and_nothing_else(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = rollforge(
        "prepare",
        "dpo",
        run,
        "-o",
        tmp_path / "data",
        "--to",
        "trl",
        "--split",
        "0.8/0.2",
        "--json",
        "--force",
    )
    printed = json.loads(capsys.readouterr().out)
    assert code == 0
    assert printed == json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert printed["check"]["forced"] is True and list(printed["splits"]) == ["train", "validation"]


def test_the_summary_shows_the_funnel_gaps_and_red_flags(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        rollforge(
            "prepare", "dpo", run, "-o", tmp_path / "data", "--to", "trl", "--progress", "none", "--force"
        )
        == 0
    )
    output = capsys.readouterr().err
    for part in (
        "144 rollouts of 24 tasks",
        "gaps    mean",
        "≥ 0.3:",
        "only ",
        "few-examples",
        "rollforge show --example",
    ):
        assert part in output


def test_a_dry_run_prints_counts_at_other_thresholds(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollforge("prepare", "sft", run, "--to", "verl", "--dry-run", "--band", "0-1") == 0
    output = capsys.readouterr().err
    assert "at min_reward 0.9" in output and "nothing was written" in output


def test_a_dry_run_counts_no_example_as_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("prepare", "sft", run, "--to", "trl", "--dry-run", "--min-reward", "0.5")
    assert rollforge(*words, "--json") == 0
    examples = json.loads(capsys.readouterr().out)["counts"]["examples"]
    assert examples == {
        "planned": examples["planned"],
        "not written (dry run)": examples["planned"],
        "written": 0,
    }
    assert rollforge(*words) == 0
    assert f"\n{examples['planned']} examples\n" in capsys.readouterr().err


def test_the_summary_names_lines_that_are_in_no_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_rollout(task, 0, 1.0) for task in (0, 1, 2, 0)]
    path = write_rows(tmp_path / "run" / "rollouts.jsonl", rows)
    path.write_text(path.read_text() + "[1, 2]\n{broken\n")
    words = ("prepare", "sft", path.parent, "-o", tmp_path / "data", "--to", "trl", "--force")
    assert rollforge(*words) == 0
    output = capsys.readouterr().err
    assert "3 rollouts of 3 tasks" in output
    assert "2  lines are no rollouts" in output and "1  rows are not counted here" in output


def test_answers_that_look_like_errors_can_be_kept_and_the_summary_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "<!DOCTYPE html>\n<html><body><h1>Hello</h1></body></html>"
    rows = [make_rollout(0, 0, 1.0, text=page), make_rollout(1, 0, 1.0)]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    words = ("prepare", "sft", run, "-o", tmp_path / "data", "--to", "trl", "--force")
    assert rollforge(*words) == 0
    assert "1  error text as answer (--keep-error-text keeps them)" in capsys.readouterr().err
    assert rollforge(*words, "--keep-error-text") == 0
    assert page in [row["completion"][-1]["content"] for row in read_lines(tmp_path / "data" / "train.jsonl")]


def test_from_makes_the_same_bytes_again(run: Path, tmp_path: Path) -> None:
    assert (
        rollforge(
            "prepare",
            "kto",
            run,
            "-o",
            tmp_path / "a",
            "--to",
            "trl",
            "--high",
            "0.6",
            "--low",
            "0.3",
            "--force",
        )
        == 0
    )
    assert rollforge("prepare", "--from", tmp_path / "a" / "manifest.json", "-o", tmp_path / "b") == 0
    assert (tmp_path / "a" / "train.jsonl").read_bytes() == (tmp_path / "b" / "train.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["prepare"], "needs a recipe"),
        (["prepare", "sft", "RUN"], "--to"),
        (["prepare", "sft", "RUN", "--to", "trll"], "did you mean 'trl'"),
        (["prepare", "sftt", "RUN", "--to", "trl"], "did you mean 'sft'"),
        (["prepare", "sft", "RUN", "--to", "trl"], "-o DIR"),
        (["prepare", "kto", "RUN", "--to", "verl", "-o", "x"], "it takes sft, rm, ppo, grpo"),
        (["prepare", "sft", "RUN", "--to", "trl", "-o", "x", "--split", "many"], "--split"),
        (
            ["prepare", "sft", "RUN", "--to", "trl", "-o", "x", "--split", "0.9/0.2"],
            "the shares sum to 1.1, not 1",
        ),
        (["prepare", "sft", "nowhere", "--to", "trl", "-o", "x"], "nowhere"),
    ],
)
def test_a_mistake_is_told_with_what_to_do_and_exits_2(
    words: list[str],
    expected: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert rollforge(*[str(run) if word == "RUN" else word for word in words]) == 2
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_recipes_and_exporters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for family, name in (("recipes", "kto"), ("exporters", "llama-factory")):
        with pytest.raises(SystemExit):
            main(["list", family])
        assert name in capsys.readouterr().out


def test_the_summary_names_the_threshold_that_nobody_typed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("prepare", "sft", run, "-o", tmp_path / "data", "--to", "trl", "--progress", "none", "--force")
    assert rollforge(*words) == 0
    assert "below threshold (--min-reward 0.95)" in capsys.readouterr().err


def test_ignore_overrules_one_check_and_the_manifest_records_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        make_rollout(task, sample, 0.0, text=f"{task} {sample}") for task in range(40) for sample in range(4)
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    words = ("prepare", "ppo", run, "-o", tmp_path / "data", "--to", "chat")
    assert rollforge(*words) != 0
    shown = capsys.readouterr().err.splitlines()
    errors = [line.split(":")[0].strip() for line in shown if line.startswith("  ppo-")]
    assert errors
    ignored = [word for name in errors for word in ("--ignore", name)]
    assert rollforge(*words, *ignored, "--ignore", "bad-lines") == 0
    output = capsys.readouterr().err
    assert f"--ignore {errors[0]}: its findings were overruled" in output
    saved = json.loads((tmp_path / "data" / "manifest.json").read_text())["check"]
    assert saved["ignored"] == [*errors, "bad-lines"]
    assert rollforge(*words, "--ignore", "ppo-succes-rate") == 2


def test_a_condition_is_named_by_its_own_flag(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag in ("--where", "--chosen-where", "--rejected-where"):
        code = rollforge(
            "prepare", "dpo", run, "-o", tmp_path / "data", "--to", "trl", "--force", flag, "nope = 1"
        )
        assert code == 2
        assert capsys.readouterr().err.startswith(f"error: {flag} 'nope = 1': there is no column 'nope'")
