"""The same answers get the same rewards in collect and in each trainer's own code, and training steps run on them."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import rollforge as rf
from rollforge.cli import main as rollforge
from rollforge.simulate import example_tasks
from rollforge.steps.prepare import prepare
from tests.trainers.test_trainers import HERE, PYTHON

SOURCE = HERE.parents[1] / "src"


def has_packages() -> bool:
    """Whether the trainers' environment has what rollforge itself needs."""
    if not (HERE.parents[1] / ".venv-trainers" / ".ready").exists():
        return False
    probe = [PYTHON, "-c", "import aiohttp, msgspec, math_verify"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not has_packages(), reason="scripts/trainers.sh makes the environment"),
]


class Judged:
    """A run, its answers by task, and the rewards that collect gave them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tasks = folder / "tasks.jsonl"
        tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(24, 0, "math")))
        run = rf.collect(tasks, model="simulated", verifier="math", samples=4, out=folder / "run")
        self.answers: dict[str, list[str]] = defaultdict(list)
        self.rewards: dict[str, list[float]] = defaultdict(list)
        rows = sorted(run, key=lambda row: (row["_ng_task_index"], row["_ng_rollout_index"]))
        for row in rows:
            name = str(row["_ng_task_index"])
            self.answers[name].append(rf.Response(row["response"]).text)
            self.rewards[name].append(row["reward"])
        (folder / "answers.json").write_text(json.dumps(self.answers))
        for recipe, to in (("grpo", "trl"), ("ppo", "trl"), ("grpo", "verl"), ("ppo", "openrlhf")):
            prepare(recipe, run.path, to=to, out=folder / f"{recipe}-{to}")

    def expected(self, task_ids: list[str]) -> list[float]:
        """The rewards that collect gave, for the prompts of a dataset in its order."""
        return [reward for task in task_ids for reward in self.rewards[task]]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return Judged(tmp_path_factory.mktemp("rewards"))


def seen_by(script: str, folder: Path) -> Any:
    """What a script in the trainers' environment reports; rollforge is on its path."""
    done = subprocess.run(
        [PYTHON, HERE / script, folder],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    return json.loads(lines[-1].removeprefix("RESULT "))


def shell_block(place: Path) -> str:
    """The shell lines of a dataset's card."""
    found = re.search(r"```sh\n(.*?)```", (place / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def shell(line: str, place: Path) -> str:
    """What a line of a card prints, run in the dataset's folder with `rollforge` on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euc", line],
        cwd=place,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def task_ids(file: Path) -> list[str]:
    return [json.loads(line)["task_id"] for line in file.read_text().splitlines()]


def test_trl_gives_the_rewards_of_collect_and_takes_grpo_and_rloo_steps(judged: Judged) -> None:
    seen = seen_by("reward_trl.py", judged.folder)
    for recipe in ("grpo", "ppo"):
        found = seen[recipe]
        ids = task_ids(judged.folder / f"{recipe}-trl" / "train.jsonl")
        assert found["rewards"] == judged.expected(ids)
        assert len(set(found["rewards"])) > 1, "the answers must differ for this to show anything"
        assert found["steps"] == 2 and math.isfinite(found["loss"])
        assert "rollforge/unjudged" in found["logged"] and "rewards/math/mean" in found["logged"]
        assert len(found["unjudged"]) == 2


def test_verls_reward_manager_gives_the_rewards_of_collect_and_stops_without_a_verdict(
    judged: Judged,
) -> None:
    import pyarrow.parquet as pq

    place = judged.folder / "grpo-verl"
    command = shell_block(place).replace("\\\n", " ").partition("main_ppo ")[2].strip()
    words = shell(f"printf '%s\\n' {command}", place).splitlines()
    (judged.folder / "words.json").write_text(json.dumps(words))
    seen = seen_by("reward_verl.py", judged.folder)
    rows = pq.read_table(judged.folder / "grpo-verl" / "train.parquet").to_pylist()
    expected = judged.expected([row["extra_info"]["task_id"] for row in rows])
    for name in ("compute_score", "compute_score_async"):
        assert [one["reward_score"] for one in seen[name]] == expected
        assert {one["reward_extra_info"]["rollforge/unjudged"] for one in seen[name]} == {0.0}
    assert seen["raised"].startswith("Unjudged: ")
    assert {one["reward_score"] for one in seen["said"]} == {0.0}
    assert {one["reward_extra_info"]["rollforge/unjudged"] for one in seen["said"]} == {1.0}


def test_openrlhfs_remote_reward_path_gives_the_rewards_of_collect_and_stops_without_a_verdict(
    judged: Judged, capsys: pytest.CaptureFixture[str]
) -> None:
    place = judged.folder / "ppo-openrlhf"
    shell(shell_block(place).splitlines()[0], place)
    silent = f"{HERE / 'silent_verifier.py'}:verify"
    (judged.folder / "silent.py").write_text(printed(capsys, "rewards", "--write", "openrlhf", silent))
    seen = seen_by("reward_openrlhf.py", judged.folder)
    expected = judged.expected(task_ids(place / "train.jsonl"))
    assert [one["reward"] for one in seen["rewards"]] == expected
    assert [one["scores"] for one in seen["rewards"]] == expected
    assert {one["extra_logs"]["rollforge/unjudged"] for one in seen["rewards"]} == {0.0}
    assert seen["stopped"].startswith("UnjudgedStop: ")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        rollforge(list(words))
    assert not end.value.code
    return capsys.readouterr().out


def test_the_snippets_of_the_cards_name_the_adapter_and_run_as_printed(judged: Judged) -> None:
    for place, adapter in (
        ("grpo-trl", 'reward.from_dataset(".")'),
        ("grpo-verl", "rollforge rewards --path verl"),
        ("ppo-openrlhf", "rollforge rewards --write openrlhf --dataset ."),
    ):
        assert adapter in (judged.folder / place / "README.md").read_text()
    shell = re.search(
        r"```sh\n(.*?)```", (judged.folder / "ppo-openrlhf" / "README.md").read_text(), re.DOTALL
    )
    assert shell is not None and "--reward.remote_url reward.py" in shell[1]


def test_trls_card_trains_as_printed(judged: Judged, tmp_path: Path) -> None:
    for name in ("grpo-trl", "ppo-trl"):
        (tmp_path / name).symlink_to(judged.folder / name)
    seen = seen_by("run_card.py", tmp_path)
    assert {name: found.get("steps", found) for name, found in seen.items()} == {"grpo-trl": 1, "ppo-trl": 1}
