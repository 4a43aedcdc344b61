"""`rollforge init`: starters that work as written; `--version`: what is compiled."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rollforge.cli import main
from rollforge.cli.app import COMMANDS
from rollforge.errors import Exit
from rollforge.runtime.native import MODULES

ROOT = Path(__file__).resolve().parents[2]


def rollforge(*words: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return ended.value.code


def test_the_skill_names_commands_flags_and_exit_codes_that_exist(tmp_path: Path) -> None:
    assert rollforge("init", "skill", "-o", tmp_path) == 0
    text = (tmp_path / "rollforge" / "SKILL.md").read_text()
    head = yaml.safe_load(text.split("---")[1])
    assert head["name"] == "rollforge" and len(head["description"]) < 1024
    assert set(re.findall(r"`rollforge ([a-z-]+)", text)) <= set(COMMANDS)
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert codes == {int(code) for code in Exit} - {1}
    assert rollforge("init", "skill", "-o", tmp_path) == 2, "what exists is left alone"


def test_every_flag_in_the_skill_exists(tmp_path: Path) -> None:
    from tests.test_docs_blocks import flags_of

    text = (ROOT / "src/rollforge/starters/SKILL.md").read_text()
    for command in re.findall(r"`rollforge ([^`]*)`", text.replace("\n", " ")):
        verb = command.split()[0]
        flags = re.findall(r"(?<!\S)--?[a-zA-Z][\w-]*", re.sub(r"\"[^\"]*\"|'[^']*'", "", command))
        assert set(flags) <= flags_of(verb), command


def test_the_example_is_the_folder_of_the_checkout_and_its_scripts_may_be_run(tmp_path: Path) -> None:
    assert rollforge("init", "example", "improve", "-o", tmp_path, "--json") == 0
    source = {path.name: path.read_text() for path in (ROOT / "examples/improve").iterdir() if path.is_file()}
    made = {path.name: path.read_text() for path in (tmp_path / "improve").iterdir()}
    assert made == source and {"README.md", "improve.sh", "number.py", "train.py"} <= set(made)
    assert (tmp_path / "improve/improve.sh").stat().st_mode & 0o100
    for script in (tmp_path / "improve").glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.mark.parametrize(
    "words", [("example",), ("example", "imprve"), ("verifier",), ("completion",), ("skill", "x")]
)
def test_a_starter_that_does_not_exist_says_which_do(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert rollforge("init", *words) == 2
    assert "rollforge init" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_its_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollforge("init", "completion", shell) == 0
    script = capsys.readouterr().out
    assert all(verb in script for verb in COMMANDS) and "max-output-tokens" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_the_version_names_the_compiled_modules() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rollforge", "--version"], capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert re.fullmatch(r"rollforge \d+\.\d+\.\d+\S*", first)
    assert second.startswith("compiled modules: ")
    assert all(name.removeprefix("rollforge.") in second for name in MODULES)


def test_the_verifier_starter_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollforge("init", "verifier", "mine", "-o", tmp_path, "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(file).name for file in files] == ["mine.py", "test_mine.py", "mine_cases.jsonl"]
