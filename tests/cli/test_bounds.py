"""Values that cannot be meant are refused before any work, in one sentence that names the flag."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.cli import main, run
from rollforge.errors import Exit, UsageError
from tests.builders import make_rollout, write_rows

COLLECT = "collect -i tasks.jsonl -o run -m simulated"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setattr(sys, "argv", ["rollforge"])
    run(["simulate", "--write-tasks", "tasks.jsonl", "-n", "3"])
    return tmp_path


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (f"{COLLECT} --temperature 70", "--temperature must be at most 10"),
        (f"{COLLECT} --temperature=-1", "--temperature must be at least 0"),
        (f"{COLLECT} -S temperature=70", "--temperature must be at most 10"),
        (f"{COLLECT} --top-p 1.5", "--top-p must be at most 1"),
        (f"{COLLECT} --max-output-tokens 0", "--max-output-tokens must be at least 1"),
        (f"{COLLECT} -k 0", "--samples must be at least 1"),
        (f"{COLLECT} -k 2000000", "--samples must be at most 1,000,000"),
        (f"{COLLECT} -n 0", "--limit must be at least 1"),
        (f"{COLLECT} --retries=-1", "--retries must be at least 0"),
        (f"{COLLECT} --retry-budget inf", "--retry-budget must be"),
        (f"{COLLECT} --retry-budget nan", "--retry-budget must be"),
        (f"{COLLECT} --pilot 0", "--pilot must be at least 1"),
        (f"{COLLECT} --max-total-tokens 0", "--max-total-tokens must be at least 1"),
        (f"{COLLECT} --verify-concurrency 0", "--verify-concurrency must be at least 1"),
        (f"{COLLECT} --verify-workers 999999", "--verify-workers 999999: at most"),
        (f"{COLLECT} -c 99999999", "--concurrency must be at most 100,000"),
        (f"{COLLECT} -S temprature=1", "did you mean 'temperature'?"),
        (f"{COLLECT} -S max_output_token=1", "did you mean 'max_output_tokens'?"),
        (f"{COLLECT} -S collect.attemps=3", "-S collect.attemps=… would go to the model server"),
        (f"{COLLECT} -S attempts=3", "-S attempts=… would go to the model server"),
        (f"{COLLECT} -S verifier.field=answer", "-S verifier=… would go to the model server"),
        (f"{COLLECT} --dry-run -S collect.retries=3", "would go to the model server"),
        (
            f"{COLLECT} --verifier exact --dry-run -S ignore_case=false",
            "it is an option of the verifier exact",
        ),
        (f"{COLLECT} --api-key-env NO_SUCH_KEY", "the environment variable NO_SUCH_KEY is not set"),
        (f"{COLLECT} --workers 0", "--workers"),
        (f"{COLLECT} --workers 100000", "--workers"),
        (f"{COLLECT} --workers 0 --dry-run", "--workers"),
        ("verify run --verifier exact --workers 100000", "--workers"),
        ("verify run --verifier exact --verify-workers 999999", "--verify-workers 999999: at most"),
        ("verify run --verifier exact --probe -n 0", "for -n"),
        ("simulate --port 99999", "--port"),
        ("simulate --port=-1", "--port"),
        ("simulate --skill 2", "--skill"),
        ("view run --port 99999 --no-browser", "--port"),
        ("simulate --latency=-1", "--latency"),
        ("serve-verifier exact --port 70000", "--port"),
        ("metrics run --workers 0", "--workers"),
        ("query run 'select 1' --workers 0", "--workers"),
        ("experiences run --step-size 0", "--step-size"),
        ("eval -i tasks.jsonl -m simulated -k 0", "--samples must be at least 1"),
        ("eval -i tasks.jsonl -m simulated -n 0", "for -n"),
    ],
)
def test_a_value_out_of_bounds_is_refused_by_the_name_of_its_flag(
    words: str, complaint: str, folder: Path
) -> None:
    with pytest.raises(UsageError, match=complaint.replace("?", r"\?")):
        run(words.replace("'select 1'", "select_1").split())
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    "setting", ["top_k=3", "min_p=0.1", "vllm_xargs.speculate=true", "my_server_field=1"]
)
def test_fields_of_a_servers_own_pass(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    run([*COLLECT.split(), "-S", setting, "--dry-run"])
    assert setting.partition("=")[0].partition(".")[0] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "flag"),
    [
        ("collect.attemps=3", "--attempts"),
        ("verify_timeout=3", "--verify-timeout"),
        ("verify-timeout=3", "--verify-timeout"),
        ("collect.base_urls=a", "--base-url"),
        ("verify_cache=a", "--cache"),
        ("field=answer", "--verifier-set field=…"),
    ],
)
def test_an_option_of_ours_as_a_request_parameter_names_its_flag(setting: str, flag: str) -> None:
    with pytest.raises(UsageError) as caught:
        run([*COLLECT.split(), "--verifier", "exact", "--dry-run", "-S", setting])
    assert f"give {flag} instead" in str(caught.value.hint)


def test_the_default_key_variable_may_be_absent_but_not_when_it_was_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run([*COLLECT.split(), "--dry-run"]) == Exit.DONE
    words = [*COLLECT.split(), "--api-key-env", "OPENAI_API_KEY", "--dry-run"]
    monkeypatch.setattr(sys, "argv", ["rollforge", *words])
    with pytest.raises(UsageError, match="OPENAI_API_KEY is not set"):
        run(words)
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert run(words) == Exit.DONE


def test_one_fault_in_many_rows_is_said_once_with_the_count(folder: Path) -> None:
    rows = [{"responses_create_params": {"input": f"question {number}"}} for number in range(50)]
    write_rows(folder / "bare.jsonl", rows)
    with pytest.raises(UsageError) as raised:
        run("collect -i bare.jsonl -o run -m simulated --verifier exact".split())  # noqa: SIM905
    assert str(raised.value).count("expected_answer") == 2  # the fault and its hint
    assert "the same in 49 more lines" in str(raised.value)


@pytest.mark.parametrize("command", ["metrics", "profile"])
def test_a_run_of_which_nothing_can_be_read_is_a_mistake(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "rollouts.jsonl").write_text("a,b\n1,2\n")
    assert run([command, "rollouts.jsonl"]) == Exit.USAGE
    assert "no line could be read as a rollout" in capsys.readouterr().err
    (folder / "empty.jsonl").write_text("")
    assert run([command, "empty.jsonl"]) == Exit.INCOMPLETE


def test_exact_reads_the_field_that_its_option_names(folder: Path) -> None:
    task = {"responses_create_params": {"input": "6 × 7?"}, "answer": "42"}
    write_rows(folder / "answers.jsonl", [task])
    words = "collect -i answers.jsonl -o run -m simulated --verifier exact --verifier-set field=answer --progress none"
    assert run(words.split()) == Exit.DONE
    assert (
        run(
            [
                "verify",
                "run",
                "--verifier",
                "exact",
                "-S",
                "field=answer",
                "-S",
                "ignore_case=false",
                "--progress",
                "none",
            ]
        )
        == Exit.DONE
    )


JUDGE = "--verifier judge --verifier-set model=m --verifier-set base_url=http://127.0.0.1:9/v1"


def test_a_judge_without_rubric_is_refused_before_any_call(folder: Path) -> None:
    with pytest.raises(UsageError, match="the field 'rubric'"):
        run(f"{COLLECT} {JUDGE}".split())
    assert not (folder / "run" / "rollouts.jsonl").exists()
    assert run(f"{COLLECT} {JUDGE} --verifier-set rubric=fair --dry-run".split()) == Exit.DONE


def test_a_probe_of_a_judge_says_how_many_calls_it_makes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "verify -i tasks.jsonl --probe -n 1 --verifier judge -S model=m -S base_url=http://127.0.0.1:9/v1 -S rubric=fair"
    run([*words.split(), "--verify-timeout", "1s"])
    assert "about 23 calls to the judge model (1 task × 23)" in capsys.readouterr().err


BLOCKING = """
import threading

def blocked(evidence):
    open("ready", "w").close()  # a pipe: waits until the test reads it
    threading.Event().wait()
"""


def test_sigterm_ends_a_command_that_would_run_for_ever(folder: Path) -> None:
    write_rows(folder / "rollouts.jsonl", [make_rollout(task, 0, float(task % 2)) for task in range(4)])
    (folder / "own.py").write_text(BLOCKING)
    os.mkfifo(folder / "ready")
    words = [sys.executable, "-m", "rollforge", "check", "rollouts.jsonl", "--check", "own.py:blocked"]
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE)
    try:
        with (folder / "ready").open():
            process.send_signal(signal.SIGTERM)
        _, talk = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == Exit.INTERRUPTED, talk


SHORT_GRACE = """
from rollforge.cli import main, signals

signals.TERM_GRACE_S = signals.ABORT_GRACE_S = 1.0
main()
"""
NEVER_YIELDS = """
import threading

async def verify(task, response):
    open("ready", "w").close()  # a pipe: waits until the test reads it
    threading.Event().wait()
"""


def test_sigterm_ends_a_collection_whose_verifier_blocks_the_event_loop(folder: Path) -> None:
    (folder / "own.py").write_text(NEVER_YIELDS)
    os.mkfifo(folder / "ready")
    words = [*COLLECT.split(), "--verifier", "own.py:verify", "--verify-timeout", "1h"]
    process = subprocess.Popen(
        [sys.executable, "-c", SHORT_GRACE, *words], cwd=folder, stderr=subprocess.PIPE
    )
    try:
        with (folder / "ready").open():
            process.send_signal(signal.SIGTERM)
        _, talk = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == Exit.INTERRUPTED, talk


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-c", "0"], "concurrency '0'"),
        (["-c", "10-5"], "concurrency '10-5'"),
        (["--probe", "200%"], "--probe '200%'"),
        (["--probe", "1%", "--workers", "2"], "--probe asks the verifier of one process"),
        (["--step-size", "0"], "--step-size"),
        (["--sink", "console"], "--step-size"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_dry_run_refuses_what_the_run_would(
    words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "1 + 1?", "expected_answer": "2"}\n')
    command = [
        "collect",
        "-i",
        str(tasks),
        "-o",
        str(tmp_path / "run"),
        "-m",
        "simulated",
        "--verifier",
        "exact",
    ]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--dry-run", *words])
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("words", ["profile run", "experiences run -o made.jsonl"])
def test_a_condition_that_no_rollout_meets_is_refused_and_nothing_is_written(
    words: str, folder: Path
) -> None:
    write_rows(folder / "run" / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    with pytest.raises(UsageError, match="no rollout matches --where 'reward > 7'"):
        run([*words.split(), "--where", "reward > 7"])
    assert not (folder / "made.jsonl").exists()
    assert not (folder / "run" / "rollouts_reward_profiling.jsonl").exists()
