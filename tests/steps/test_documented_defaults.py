"""What an option is by default in Python is what the page of its command says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rollforge.adaptive.design import SamplingDesign
from rollforge.recipes.base import RecipeOptions
from rollforge.steps.collect.batch.batch_options import BatchOptions
from rollforge.steps.collect.collect_options import PaceOptions, RolloutOptions, TaskOptions, VerifierOptions
from rollforge.steps.collect.goal.goal_options import GoalOptions
from rollforge.steps.metrics.run_metrics import MetricsOptions
from rollforge.steps.prepare.settings import FileSettings, PairSettings, SelectionSettings
from rollforge.steps.profile.profile_tables import ProfileOptions
from rollforge.steps.show import ShowOptions
from rollforge.steps.verify.verify_options import RunningOptions
from rollforge.store.manifest import Manifest

PAGES = Path(__file__).parents[2] / "docs" / "commands"

OPTIONS: dict[str, tuple[Any, ...]] = {
    "collect": (TaskOptions(), VerifierOptions(), RolloutOptions(), PaceOptions(), GoalOptions(), BatchOptions()),
    "verify": (RunningOptions(),),
    "prepare": (SelectionSettings(), PairSettings(), FileSettings()),
    "profile": (ProfileOptions(),),
    "metrics": (MetricsOptions(),),
}  # fmt: skip
"""Command → the records that its flags fill."""

NAMES = {"timeout": "verify_timeout", "memory_mb": "verify_memory"}
"""Options of `verify` whose flags are called otherwise."""


def documented(command: str) -> dict[str, float]:
    """Flag → its default, where that is a number or a length of time."""
    text = re.sub(r"\s*│\n│\s{3,}", " ", (PAGES / f"{command}.md").read_text())
    rows = re.findall(r"│\s+(?:\*\s+)?--([\w-]+)[^│]*?\[default: ([\d.]+[smhd]?)\]", text)
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return {flag: float(value.rstrip("smhd")) * units.get(value[-1], 1) for flag, value in rows}


@pytest.mark.parametrize("command", OPTIONS)
def test_the_default_of_every_number_is_the_documented_one(command: str) -> None:
    written = documented(command)
    compared = 0
    for options in OPTIONS[command]:
        for name in getattr(options, "__struct_fields__", None) or vars(options):
            value = getattr(options, name)
            flag = NAMES.get(name, name.removesuffix("_s")).replace("_", "-")
            if isinstance(value, int | float) and not isinstance(value, bool) and flag in written:
                assert written[flag] == value, f"--{flag}"
                compared += 1
    assert compared >= min(len(written), 2), "the page was read"


def test_a_goal_a_design_and_a_preparation_pair_by_one_gap() -> None:
    gaps = {
        GoalOptions().min_gap,
        PairSettings().min_gap,
        RecipeOptions().min_gap,
        SamplingDesign(first=2, whole=8, most=8).min_gap,
    }
    assert gaps == {documented("prepare")["min-gap"]}


def test_a_manifest_that_does_not_say_has_one_sample_a_task() -> None:
    assert msgspec.convert({"rollforge": "1", "created": 1.0}, Manifest).samples == TaskOptions().samples == 1


def test_five_rollouts_are_shown_unless_more_are_asked_for() -> None:
    assert f"At most this many. Default: {ShowOptions().limit}." in (PAGES / "show.md").read_text()
