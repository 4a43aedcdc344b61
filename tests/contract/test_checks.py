"""What every check keeps to: it says what it is, bears any run, and its findings can be acted on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rollforge.checks import CHECKS
from rollforge.checks.base import Check
from rollforge.checks.building_blocks.finding import RECIPES, Finding
from rollforge.steps.check import CheckOptions, check_evidence
from rollforge.testing import DEFECTS, MadeRun, Shape, healthy_run, sick_run

PAGE = (Path(__file__).parents[2] / "docs" / "checks.md").read_text()


def loaded(name: str) -> Check:
    check = CHECKS.load(name)
    assert isinstance(check, Check)
    return check


def tiny(rollouts: int) -> MadeRun:
    run = healthy_run(Shape(tasks=4, samples=2, unjudged=0.0, failed=0.0), seed=1)
    run.keep(np.arange(len(run)) < rollouts)
    return run


@pytest.mark.parametrize("name", CHECKS.names())
def test_a_check_says_what_it_is(name: str) -> None:
    check = loaded(name)
    assert check.id == name and re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert 10 < len(check.summary) < 160
    assert set(check.recipes) <= set(RECIPES) and bool(check.recipes) == (check.area == "recipe")
    assert all(isinstance(value, int | float) for value in check.options.values())


@pytest.mark.parametrize("name", CHECKS.names())
def test_a_check_is_documented_by_what_it_means_why_how_it_decides_and_how_to_fix_it(name: str) -> None:
    entry = re.search(rf"^### `{name}`\n(.*?)(?=^##|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE)
    assert entry, f"docs/checks.md has no entry for {name}"
    for part in ("**Means**", "**Why**", "**Decides**", "**Fix**"):
        assert part in entry[1], f"{name}: {part} is missing"
    for option in loaded(name).options:
        assert f"`{option}`" in entry[1], f"{name}: option {option} is not documented"


def test_every_documented_check_exists() -> None:
    assert set(re.findall(r"^### `([a-z-]+)`$", PAGE, flags=re.MULTILINE)) == set(CHECKS.names())


@pytest.mark.parametrize("rollouts", [0, 1, 2, 8])
@pytest.mark.parametrize("is_judged", [True, False])
@pytest.mark.filterwarnings("error")
def test_checks_bear_runs_of_almost_nothing(rollouts: int, is_judged: bool) -> None:
    run = tiny(rollouts)
    if not is_judged:
        run.columns["reward"] = np.full(len(run), np.nan)
    report = check_evidence(run.evidence(), CheckOptions())
    if not is_judged or rollouts == 0:
        assert report.exit_code == 3


@pytest.mark.parametrize("defect", ["always-zero", "breaks-halfway", "cut-off", "rewards-empty", "two-modes"])
def test_a_finding_can_be_acted_on(defect: str) -> None:
    report = check_evidence(sick_run(defect, seed=3).evidence(), CheckOptions(recipe="grpo"))
    assert report.findings
    for finding in report.findings:
        assert finding.id in CHECKS.names() and finding.text and not finding.text.endswith(".")
        assert finding.level in ("error", "warning", "note")
        assert finding.level == "note" or finding.next
        assert finding.n is not None and finding.value is not None
        for command in re.findall(r"rollforge ([a-z]+)", finding.next):
            assert command in (
                "check",
                "collect",
                "metrics",
                "prepare",
                "profile",
                "show",
                "status",
                "validate",
                "verify",
            )


def test_every_check_has_a_defect_that_it_finds_or_is_about_one_recipe() -> None:
    found = {defect.finding for defect in DEFECTS.values()}
    without = {name for name in CHECKS.names() if name not in found and not loaded(name).recipes}
    assert without == {
        "suspect-window", "unsandboxed", "labelled-errors", "adaptive-run",
        "turns-bias", "mean-too-low", "mean-too-high", "narrow-spread", "reward-bins", "volume",
    }  # fmt: skip


def test_a_finding_survives_json() -> None:
    import msgspec

    finding = Finding(level="note", text="x", value=None)
    assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding
