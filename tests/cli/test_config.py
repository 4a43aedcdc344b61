"""Config files: tables of flags, and the resolved config that --dry-run prints."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rollforge.cli import run
from rollforge.config import parse_settings, settings_words
from rollforge.errors import UsageError

FLAGS = shlex.split(
    "-m simulated --verifier exact -k 8 -n 2 --temperature 0.7 -S top_k=3 -S metadata.team=x --tool-timeout 2m --deadline 8h "
    "--cache c --base-url http://localhost:1/v1 --base-url http://localhost:2/v1 --verifier-set ignore_case=true --shuffle"
)


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(["simulate", "--write-tasks", "tasks.jsonl", "-n", "4"])


def dry_run(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    run(["collect", *words, "--dry-run"])
    return capsys.readouterr().out


@pytest.mark.usefixtures("tasks")
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_the_config_that_dry_run_prints_is_accepted_and_means_the_same(
    extra: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-i", "tasks.jsonl", "-o", "run", *FLAGS]
    printed = dry_run([*words, *extra], capsys)
    Path("config.json").write_text(printed)
    again = dry_run(["--config", "config.json", *extra], capsys)
    assert json.loads(again) == json.loads(printed)


@pytest.mark.usefixtures("tasks")
def test_flags_win_over_the_config_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.toml").write_text(
        '[collect]\ninput = "tasks.jsonl"\nsamples = 4\nrequest_timeout = "5m"\nset = ["a=1"]\n'
    )
    printed = json.loads(dry_run(["--config", "run.toml", "-o", "r", "-m", "simulated", "-k", "2"], capsys))
    assert (printed["samples"], printed["request_timeout_s"], printed["overrides"]) == (2, 300.0, {"a": 1})


@pytest.mark.usefixtures("tasks")
def test_a_table_of_no_command_is_refused() -> None:
    Path("run.toml").write_text("[colect]\nsamples = 4\n")
    with pytest.raises(UsageError, match="did you mean 'collect'"):
        run(["collect", "--config", "run.toml", "-i", "tasks.jsonl", "-o", "r", "-m", "simulated"])


def test_settings_and_words_are_inverse() -> None:
    settings = {"a": {"b": [1, "x"], "c": {}}, "d": None, "e": "1", "f": 1.5, "g": True}
    assert parse_settings(settings_words(settings)) == settings
