"""A goal beside other reasons to stop: wherever a session ends, the same goal goes on to the same rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_goal import call, collect, prepared, rows, tasks

__all__ = ["tasks"]

GOAL = ("--goal", "grpo=20", "--price", "1/2", "--shuffle", "--seed", "5")


@pytest.fixture(scope="module")
def whole(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The goal, reached in one session."""
    run = tmp_path_factory.mktemp("whole") / "run"
    code, result = call(collect(tasks, run, *GOAL))
    assert code == 0 and result["goal"]["usable"] >= 20
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "exit_code"),
    [
        (("--max-cost", "0.02"), 6),
        (("--max-total-tokens", "9000"), 6),
        (("--deadline", "0.05"), 6),
        (("--pilot", "40"), 0),
    ],
    ids=["cost", "tokens", "deadline", "pilot"],
)
def test_a_goal_that_a_budget_or_a_pilot_stopped_goes_on_to_the_same_rollouts(
    tasks: Path, whole: Path, tmp_path: Path, stop: tuple[str, ...], exit_code: int
) -> None:
    run = tmp_path / "run"
    code, first = call(collect(tasks, run, *GOAL, *stop))
    assert code == exit_code and first["goal"]["usable"] < 20
    code, second = call(collect(tasks, run, *GOAL))
    assert code == 0 and second["goal"]["usable"] >= 20
    assert rows(run).keys() == rows(whole).keys(), "decisions are a function of what is on disk"
    assert prepared("grpo", run) == second["goal"]["usable"] == prepared("grpo", whole)
    total, usable = second["cost"]["total"], second["goal"]["usable"]
    assert second["goal"]["dollars_per_unit"] == pytest.approx(total / usable)


@pytest.mark.slow
def test_a_pilot_forecasts_the_rest_to_the_goal_in_tokens_and_dollars(tasks: Path, tmp_path: Path) -> None:
    _, pilot = call(collect(tasks, tmp_path / "run", *GOAL, "--pilot", "60"))
    forecast, goal = pilot["forecast"], pilot["goal"]
    assert forecast["goal"] == "grpo=20" and forecast["tokens"]["value"] == goal["needed_tokens"]["value"]
    assert forecast["cost"]["low"] <= forecast["cost"]["value"] <= forecast["cost"]["high"]
    assert forecast["cost_per_usable_group"]["value"] == pytest.approx(
        goal["needed_dollars"]["value"] / (20 - goal["usable"])
    )


@pytest.mark.parametrize("words", [("--shard", "0/2"), ("--workers", "2")])
def test_shards_are_refused_before_any_work(tasks: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    import subprocess

    done = subprocess.run(
        collect(tasks, tmp_path / "run", "--goal", "grpo=5", *words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "--goal cannot be combined with shards" in done.stderr
    assert not (tmp_path / "run").exists()
