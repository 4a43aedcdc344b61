"""`rollforge verify` and `rollforge init` as a user meets them: exit codes, stdout, messages."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollforge.cli import main
from rollforge.errors import UsageError
from rollforge.registry import load_target
from tests.builders import make_rollout, write_rows


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


def call_json(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = call(*words, "--json")
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def run(tmp_path: Path) -> str:
    """Thirty tasks of two samples, the first of them right."""
    prompts = [f"What is {index}+{1000 + index}?" for index in range(30)]
    rollouts = [
        make_rollout(index, sample, None, text=f"\\boxed{{{1000 + 2 * index + sample}}}", prompt=prompt)
        for index, prompt in enumerate(prompts)
        for sample in range(2)
    ]
    tasks = [
        {
            "_ng_task_index": index,
            "responses_create_params": {"input": [{"role": "user", "content": prompt}]},
            "expected_answer": str(1000 + 2 * index),
        }
        for index, prompt in enumerate(prompts)
    ]
    write_rows(tmp_path / "run" / "rollouts.jsonl", rollouts)
    write_rows(tmp_path / "run" / "rollouts_tasks.jsonl", tasks)
    return str(tmp_path / "run")


def write(path: Path, body: str) -> str:
    path.write_text(f"def verify(task, response):\n    {body}\n")
    return f"{path}:verify"


def test_a_complete_verification_exits_0_and_says_what_the_mean_is_over(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, summary = call_json(capsys, "verify", run, "--verifier", "exact")
    assert code == summary["exit_code"] == 0
    assert summary["counts"]["judged"] == 60
    assert (summary["reward"]["mean"], summary["reward"]["n"], summary["coverage"]) == (0.5, 60, 1.0)
    assert call("verify", run, "--verifier", "exact", "--progress", "none") == 0
    said = capsys.readouterr().out
    assert "0.500 [" in said and "over 60 verdicts of 30 tasks" in said


def test_failed_verdicts_exit_3_and_name_the_next_command(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = write(tmp_path / "sometimes.py", "return 1 / (task['_ng_task_index'] % 3)")
    assert call("verify", run, "--verifier", name, "--verify-workers", "0", "--progress", "none") == 3
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert f"rollforge verify {run} --verifier {name} --failed-only" in said


def test_a_verdict_that_failed_is_no_failed_attempt_of_a_dataset(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("verify", run, "--verifier", "exact", "--progress", "none") == 0
    name = write(tmp_path / "broken.py", "raise ValueError('no')")
    assert call("verify", run, "--verifier", name, "--verify-workers", "0", "--progress", "none") == 3
    capsys.readouterr()
    out = str(tmp_path / "data")
    code, manifest = call_json(
        capsys, "prepare", "sft", run, "-o", out, "--to", "trl", "--verifier", "exact", "--force"
    )
    assert code == 0 and manifest["counts"]["failed_attempts"] == 0


def test_the_next_command_carries_the_verifier_s_options(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "demanding.py"
    path.write_text("def verify(task, response, *, rubric, weights):\n    raise ValueError(rubric)\n")
    given = ["-S", "rubric=be kind", "-S", "weights=[1, 2]"]
    assert call("verify", run, "--verifier", f"{path}:verify", *given, "--progress", "none") == 3
    said = capsys.readouterr().err
    (command,) = [
        line.partition("; then: ")[2] for line in said.splitlines() if "next: all failed alike" in line
    ]
    words = shlex.split(command)
    assert words[-5:] == ["-S", "rubric=be kind", "-S", "weights=[1,2]", "--failed-only"]
    assert call(*words[1:], "--progress", "none") == 3


def test_the_hit_rate_of_the_cache_is_shown(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("verify", run, "--verifier", "exact", "--cache", str(tmp_path / "cache"), "--fresh")
    assert call_json(capsys, *words)[1]["cache"]["cache_hits"] == 0
    again = call_json(capsys, *words)[1]["cache"]
    assert (again["cache_hits"], again["calls"], again["hit_rate"]) == (60, 0, 1.0)


def test_diff_and_use(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lenient = write(tmp_path / "lenient.py", "return 1")
    for name in ("exact", lenient):
        call("verify", run, "--verifier", name, "--verify-workers", "0", "--progress", "none")
    capsys.readouterr()
    code, table = call_json(capsys, "verify", run, "--diff", "exact", lenient)
    assert code == 0
    assert (table["agree"], table["flips"]) == (30, {"0->1": 30, "1->0": 0, "changed": 0})
    assert table["difference"]["mean"] == 0.5
    assert call("verify", run, "--diff", "exact", lenient) == 0
    assert "0→1 (only B passes it)" in capsys.readouterr().out
    assert call("verify", run, "--use", lenient) == 0
    assert json.loads(Path(run, "rollouts_run.json").read_text())["verdict_of_record"] == lenient


def test_a_failed_verifier_takes_no_reward_away_and_verify_says_whose_verdicts_count(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def metrics(*words: str) -> tuple[int, float | None]:
        found = call_json(capsys, "metrics", run, *words)[1]
        return found["counts"]["judged"], found["fields"]["reward"]["mean"]

    def notes(name: str) -> str:
        words = ("verify", run, "--verifier", name, "--verify-workers", "0")
        return "\n".join(call_json(capsys, *words)[1]["notes"])

    assert notes("exact") == ""
    assert metrics() == (60, 0.5)
    broken = write(tmp_path / "broken.py", "raise ValueError('no')")
    assert notes(broken) == f"{broken} gave no reward: later commands still read the verdicts of exact"
    assert metrics() == (60, 0.5)
    assert call("check", run, "--for", "sft", "--verifier", "exact") == 0
    assert "the verifier" not in capsys.readouterr().out
    picky = write(tmp_path / "picky.py", "return 1 if task['_ng_task_index'] < 6 else 1 / 0")
    said = notes(picky)
    assert "where it gave no reward" in said and said.endswith(f"rollforge verify {run} --use exact")
    assert metrics() == (60, (12 + 24) / 60)
    assert call(*shlex.split(said.rpartition("to go back: rollforge ")[2])) == 0
    assert f"to go back: rollforge verify {run} --use recorded" in capsys.readouterr().err
    assert metrics() == (60, 0.5)
    assert notes(picky) == (
        f"later commands still read the verdicts of exact; to read those of {picky}: "
        f"rollforge verify {run} --use {picky}"
    )
    assert call("verify", run, "--use", broken) == 2
    assert f"'{broken}' gave no reward in this run" in capsys.readouterr().err
    assert call("verify", run, "--use", "recorded") == 0
    assert metrics("--verifier", picky) == (12, 1.0)
    capsys.readouterr()
    assert call("profile", run, "--verifier", picky, "--out", str(tmp_path / "profile")) == 0
    assert f"the verifier {picky} failed 96 times" in capsys.readouterr().err


def test_a_broken_verifier_exits_5_with_reasons_and_examples(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = write(tmp_path / "generous.py", "return 1")
    code, report = call_json(capsys, "verify", run, "--verifier", broken, "--probe", "--verify-workers", "0")
    assert code == report["exit_code"] == 5
    assert report["reasons"]
    assert report["false_positive"]["rate"] == 1.0
    assert call("verify", run, "--verifier", "exact", "--probe") == 0
    said = capsys.readouterr().out
    assert "Does the right answer pass" in said and "nothing here says that it is broken" in said


def test_a_task_file_is_enough_for_probes(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = str(Path(run) / "rollouts_tasks.jsonl")
    code, report = call_json(capsys, "verify", "--input", tasks, "--verifier", "exact", "--probe", "-n", "10")
    assert code == 0
    assert report["tasks"] == 10


def test_probing_leaves_no_verdict_behind(run: str) -> None:
    before = sorted(Path(run).iterdir())
    call("verify", run, "--verifier", "exact", "--probe")
    assert sorted(Path(run).iterdir()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify"], "which run?"),
        (["verify", "RUN"], "which verifier?"),
        (["verify", "RUN", "--verifier", "exat"], "did you mean 'exact'"),
        (["verify", "nowhere", "--verifier", "exact"], "no such run"),
        (["verify", "RUN", "--verifier", "exact", "--fast"], "no fast mode"),
        (["verify", "RUN", "--verifier", "exact", "-S", "ignore_cas=true"], "did you mean 'ignore_case'"),
        (["verify", "RUN", "--verifier", "exact", "--verify-workers", "some"], "--verify-workers"),
        (["verify", "RUN", "--verifier", "missing.py:verify"], "no such file"),
        (["verify", "RUN", "--use", "nobody"], "no verdict in this run is by 'nobody'"),
        (["verify", "RUN", "--verifier", "exact", "--verify-memory", "-1"], "0 sets no limit"),
    ],
)
def test_a_users_mistake_exits_2_with_a_message_and_no_traceback(
    run: str, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert call(*[run if word == "RUN" else word for word in words]) == 2
    err = capsys.readouterr().err
    assert said in err and "Traceback" not in err


def test_json_progress_is_one_object_per_line(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("verify", run, "--verifier", "exact", "--progress", "json") == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert records[-1]["event"] == "done"


def test_the_starter_verifier_comes_with_a_test_that_passes(
    tmp_path: Path, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("init", "verifier", "my_check", "--out", str(tmp_path)) == 0
    test = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            "/dev/null",
            "test_my_check.py",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "5 passed" in test.stdout, test.stdout + test.stderr
    assert call("verify", run, "--verifier", f"{tmp_path / 'my_check.py'}:verify", "--probe") == 0
    assert call("init", "verifier", "my_check", "--out", str(tmp_path)) == 2
    assert "exists already" in capsys.readouterr().err
    assert call("init", "verifier", "not-a-name", "--out", str(tmp_path)) == 2


def test_a_verifiers_file_that_is_not_there_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    (tmp_path / "my_verifier.py").write_text("def verify(task, response):\n    return 1.0\n")
    with pytest.raises(UsageError, match=r"did you mean 'my_verifier\.py'"):
        load_target(f"{tmp_path / 'my_verifer.py'}:verify")
