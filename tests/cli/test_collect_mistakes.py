"""collect with what people mistype, and what it says when it ends early: one message, the right exit code."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.cli import main
from rollforge.config import parse_settings
from rollforge.simulate import SimulatedProcess, SimulateOptions

COLLECT = ("collect", "-m", "m", "--base-url", "http://127.0.0.1:9/v1", "--progress", "none")


def write_tasks(folder: Path, **more: object) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"question {n}", **more}) + "\n" for n in range(200)))
    return str(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt-template", "nosuch.yaml"], "nosuch.yaml: no such file"),
        (["-k", "99999999999999999999"], "--samples must be at most"),
        (["--verifier", ":f"], "':f' names no file or module"),
        (["-o", "/proc/nope/run"], "/proc/nope/run: cannot be made"),
        (["--retry-budget", "-1"], "--retry-budget must be a share"),
        (["--retry-budget", "nan"], "--retry-budget must be a share"),
        (["--retry-budget", "inf"], "--retry-budget must be a share"),
        (["--deadline", "nan"], "'nan' is no length of time"),
        (["--request-timeout", "inf"], "'inf' is no length of time"),
        (["--temperature", "nan"], "temperature must be a number, not nan"),
        (["-S", "model=other"], "-m/--model"),
        (["-S", "n=4"], "give -k 4"),
        (["-S", "temperature=hot"], "-S temperature=hot is no number"),
        (["-S", "top_p=true"], "-S top_p=True is no number"),
        (["--audit", "5%"], "--audit is read only with --goal"),
        (
            ["-k", "4", "--goal", "dpo=5", "--min-spread", "0.3"],
            "--min-spread is read only with --goal grpo=N",
        ),
        (
            ["-k", "4", "--goal", "grpo=5", "--min-gap", "0.3"],
            "--min-gap is read only with --goal dpo=N or --goal rm=N",
        ),
        (["--batch-size", "10"], "--batch-size is read only with --batch"),
        (["--batch-poll", "1s"], "--batch-poll is read only with --batch"),
        (["-o", "gcs://bucket/run"], "write s3://BUCKET/PATH, gs://BUCKET/PATH"),
        (["--out=gcs://bucket/run", "-o", "run"], "gcs://bucket/run: no bucket has such an address"),
        (
            ["--agent", "program:cat", "--workdir", "nowhere"],
            "or leave it out: programs start in an empty one",
        ),
    ],
)
def test_what_cannot_be_done_is_told_in_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    out = [] if "-o" in words else ["-o", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as stopped:
        main([*COLLECT, "-i", write_tasks(tmp_path), *out, *words])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_a_refused_environment_leaves_no_half_file_of_tasks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("reasoning_gym", reason="needs the extra reasoning-gym")
    with pytest.raises(SystemExit) as stopped:
        main([*COLLECT, "--env", "reasoning-gym:spell_backwards", "-o", str(tmp_path / "run")])
    assert stopped.value.code == 2
    assert "did you mean 'spell_backward'" in capsys.readouterr().err
    assert not list(tmp_path.rglob(".tasks.*"))


def test_an_index_that_no_file_can_hold_is_a_bad_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*COLLECT, "-i", write_tasks(tmp_path, _ng_task_index=10**20), "-o", str(tmp_path / "run")])
    assert stopped.value.code == 2
    assert "tasks.jsonl:1: _ng_task_index is 100000000000000000000" in capsys.readouterr().err


def test_a_disk_that_fills_up_while_planning_is_told(tmp_path: Path) -> None:
    words = [*COLLECT, "-i", write_tasks(tmp_path), "-o", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.startswith("error: cannot write: File too large")


def test_results_that_find_no_room_are_told(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        words = [*COLLECT, "-i", write_tasks(tmp_path), "-o", str(tmp_path / "run"), "--dry-run"]
        done = subprocess.run(
            [sys.executable, "-m", "rollforge", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "error: cannot write: No space left on device" in done.stderr and "Traceback" not in done.stderr


def test_numbers_are_numbers_however_they_are_written() -> None:
    settings = parse_settings(["a=.5", "b=-1.", "c=1e3", "d=1.2.3", "e=.", "f=007"])
    assert settings == {"a": 0.5, "b": -1.0, "c": 1000.0, "d": "1.2.3", "e": ".", "f": "007"}


def collect_from(server: SimulatedProcess, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    output = ["-i", write_tasks(folder), "-o", str(folder / "run"), "--base-url", server.base_url]
    command = [sys.executable, "-m", "rollforge", "collect", "-m", "simulated", *output, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_run_that_an_error_stops_says_so_to_machines_too(tmp_path: Path) -> None:
    with SimulatedProcess(SimulateOptions(api_key="right")) as server:
        whole = collect_from(server, tmp_path, "--json")
        lines = collect_from(server, tmp_path, "--progress", "json")
    record = json.loads(whole.stdout)
    assert (whole.returncode, record["ok"], record["exit_code"]) == (2, False, 2)
    assert "refuses the key" in record["error"] and "--api-key-env" in record["hint"]
    first, *_, last = map(json.loads, lines.stdout.splitlines())
    assert first["event"] == "launch" and last == {"event": "done", **record}


@pytest.mark.parametrize("words", [("--pilot", "4"), ("--pilot=4",)])
def test_a_pilot_that_is_done_is_not_repeated_by_the_command_that_goes_on(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    with SimulatedProcess(SimulateOptions()) as server:
        done = collect_from(server, tmp_path, *words, "-c", "2")
    command = done.stderr.splitlines()[-1]
    assert command.startswith("resume with: rollforge collect") and command.endswith("-c 2")
    assert "--pilot" not in command


def test_a_probe_of_a_judge_says_how_many_calls_it_makes(tmp_path: Path) -> None:
    tasks = write_tasks(tmp_path, rubric="Is it right?", expected_answer="4")
    with SimulatedProcess(SimulateOptions()) as server:
        command = [
            *(
                sys.executable,
                "-m",
                "rollforge",
                "collect",
                "-m",
                "simulated",
                "-i",
                tasks,
                "-n",
                "3",
                "--verifier",
                "judge",
            ),
            *("-o", str(tmp_path / "run"), "--base-url", server.base_url, "--probe", "1%"),
            *("--verifier-set", "model=simulated", "--verifier-set", f"base_url={server.base_url}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "the probe makes about 69 more calls to the judge model (3 tasks × 23)" in done.stderr
