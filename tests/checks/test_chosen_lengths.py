"""`chosen-lengths` fires where the chosen answers have another length than the pool, and not where only tasks differ in length."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rollforge.steps.check import check_run
from tests.builders import make_rollout, write_rows


def run_of(folder: Path, right: int, wrong: int) -> Path:
    rng = random.Random(2)
    rows = []
    for task in range(60):
        base = rng.randrange(1, 8)  # tasks ask for answers of different lengths
        for sample in range(6):
            reward = float(rng.random() < 0.5)
            words = base * (right if reward else wrong) + rng.randrange(3)
            rows.append(make_rollout(task, sample, reward, text=f"{task} {sample} " + "word " * words))
    return write_rows(folder / "rollouts.jsonl", rows).parent


@pytest.mark.parametrize("recipe", ["sft", "dpo"])
@pytest.mark.parametrize(("right", "wrong", "word"), [(10, 30, "shorter"), (30, 10, "longer"), (20, 20, "")])
def test_lengths_of_what_would_be_chosen_are_compared_within_tasks(
    recipe: str, right: int, wrong: int, word: str, tmp_path: Path
) -> None:
    report = check_run([str(run_of(tmp_path / "run", right, wrong))], recipe=recipe)  # type: ignore[arg-type]
    found = [finding.text for finding in report.findings if finding.id == "chosen-lengths"]
    assert len(found) == bool(word) and all(word in text for text in found)
