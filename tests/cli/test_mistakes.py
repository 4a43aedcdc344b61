"""Mistakes of newcomers: each message says what, where and what next, and nothing is left behind."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.cli import main
from rollforge.cli.app import build_app
from rollforge.cli.parse_errors import OTHER_TOOLS_FLAGS
from rollforge.errors import IncompleteError
from rollforge.registry import near_names
from rollforge.simulate import SimulatedProcess, SimulateOptions
from rollforge.view import ViewOptions, serve
from tests.builders import make_rollout, write_rows
from tests.module_graph import SOURCE


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command that fails, and what it printed on stderr."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0), capsys.readouterr().err


COLLECT = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "exact"]


@pytest.fixture(autouse=True)
def in_a_folder_with_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"responses_create_params": {"input": "What is 2 + 2?"}, "expected_answer": "4"}
    (tmp_path / "tasks.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "tasks.txt").write_text("What is 2 + 2?\n")
    (tmp_path / "empty.jsonl").write_text("")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status", "nosuch"], 2, ["nosuch: no such run", "the folder that collect wrote to"]),
        (["status", "tasks.jsonl"], 2, ["tasks_run.json: no such file", "rollforge collect -i tasks.jsonl"]),
        (["report", "tasks.jsonl"], 3, ["is this a file of tasks?", "rollforge collect -i tasks.jsonl"]),
        (["verify", "tasks.txt", "--verifier", "exact"], 3, ["no line could be read", "rollforge validate tasks.txt"]),
        (["validate", "nosuch.jsonl"], 2, ["nosuch.jsonl: no such file", "next: for example: rollforge validate"]),
        (["show", "tasks.jsonl", "--best", "--worst"], 2, ["--best and --worst exclude", "next: leave one of them out"]),
        (["verify", "exact", "tasks.jsonl"], 2, ["verify takes one run", "the run comes first, the verifier follows --ver"]),
        (["query", "select 1", "tasks.jsonl"], 2, ["the run first", "rollforge query tasks.jsonl 'select 1'"]),
        (["merge", "a", "b"], 2, ["merge takes one run of shards, and not also 'b'", "rollforge metrics RUN RUN"]),
        ([*COLLECT, "--dry-run", "--on", "nosuch"], 2, ["no executor 'nosuch'", "rollforge list executors"]),
        ([*COLLECT, "--on", "nosuch"], 2, ["no executor 'nosuch'", "rollforge list executors"]),
        ([*COLLECT, "--dry-run", "--step-size", "4", "--metric-names", "nosuch"], 2, ["no naming profile", "known: "]),
        ([*COLLECT, "--dry-run", "--step-size", "4", "--sink", "nosuch=x"], 2, ["no sink 'nosuch'", "rollforge list sinks"]),
        (["rewards", "math", "--write", "trl", "--on-unjudged", "value=abc"], 2,
         ["--on-unjudged 'value=abc'", "--on-unjudged value=0"]),
        (["rewards", "math", "--path", "verl", "--write", "trl"], 2,
         ["--write is not read beside --path", "leave out --write or --path"]),
        (["metrics", "gcs://b/run"], 2, ["gcs://b/run: no bucket", "gs://BUCKET/PATH"]),
        (["query", "s3a://b/run", "select 1"], 2, ["s3a://b/run: no bucket", "s3://BUCKET/PATH"]),
        (["collect", "--input=gcs://b/t.jsonl", "-o", "run", "-m", "simulated"], 2, ["gcs://b/t.jsonl: no bucket"]),
        (["collect", "-i", "nosuch.jsonl", "-o", "a/b/run", "-m", "simulated"], 2, ["nosuch.jsonl: no such file"]),
        (["collect", "-i", "tasks.jsonl", "--out=run", "-m", "simulated", "--verifier", "nosuch"], 2, ["nosuch"]),
        (["import", "inspect", "nosuch", "-o", "run"], 2, ["nosuch: no such file"]),
        (["prepare", "tasks.jsonl", "--recipe", "sft"], 2, ["Unknown option: --recipe.", "the recipe is the first word"]),
        (["collect", "-i", "tasks.jsonl", "-o", "tasks.jsonl", "-m", "simulated", "--fresh"], 2,
         ["-i and -o name the same file: tasks.jsonl", "-o runs/NAME"]),
        (["prepare", "tasks.jsonl", "sft", "--to", "trl"], 2, ["the recipe first", "prepare sft tasks.jsonl --to trl"]),
        (["experiences", "tasks.jsonl", "--operators", "x"], 2, ["Unknown option: --operators.", "--pipeline FILE"]),
        (["metrics", "tasks.jsonl", "--treshold", "1"], 2, ["Unknown option: --treshold. Did you mean --threshold?"]),
        (["metrics", "tasks.jsonl", "--colour"], 2, ["Unknown option: --colour.", "see all options: rollforge metrics --help"]),
        ([*COLLECT, "-k", "four"], 2, ["-k four: expected a whole number", "for example: -k 1"]),
        (["prepare", "sft", "tasks.jsonl", "--to", "trl", "-o", "d", "--min-reward", "high"], 2,
         ["--min-reward high: expected a number", "for example: --min-reward 0.5"]),
        (["collect", "-i", "empty.jsonl", "-o", "run", "-m", "simulated"], 2, ["no tasks", "rollforge validate empty.jsonl"]),
        (["eval", "-i", "nosuch.jsonl", "-m", "simulated", "-o", "run"], 2, ["nosuch.jsonl: no such file"]),
        (["eval", "-i", "tasks.jsonl", "-m", "real", "-o", "new/run"], 2, ["no server to ask", "--base-url"]),
        (["bench", "-i", "tasks.jsonl", "-m", "real", "-o", "new"], 2, ["no server to ask", "--base-url"]),
        (["bench", "-i", "tasks.jsonl", "-m", "a=simulated", "-m", "b=real", "-o", "new"], 2, ["no server to ask"]),
        (["help", "collect"], 2, ['Unknown command "help"', "rollforge collect --help"]),
        (["verify", "tasks.jsonl", "--diff", "exact"], 2, ["--diff requires 2 values, and got 1", "rollforge verify --help"]),
        (["collect", "-i", "tasks.jsonl", "-m", "simulated", "-o"], 2, ["-o requires an argument", "-o runs/first"]),
        ([*COLLECT, "--prompt-template", "tasks.txt"], 2, ["tasks.txt: a plain text, and no template", "`user:`"]),
        ([*COLLECT, "--temperature", "0.5", "-S", "temperature=0.7"], 2,
         ["temperature is given twice: 0.5 by its flag, 0.7 by -S", "leave out -S temperature"]),
        (["query", "tasks.jsonl", "select 1", "--json", "--format", "csv"], 2, ["--json and --format csv contradict"]),
        (["query", "tasks.jsonl", "select 1", "--json", "-o", "x.csv"], 2, ["--json and --out x.csv contradict"]),
        (["show", "tasks.jsonl", "--raw", "--json"], 2, ["--raw and --json exclude each other"]),
        (["show", "tasks.jsonl", "--label", "--json"], 2, ["--label and --json exclude each other"]),
        (["verify", "tasks.jsonl", "--probe", "--verifier", "exact", "--failed-only"], 2,
         ["--failed-only is not read beside --probe"]),
        (["-v"], 2, ["rollforge --version"]),
        (["query", "tasks.jsonl"], 2, ["query needs RUN and SQL, and got 'tasks.jsonl' alone"]),
        (["collect", "--help-al"], 2, ["Unknown option: --help-al. Did you mean --help-all?"]),
        (["collect", "-i", "tasks.jsonl", "--oout", "run", "-m", "simulated"], 2, ["--oout. Did you mean --out?"]),
        (["collect", "-i", ".", "-o", "run", "-m", "simulated"], 2, [".: a folder, not a file", "give a file in it"]),
        (["import", "verifiers", ".", "-o", "run"], 2, [".: a folder, not a log", "traces.jsonl"]),
        (["prepare", "mine.py:pick", "tasks.jsonl", "--to", "trl"], 2, ["cannot be named by its file", "entry point"]),
        ([*COLLECT, "--verifier-set", "tolerance"], 2, ["--verifier-set 'tolerance' is", "next: write --verifier-set key=value"]),
        ([*COLLECT, "-S", "temperature"], 2, ["-S 'temperature' is not understood", "-S key.path=value"]),
        (["metrics", "tasks.jsonl", "--threshold", "inf"], 2, ["must be a finite number, not inf", "--threshold 0.5"]),
        (["metrics", "tasks.jsonl", "--threshold", "1e999"], 2, ["must be a finite number, not inf"]),
        (["profile", "tasks.jsonl", "--threshold", "-inf"], 2, ["must be a finite number, not -inf"]),
        (["profile", "tasks.jsonl", "--tolerance", "inf"], 2, ["must be a finite number, 0 or more, not inf"]),
        (["simulate", "--latency", "inf"], 2, ["--latency", "finite number", "rollforge simulate --help"]),
        ([*COLLECT, "--deadline", "-5m"], 2, ["-5m begins with a dash", "--deadline=-5m"]),
        ([*COLLECT, "--deadline=-5m"], 2, ["--deadline '-5m' is no length of time", "15m"]),
        ([*COLLECT, "-i", "tasks.jsonl"], 2, ["-i is given twice", "join several: cat"]),
        ([*COLLECT, "-k", "2", "--samples", "3"], 2, ["--samples is given twice", "give --samples once"]),
        (["verify", "tasks.jsonl", "--verifier", "regex", "-S", "pattern=4"], 2, ["`$.pattern`", """pattern='"4"'"""]),
        ([*COLLECT, "--stop-on", "weird"], 2, ['"broken", "never"', "the default is --stop-on broken"]),
        (["metrics", "tasks.jsonl", "--compat", "foo"], 2, ["nemo-gym", "for example: --compat nemo-gym"]),
        (["simulate", "--skill", "2"], 2, ["<= 1", "the default is --skill 0.5"]),
        (["init", "nosuch"], 2, ["Choose from", "for example: rollforge init verifier"]),
        (["check", "tasks.jsonl", "--json", "--markdown"], 2, ["--json and --markdown exclude each other"]),
        (["list", "verifiers", "recipes"], 2, ["does not take 'recipes'", "for example: rollforge list"]),
        (["demo", "tasks.jsonl"], 2, ["it is a file", "choose another name"]),
        (["profile", "tasks.jsonl", "--look", "-1"], 2, ["tasks to look at must be 0 or more, not -1", "--look 5"]),
        ([*COLLECT, "--config", "nosuch.toml"], 2, ["nosuch.toml: no such file", "--dry-run --json prints one"]),
        ([*COLLECT, "--prompt-template", "nosuch.yaml"], 2, ["nosuch.yaml: no such file", "`user:` and `system:`"]),
        (["experiences", "tasks.jsonl", "--pipeline", "tasks.txt"], 2, ["no TOML", "[[operator]]", "rollforge list operators"]),
    ],
)  # fmt: skip
def test_a_refused_command_says_what_and_what_next_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: list[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    ended, printed = run(words, capsys)
    assert ended == code and "next:" in printed
    assert [text for text in said if text not in printed] == []
    assert sorted(tmp_path.rglob("*")) == before


def test_status_of_an_empty_folder_proposes_no_command_that_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("nothing").mkdir()
    code, printed = run(["status", "nothing"], capsys)
    assert code == 2 and "next: give a rollouts file, or the folder it is in" in printed


def test_a_misspelt_key_of_a_config_file_is_answered_with_the_flag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("config.toml").write_text("[collect]\nsampels = 3\n")
    code, printed = run([*COLLECT, "--config", "config.toml"], capsys)
    assert code == 2 and "(from config.toml). Did you mean --samples?" in printed


def test_a_wrong_number_in_a_config_file_names_the_file_and_is_answered_in_its_form(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("config.toml").write_text('[collect]\nsamples = "many"\n')
    code, printed = run([*COLLECT, "--config", "config.toml"], capsys)
    assert code == 2 and "config.toml: samples many: expected a whole number" in printed
    assert "next: for example: samples = 1" in printed


def test_an_operator_that_is_wrong_is_named_with_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pipeline.toml").write_text('[[operator]]\nname = "filter"\n')
    code, printed = run(["experiences", "tasks.jsonl", "--pipeline", "pipeline.toml"], capsys)
    assert code == 2 and "pipeline.toml: operator 1 has no 'use'" in printed
    assert 'write use = "reward_filter"' in printed


def test_status_of_a_folder_of_runs_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "runs" / "first" / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    code, printed = run(["status", "runs"], capsys)
    assert code == 2 and "give one of the runs in it: runs/first" in printed
    code, printed = run(["status", "runs/first"], capsys)
    assert code == 2 and "for other files: rollforge metrics runs/first" in printed


def test_files_that_are_no_rows_are_not_proposed_to_validate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "data" / "train.jsonl", [{"messages": []}])
    (tmp_path / "data" / "manifest.json").write_text('{\n  "recipe": "sft"\n}\n')
    code, printed = run(["validate", "data"], capsys)
    assert code == 2 and "give the files in it: data/train.jsonl (" in printed
    with pytest.raises(SystemExit):
        main(["validate", "data/manifest.json"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "a manifest, which has no rows" in shown and "data/train.jsonl" in shown and "jq" not in shown


@pytest.mark.parametrize(
    ("name", "names", "near"),
    [
        ("nosuch.py", ["syn.py", "tasks.py"], []),
        ("rewrd", ["started", "reward", "row"], ["reward"]),
        ("verifers", ["exporters", "verifiers"], ["verifiers"]),
        ("min_char", ["max_share", "min_chars"], ["min_chars"]),
        ("ignore_cse", ["ignore_space", "ignore_case"], ["ignore_case"]),
        ("rya", ["local", "ray"], ["ray"]),
        ("nemo", ["trl", "nemo-rl"], ["nemo-rl"]),
        ("ne", ["nemo-rl"], []),
        ("EXACT", ["exact", "math"], ["exact"]),
        ("", ["exact"], []),
    ],
)
def test_a_name_is_proposed_only_when_it_may_be_meant(name: str, names: list[str], near: list[str]) -> None:
    assert near_names(name, names) == near


def test_a_check_of_an_unknown_area_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    Path("own.py").write_text("def rule(run):\n    return None\n\n\nrule.area = 'verificaton'\n")
    code, printed = run(["check", "run", "--check", "own.py:rule"], capsys)
    assert code == 2 and "has the area 'verificaton'; did you mean 'verification'?" in printed


def test_show_says_which_tasks_there_are_and_that_a_sample_is_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(3, k, 1.0) for k in range(4)])
    code, printed = run(["show", "run", "--task", "9"], capsys)
    assert code == 2 and "the tasks of the run have the numbers 3 to 3" in printed
    code, printed = run(["show", "run", "--rollout", "77"], capsys)
    assert code == 2 and "the rollouts of the run have the numbers 0 to 3" in printed
    code, printed = run(["show", "run", "--task", "3", "--sample", "99"], capsys)
    assert code == 0 and "no more than 4 fit" in printed and "--rollout 99" in printed


def test_a_verifier_that_cannot_start_says_so_and_leaves_no_file_of_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    code, printed = run(["verify", "run", "--verifier", "judge"], capsys)
    assert code == 2 and "judge" in printed and "No such file" not in printed
    assert not (tmp_path / "run" / "rollouts_verdicts.jsonl").exists()


def test_status_of_a_file_that_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "exact"]
    assert run([*words, "--progress", "none"], capsys)[0] == 0
    code, printed = run(["status", "run/rollouts.jsonl.gz"], capsys)
    assert code == 2 and "run/rollouts.jsonl.gz: no such file" in printed
    with pytest.raises(SystemExit) as ended:
        main(["status", "run"])
    assert not ended.value.code


def test_the_tasks_of_a_run_are_proposed_for_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    write_rows(tmp_path / "run" / "rollouts_tasks.jsonl", [{"_ng_task_index": 0}])
    code, printed = run(["collect", "-i", "run", "-o", "again", "-m", "simulated"], capsys)
    assert code == 2 and printed.rstrip().endswith("-i run/rollouts_tasks.jsonl")


def test_a_run_that_nobody_judges_is_followed_by_verify(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--progress", "none"]
    code, printed = run([*words, "--no-verify", "--verifier", "exact"], capsys)
    assert code == 0
    assert (
        "note: --no-verify: exact judges nothing now; later: rollforge verify run --verifier exact" in printed
    )
    assert "next        rollforge verify run --verifier NAME" in printed
    with pytest.raises(SystemExit):
        main(["check", "run"])
    assert "judge the rest: rollforge verify run --verifier NAME" in capsys.readouterr().out


def test_a_folder_that_was_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    assert run(["collect", "-i", "nosuch.jsonl", "-o", "run", "-m", "simulated"], capsys)[0] == 2
    assert (tmp_path / "run").is_dir()


def test_metrics_of_tasks_say_so_and_are_incomplete(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["metrics", "tasks.jsonl"])
    printed = capsys.readouterr()
    assert ended.value.code == 3
    assert "is this a file of tasks?" in printed.out and "rollforge collect -i tasks.jsonl" in printed.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("metrics tasks.jsonl", 3),
        ("profile tasks.jsonl", 3),
        ("report tasks.jsonl", 3),
        ("experiences tasks.jsonl -o experiences.jsonl", 3),
    ],
)
def test_reading_tasks_as_a_run_says_so_and_leaves_nothing(
    words: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    printed = capsys.readouterr()
    assert (ended.value.code or 0) == code
    assert "is this a file of tasks?" in printed.out + printed.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_verifier_that_always_fails_is_to_be_mended_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(task, 0, 1.0) for task in range(3)])
    code, printed = run(["verify", "run", "--verifier", "regex"], capsys)
    assert code == 3
    assert "next: all failed alike: mend the verifier, or give its options" in printed
    assert printed.rstrip().endswith("then: rollforge verify run --verifier regex --failed-only")


@pytest.mark.parametrize("kind", ["math", "mcqa", "tools", "mixed"])
def test_example_tasks_name_a_command_that_rewards_some_answers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--write-tasks", "made.jsonl", "--kind", kind, "-n", "12"])
    (command,) = re.findall(r"next: rollforge (.*)", capsys.readouterr().err)
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(command), "--progress", "none"])
    rows = [json.loads(line) for line in (tmp_path / "runs/example/rollouts.jsonl").read_text().splitlines()]
    assert not ended.value.code
    for has_tools in {"expected_synonyms" in row for row in rows}:
        rewards = {row["reward"] for row in rows if ("expected_synonyms" in row) == has_tools}
        assert len(rewards) > 1


async def test_the_viewer_refuses_a_file_of_tasks_as_the_report_does(tmp_path: Path) -> None:
    with pytest.raises(IncompleteError, match="is this a file of tasks") as caught:
        await serve(ViewOptions(runs=("tasks.jsonl",)), print)
    assert "rollforge collect -i" in str(caught.value.hint)


def test_a_price_that_is_not_known_is_said_even_without_progress(tmp_path: Path) -> None:
    pytest.importorskip("genai_prices", reason="a price by name needs genai-prices")
    words = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "exact"]
    words += ["--price", "nosuchmodel", "--progress", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert "the price of nosuchmodel is not known" in done.stderr and "--price IN/OUT" in done.stderr


def test_the_cause_of_failed_attempts_is_named(tmp_path: Path) -> None:
    with SimulatedProcess(SimulateOptions(faults=("echo-headers=1.0,status=400",))) as server:
        words = [sys.executable, "-m", "rollforge", *COLLECT, "--base-url", server.base_url, "--api", "chat"]
        done = subprocess.run(
            [*words, "--progress", "none"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
    assert done.returncode == 3
    causes = re.findall(r"  cause +(HTTP 400: refused a request .*… \(1 of 1 attempt\))", done.stderr)
    assert len(causes) == 1
    status = [sys.executable, "-m", "rollforge", "status", "run"]
    shown = subprocess.run(status, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert causes[0] in shown


def test_flags_of_other_tools_are_none_of_ours_and_the_ones_proposed_are() -> None:
    for (verb, flag), advice in OTHER_TOOLS_FLAGS.items():
        flags = {name for one in build_app(verb)[verb].assemble_argument_collection() for name in one.names}
        assert flag not in flags
        named = [word for word in re.findall(r"(?<!\S)-[-\w]+", advice) if word != "rollforge"]
        assert set(named) <= flags, advice


MESSAGES_OF_FORMATS = ("buffer/trinity.py", "experience/record.py", "view/book.py", "view/dataset.py")
"""Errors about a value deep inside a format, which a caller wraps, or which the viewer shows on a page."""


def test_every_error_for_a_user_has_a_next_step() -> None:
    without = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("UsageError", "DataError"):
                has_hint = any(word.arg == "hint" for word in node.keywords)
                if not has_hint and str(path.relative_to(SOURCE)) not in MESSAGES_OF_FORMATS:
                    without.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert without == []


def test_a_wrong_number_in_a_variable_is_answered_in_its_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLFORGE_COLLECT_SAMPLES", "x")
    code, printed = run(COLLECT, capsys)
    assert code == 2 and "for example: ROLLFORGE_COLLECT_SAMPLES=1\n" in printed


def test_a_file_without_rollouts_is_not_shown_as_too_narrow_a_choice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("bad.jsonl").write_text("not json\n")
    code, printed = run(["show", "bad.jsonl"], capsys)
    assert code == 2 and "no line could be read as one: rollforge validate bad.jsonl" in printed
