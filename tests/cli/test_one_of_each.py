"""Counts of one are written in the singular: one task, one rollout, one row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollforge.cli import main
from tests.builders import make_rollout, write_rows

PLURAL_OF_ONE = re.compile(
    r"(?<! of )(?<![\d.,])\b1 (?:tasks|rows|verdicts|steps|experiences|calls|errors|lines|files|warnings|notes)\b"
)


@pytest.mark.parametrize(
    "words",
    [
        ["metrics", "run"],
        ["profile", "run"],
        ["check", "run"],
        ["index", "run"],
        ["status", "run"],
        ["validate", "run"],
        ["verify", "run", "--verifier", "exact"],
        ["prepare", "sft", "run", "-o", "data", "--to", "chat", "--force"],
        ["experiences", "run", "-o", "experiences.jsonl"],
    ],
    ids=lambda words: words[0],
)
def test_a_run_of_one_rollout_is_described_in_the_singular(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    row = make_rollout(0, 0, 1.0, text="4")
    write_rows(tmp_path / "run" / "rollouts.jsonl", [{**row, "expected_answer": "4"}])
    with pytest.raises(SystemExit):
        main(words)
    said = "".join(capsys.readouterr())
    assert said.strip()
    assert PLURAL_OF_ONE.findall(said) == []
