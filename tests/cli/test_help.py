"""Help and mistakes: what a person reads before anything works."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge import cli
from rollforge.cli.app import COMMANDS, build_app, load_command
from rollforge.errors import UsageError
from tests.builders import make_rollout, write_rows
from tests.importers.test_importers import sample, write_log

SERVERS = {"simulate", "serve-verifier", "view"}


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_fits_a_narrow_terminal_and_its_example_is_not_broken(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    cli.run([verb, "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    shown = text.partition("Example:\n")[2].replace("\\\n", " ")
    assert shlex.split(shown) == shlex.split(load_command(verb).example)
    assert "\n" not in shown.strip()


def test_prose_in_help_is_broken_by_the_terminal_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    cli.run(["metrics", "--help"])
    assert "Intervals are 95 % and clustered by task." in capsys.readouterr().out


def test_help_names_the_commands_in_the_order_of_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["--help"])
    shown = re.findall(r"^│ ([a-z][a-z-]+) {2,}", capsys.readouterr().out, re.MULTILINE)
    assert shown == list(COMMANDS)


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_summary_in_the_table_is_the_first_line_of_the_help(verb: str) -> None:
    assert COMMANDS[verb].summary == (load_command(verb).function.__doc__ or "").partition("\n")[0].strip()


def test_rollforge_help_imports_no_command() -> None:
    code = "from rollforge.cli import run; run(['--help']); import sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert not [name for name in loaded if name.startswith(("rollforge.cli.commands.", "rollforge.steps"))]


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_all_shows_every_flag_and_help_names_it_where_some_are_left_out(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.run([verb, "--help"])
    brief = capsys.readouterr().out
    cli.run([verb, "--help-all"])
    whole = capsys.readouterr().out
    assert (brief != whole) == (f"rollforge {verb} --help-all" in brief)
    arguments = build_app(verb)[verb].assemble_argument_collection(parse_docstring=False)
    assert all(
        argument.name in whole for argument in arguments if argument.show and argument.name.startswith("--")
    )


@pytest.mark.parametrize("verb", ["collect", "prepare", "bench", "eval", "verify", "simulate", "show"])
def test_help_of_the_large_commands_shows_about_fifteen_flags(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = load_command(verb).common
    assert 12 <= len(common) <= 16
    cli.run([verb, "-h"])
    shown = capsys.readouterr().out
    assert all(flag in shown for flag in common)


@pytest.mark.parametrize("verb", ["collect", "prepare"])
def test_short_help_of_collect_and_prepare_lists_at_most_16_flags(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    cli.run([verb, "-h"])
    listed = re.findall(r"^│ [* ]*(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert set(listed) == load_command(verb).common
    assert 12 <= len(listed) <= 16


@pytest.mark.slow
def test_every_example_works_when_pasted_in_the_order_of_the_table(tmp_path: Path) -> None:
    _rollforge(tmp_path, "rollforge simulate --write-tasks tasks.jsonl -n 20")
    (tmp_path / "logs").mkdir()
    write_log(tmp_path / "logs" / "math.eval", [sample(1, 1, "C")])  # somebody else's log, for import
    for verb in COMMANDS:
        if verb not in SERVERS | {"demo"}:
            _rollforge(tmp_path, load_command(verb).example)


@pytest.mark.parametrize(
    ("words", "complaint", "way_out"),
    [
        ("metrics", "metrics needs RUN", "for example: rollforge metrics runs/first"),
        ("query runs/first", "query needs RUN and SQL", "for example: rollforge query"),
        ("collect -o x", "collect needs --input", "for example: rollforge collect"),
        ("status a b", "status does not take 'b'", "rollforge status --help"),
        ("metrics x --treshold 1", "Did you mean --threshold?", "rollforge metrics --help"),
        ("metrics x --threshold", "--threshold requires an argument", "rollforge metrics --help"),
        ("metrcs x", 'Did you mean "metrics"?', "rollforge --help"),
    ],
)
def test_a_mistake_in_the_words_is_told_like_any_other(words: str, complaint: str, way_out: str) -> None:
    with pytest.raises(UsageError) as raised:
        cli.run(words.split())
    assert complaint in str(raised.value)
    assert way_out in (raised.value.hint or "")


def test_a_reader_that_leaves_does_not_change_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{\n" * 5000)
    words = [sys.executable, "-m", "rollforge", "validate", "bad.jsonl", "-n", "1000"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 2


def _rollforge(folder: Path, line: str) -> None:
    words = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.parametrize(
    "setting",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_a_terminal_without_utf_8_is_no_reason_to_stop(tmp_path: Path, setting: dict[str, str]) -> None:
    write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, 0, float(task % 2)) for task in range(4)])
    words = [sys.executable, "-m", "rollforge", "metrics", "rollouts.jsonl"]
    environment = os.environ | setting
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 0
    assert b"4 rollouts of 4 tasks ? 4 judged" in done.stdout
