"""What commands say about sides, purposes and pipes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollforge.cli import run
from rollforge.errors import Exit, GateFailed, UsageError
from rollforge.testing import Shape, healthy_run, sick_run
from tests.builders import make_rollout, write_rows

SHAPE = Shape(tasks=12, samples=4, unjudged=0.0, failed=0.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_show_example_says_which_side_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    healthy_run(SHAPE, seed=7).write("run")
    run("prepare dpo run -o data --to trl --force --progress none".split())  # noqa: SIM905
    capsys.readouterr()
    run(["show", "--example", "data/train.jsonl:1"])
    shown = capsys.readouterr().out
    assert shown.index("chosen · task") < shown.index("rejected · task")


def test_prepare_ignores_the_checks_it_is_told_to_and_records_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sick_run("error-texts", seed=7).write("run")
    with pytest.raises(GateFailed) as stopped:
        run("prepare ppo run -o data --to trl --progress none".split())  # noqa: SIM905
    assert "--ignore ID" in (stopped.value.hint or "")
    named = [line.strip().partition(":")[0] for line in str(stopped.value).splitlines()[1:]]
    words = [word for id in named for word in ("--ignore", id)]
    capsys.readouterr()
    assert run(["prepare", "ppo", "run", "-o", "data", "--to", "trl", "--json", *words]) == Exit.DONE
    assert json.loads(capsys.readouterr().out)["check"]["ignored"] == named


@pytest.mark.parametrize(
    "words",
    [
        "report run -o {}",
        "experiences run -o {}",
        "metrics run -o {}",
        "simulate --write-tasks {} -n 3",
        "collect -i tasks.jsonl -o other -m simulated --verifier exact --write-batch {}",
    ],
)
@pytest.mark.parametrize("name", ["rollouts", "rollouts_run"])
def test_no_output_is_written_over_a_file_of_a_run(words: str, name: str) -> None:
    healthy_run(SHAPE, seed=7).write("run")
    run("simulate --write-tasks tasks.jsonl -n 3".split())  # noqa: SIM905
    path = next(Path("run").glob(f"{name}.json*"))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is not written over"):
        run(words.format(path).split())
    assert path.read_bytes() == before


def test_the_last_line_of_check_agrees_with_the_table_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    healthy_run(SHAPE, seed=7).write("run")
    run("check run --for dpo".split())  # noqa: SIM905
    text = capsys.readouterr().out
    assert "dpo   not yet  thin-pairs" in text and "not yet fit for dpo" in text


def test_check_takes_several_purposes(capsys: pytest.CaptureFixture[str]) -> None:
    healthy_run(SHAPE, seed=7).write("run")
    run("check run --for sft --for dpo --json".split())  # noqa: SIM905
    assert json.loads(capsys.readouterr().out)["asked"] == ["sft", "dpo"]


def test_markdown_of_a_run_with_notes_only_names_the_notes(capsys: pytest.CaptureFixture[str]) -> None:
    healthy_run(SHAPE, seed=7).write("run")
    run(["check", "run", "--markdown"])
    text = capsys.readouterr().out
    assert "| error |" not in text and "| warning |" not in text
    assert "| note | `volume` |" in text


def test_a_list_in_a_pipe_has_one_line_per_member(capsys: pytest.CaptureFixture[str]) -> None:
    from rollforge.verifiers import VERIFIERS

    run(["list", "verifiers"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == VERIFIERS.names()
    assert not any("…" in line for line in lines)


def test_status_shows_control_characters_and_obeys_none(capsys: pytest.CaptureFixture[str]) -> None:
    healthy_run(SHAPE, seed=7).write("run")
    manifest = json.loads(Path("run/rollouts_run.json").read_text())
    manifest["state"] = "interrupted"
    manifest["command"] = ["rollforge", "collect", "\x1b[2Jboo"]
    Path("run/rollouts_run.json").write_text(json.dumps(manifest))
    run(["status", "run"])
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert "boo" in printed.out


def test_after_a_failed_probe_the_next_step_is_the_verifier(capsys: pytest.CaptureFixture[str]) -> None:
    Path("generous.py").write_text("def verify(task, response):\n    return 1.0\n")
    run("simulate --write-tasks tasks.jsonl -n 40 --seed 1".split())  # noqa: SIM905
    words = "collect -i tasks.jsonl -o run -m simulated --verifier generous.py:verify --probe 100% --stop-on never"
    assert run([*words.split(), "--progress", "none"]) == Exit.BROKEN_VERIFICATION
    said = capsys.readouterr().err
    assert "rollforge verify run --verifier generous.py:verify --probe" in said
    assert "rollforge profile" not in said, "a profile of these rewards would be believed"


def test_a_dataset_of_another_recipe_or_trainer_is_replaced_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    healthy_run(SHAPE, seed=7).write("run")
    words = "prepare {} run -o data --to {} --force --progress none"
    for recipe, to, said in (
        ("sft", "trl", ""),
        ("sft", "trl", ""),
        ("kto", "trl", "sft → trl"),
        ("kto", "chat", "kto → trl"),
    ):
        run(words.format(recipe, to).split())
        printed = " ".join(capsys.readouterr().err.split())
        assert ("data held a dataset for" in printed) == bool(said)
        assert said in printed


def test_a_line_or_a_file_that_a_dataset_does_not_have_is_answered_with_those_it_has() -> None:
    healthy_run(SHAPE, seed=7).write("run")
    run("prepare sft run -o data --to trl --force --progress none".split())  # noqa: SIM905
    count = len(Path("data/train.jsonl").read_text().splitlines())
    with pytest.raises(UsageError, match=rf"no line 9999: its lineage has {count} lines") as refused:
        run(["show", "--example", "data/train.jsonl:9999"])
    assert f"data/train.jsonl:{count}" in (refused.value.hint or "")
    with pytest.raises(UsageError, match="no such file") as refused:
        run(["show", "--example", "data/train.json:1"])
    assert refused.value.hint == "give data/train.jsonl"


VERIFIERS = """
def sound(task, response):
    return 0.75
def half(task, response):
    if {}:
        raise ValueError("odd")
    return 0.25
def none(task, response):
    raise KeyError("never")
"""


def test_status_counts_failures_by_verifier_and_metrics_flag_a_mean_over_two(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [make_rollout(task, sample, None) for task in range(12) for sample in range(4)]
    write_rows(Path("run/rollouts.jsonl"), rows)
    Path("run/rollouts_run.json").write_text(
        '{"rollforge": "1", "state": "done", "expected": 48, "finished": 48}'
    )

    def flags(*words: str) -> dict[str, str]:
        capsys.readouterr()
        run(["metrics", "run", *words, "--json"])
        return {flag["id"]: flag["text"] for flag in json.loads(capsys.readouterr().out)["flags"]}

    Path("mine.py").write_text(VERIFIERS.format("task.index % 2"))
    for name in ("sound", "half", "none"):
        run(["verify", "run", "--verifier", f"mine.py:{name}", "--progress", "none"])
    capsys.readouterr()
    run(["status", "run"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "the verifier mine.py:half failed 24 times: ValueError: odd" in shown
    assert "the verifier mine.py:none failed 48 times: KeyError" in shown
    assert "mixed-verifiers" not in flags(), "no task was judged by both"
    Path("mine.py").write_text(
        VERIFIERS.format("calls.pop()").replace("def half", "calls = [0, 1] * 99\ndef half")
    )
    words = "verify run --verifier mine.py:half --fresh --verify-workers 1 --progress none"
    run(words.split())
    text = flags()["mixed-verifiers"]
    assert text.startswith("rewards come from 2 verifiers: mine.py:") and "--verifier mine.py:" in text
    assert "mixed-verifiers" not in flags("--verifier", "mine.py:half")


def test_recorded_verdicts_are_promised_only_where_there_are_some(capsys: pytest.CaptureFixture[str]) -> None:
    healthy_run(SHAPE, seed=7).write("run")
    run(["verify", "run", "--use", "recorded"])
    assert "the newest later verdict where a rollout has none" in " ".join(capsys.readouterr().err.split())


def test_status_of_a_folder_names_the_runs_that_it_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    healthy_run(SHAPE, seed=7).write("runs/first")
    Path("runs/tasks.jsonl").write_text("{}\n")
    with pytest.raises(UsageError) as refused:
        run(["status", "runs"])
    assert refused.value.hint == "give one of the runs in it: runs/first"


def test_collect_and_verify_call_what_holds_them_back_by_one_name(capsys: pytest.CaptureFixture[str]) -> None:
    run("simulate --write-tasks tasks.jsonl -n 2 --seed 1".split())  # noqa: SIM905
    said = []
    for words in ("collect -i tasks.jsonl -o run -m simulated --no-verify", "verify run --verifier exact"):
        capsys.readouterr()
        run([*words.split(), "--progress", "none"])
        said.append(capsys.readouterr())
    for printed in said:
        labels = [
            line.split()[0] for line in (printed.out + printed.err).splitlines() if line.startswith("  ")
        ]
        assert "bottleneck" in labels and "limit" not in labels
