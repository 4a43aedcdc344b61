"""Every command that rollforge prints as a next step is accepted by its own parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollforge.steps.check import check_evidence
from rollforge.steps.check.readiness import CheckOptions
from rollforge.testing import DEFECTS, sick_run
from tests.hints import commands_in, complaint

GOLDEN = Path(__file__).parents[1] / "golden" / "cli"


@pytest.mark.parametrize("defect", DEFECTS)
def test_the_next_step_of_every_finding_parses(defect: str) -> None:
    report = check_evidence(sick_run(defect, seed=1).evidence(), CheckOptions())
    for finding in report.findings:
        for words in commands_in(finding.next):
            assert complaint(words) is None, f"{finding.id}: {finding.next}"


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.stem)
def test_every_command_in_printed_output_parses(path: Path) -> None:
    if path.stem.startswith("help"):
        pytest.skip("help texts name commands in prose")
    for line in path.read_text().splitlines():
        if not line.startswith("$ "):
            assert [output for words in commands_in(line) if (output := complaint(words))] == [], line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("see it: rollforge show a --line 3", ["show", "a", "--line", "3"]),
        ("rollforge check r --for dpo; --force goes on", ["check", "r", "--for", "dpo"]),
        ("rollforge verify a --verifier x && rollforge metrics a", ["verify", "a", "--verifier", "x"]),
        ("(see rollforge list verifiers)", ["list", "verifiers"]),
        ('rollforge show a --where "x = 1; y"', ["show", "a", "--where", "x = 1; y"]),
    ],
)
def test_commands_are_found_in_sentences(text: str, words: list[str]) -> None:
    assert commands_in(text)[0] == words


def test_a_flag_that_does_not_exist_is_noticed() -> None:
    assert "--verifer" in (complaint(["verify", "run", "--verifer", "x"]) or "")
