"""Collections with a goal, as people run them: real commands, a real server, real kill -9; what is promised is what prepare finds."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from rollforge.store import RunFiles, read_manifest

ROOT = [sys.executable, "-m", "rollforge"]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(160, 0, "math")))
    return path


def collect(tasks: Path, run: Path, *more: str) -> list[str]:
    return [
        *ROOT, "collect", "-i", str(tasks), "-o", str(run), "-m", "simulated", "--verifier", "exact",
        "--json", "--progress", "none", *([] if "-k" in more else ["-k", "8"]), *more,
    ]  # fmt: skip


def call(words: list[str]) -> tuple[int, dict]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def prepared(recipe: str, run: Path, *more: str) -> int:
    code, manifest = call(
        [*ROOT, "prepare", recipe, str(run), "--to", "trl", "--dry-run", "--force", "--json", *more]
    )
    assert code == 0
    return int(manifest["counts"]["examples"]["planned"])


def rows(run: Path) -> dict[tuple[int, int], dict]:
    lines = RunFiles(run).rollouts.read_text().splitlines()
    found = [json.loads(line) for line in lines]
    keys = {(row["_ng_task_index"], row["_ng_rollout_index"]): row for row in found}
    assert len(keys) == len(lines), "a rollout is there twice"
    return keys


@pytest.mark.parametrize(
    "goal, thresholds",
    [
        ("grpo=25", []),
        ("dpo=40", ["--min-gap", "0.5"]),
        ("rm=30", ["--band", "0.2-0.8"]),
        ("sft=60", ["--min-reward", "0.5", "--band", "0.1-0.9"]),
        ("kto=80", []),
        ("grpo=15", ["--band", "0.25-0.75", "--min-spread", "0.5"]),
    ],
)
def test_prepare_finds_exactly_what_collect_promised(
    tasks: Path, tmp_path: Path, goal: str, thresholds: list[str]
) -> None:
    code, result = call(collect(tasks, tmp_path / "run", "--goal", goal, *thresholds))
    assert code == 0, result["message"]
    recipe, _, target = goal.partition("=")
    promised = result["goal"]["usable"]
    assert promised >= int(target)
    assert prepared(recipe, tmp_path / "run", *thresholds) == promised
    assert result["message"].startswith("goal reached")


@pytest.fixture(scope="module")
def odd_server() -> Iterator[str]:
    """Answers that are empty, cut short, refusals or error texts: each recipe leaves out others of them."""
    faults = ("empty=0.2", "truncated=0.1", "refusal=0.05", "filtered=0.05")
    with SimulatedProcess(SimulateOptions(faults=faults)) as server:
        yield server.base_url


@pytest.mark.parametrize("goal", ["grpo=20", "dpo=20", "rm=20", "sft=40", "kto=40"])
@pytest.mark.parametrize("thresholds", [[], ["--band", "0.2-0.8"]])
def test_prepare_finds_what_collect_promised_also_among_odd_answers(
    tasks: Path, tmp_path: Path, odd_server: str, goal: str, thresholds: list[str]
) -> None:
    words = ["--base-url", odd_server, "--goal", goal, *thresholds]
    code, result = call(collect(tasks, tmp_path / "run", *words))
    assert code in (0, 3), result["message"]
    assert prepared(goal.partition("=")[0], tmp_path / "run", *thresholds) == result["goal"]["usable"] > 0


def test_rewards_that_are_no_measurement_decide_nothing(tasks: Path, tmp_path: Path) -> None:
    """A masked answer is no part of a pass rate, in the rule as in the files: else the run ended before its goal."""
    verifier = tmp_path / "masking.py"
    verifier.write_text(
        "def verify(task, response):\n"
        "    mark = ('mask_sample', True), ('verification_skipped', 'true'), ('other', 1)\n"
        "    name, value = mark[sum(map(ord, response.text)) % 3]\n"
        "    return {'reward': float('{' + str(task['expected_answer']) + '}' in response.text), name: value}\n"
    )
    words = collect(tasks, tmp_path / "run", "--goal", "sft=40", "--band", "0.1-0.9")
    words[words.index("exact")] = f"{verifier}:verify"
    code, result = call(words)
    assert code == 0, result["message"]
    assert prepared("sft", tmp_path / "run", "--band", "0.1-0.9") == result["goal"]["usable"] >= 40


def test_kill_9_at_any_moment_changes_neither_the_decisions_nor_the_count(
    tasks: Path, tmp_path: Path
) -> None:
    chance = random.Random(5)
    with SimulatedProcess(SimulateOptions(latency=0.03)) as server:
        words = ["--base-url", server.base_url, "-c", "12", "--goal", "dpo=70", "--audit", "5%"]
        code, whole = call(collect(tasks, tmp_path / "whole", *words))
        assert code == 0
        kills = 0
        for _ in range(8):
            process = subprocess.Popen(
                collect(tasks, tmp_path / "killed", *words),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                process.wait(timeout=chance.uniform(0.9, 2.2))
                break
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                kills += 1
        code, result = call(collect(tasks, tmp_path / "killed", *words))
    assert code == 0 and kills
    one, other = rows(tmp_path / "whole"), rows(tmp_path / "killed")
    assert one.keys() == other.keys()
    stages = {key: row["_rf"]["stage"] for key, row in one.items()}
    assert stages == {key: row["_rf"]["stage"] for key, row in other.items()}
    assert {"first", "more"} <= set(stages.values())
    assert result["goal"]["usable"] == whole["goal"]["usable"] == prepared("dpo", tmp_path / "killed")


def test_tasks_that_run_out_end_in_exit_3_with_what_would_be_needed(tasks: Path, tmp_path: Path) -> None:
    code, result = call(collect(tasks, tmp_path / "run", "-n", "30", "--goal", "grpo=1000"))
    assert code == 3 and result["ending"] == "incomplete"
    assert "the tasks ran out" in result["message"] and "more tasks like these" in result["message"]
    assert result["goal"]["needed_tasks"]["low"] <= result["goal"]["needed_tasks"]["value"]
    assert prepared("grpo", tmp_path / "run") == result["goal"]["usable"]


@pytest.mark.parametrize("goal", [(), ("--goal", "dpo=500")], ids=["uniform", "goal"])
def test_a_token_budget_is_passed_by_less_than_one_group(
    tasks: Path, tmp_path: Path, goal: tuple[str, ...]
) -> None:
    words = (*goal, "--max-total-tokens", "15000", "-c", "64")
    code, _ = call(collect(tasks, tmp_path / "run", *words))
    assert code == 6
    tokens_by_task: Counter[int] = Counter()
    for (task, _), row in rows(tmp_path / "run").items():
        tokens_by_task[task] += row["response"]["usage"]["total_tokens"]
    over = tokens_by_task.total() - 15_000
    assert 0 <= over < max(tokens_by_task.values()), "requests in flight are part of the budget"


def test_a_budget_that_ends_is_exit_6_and_the_same_command_goes_on(tasks: Path, tmp_path: Path) -> None:
    code, result = call(collect(tasks, tmp_path / "run", "--goal", "dpo=60", "--max-total-tokens", "15000"))
    assert code == 6 and "more tokens" in result["message"]
    status = json.loads(
        subprocess.run(
            [*ROOT, "status", str(tmp_path / "run"), "--json"], capture_output=True, check=True
        ).stdout
    )
    assert status["goal"]["usable"] == result["goal"]["usable"] and status["goal"]["target"] == 60
    assert status["goal"]["needed_tokens"]["high"] > 0
    code, result = call(collect(tasks, tmp_path / "run", "--goal", "dpo=60"))
    assert code == 0 and result["goal"]["usable"] == prepared("dpo", tmp_path / "run") >= 60


def test_a_finished_run_is_topped_up_where_it_pays(tasks: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert call(collect(tasks, run, "-n", "60"))[0] == 0
    before = prepared("dpo", run)
    code, result = call(collect(tasks, run, "-n", "60", "--goal", f"dpo={before + 30}"))
    assert code == 0 and result["goal"]["usable"] == prepared("dpo", run) >= before + 30
    rewards: dict[int, list[float]] = {}
    for (task, _), row in sorted(rows(run).items()):
        rewards.setdefault(task, []).append(row["reward"])
    more = {task for task, own in rewards.items() if len(own) > 8}
    assert more and all(0 < sum(rewards[task][:8]) < 8 for task in more)
    code, metrics = call([*ROOT, "metrics", str(run), "--json"])
    assert metrics["adaptive"]["first"] == 8 and metrics["at_k"]["pass@8"]["tasks"] == 60


def test_a_condition_chooses_the_tasks_that_are_topped_up(tasks: Path, tmp_path: Path) -> None:
    run, condition = tmp_path / "run", "pass_rate between 0.1 and 0.9"
    assert call(collect(tasks, run, "-n", "40"))[0] == 0
    code, result = call(collect(tasks, run, "-n", "40", "-k", "12", "--top-up", condition))
    assert code == 0
    rewards: dict[int, list[float]] = {}
    for (task, _), row in sorted(rows(run).items()):
        rewards.setdefault(task, []).append(row["reward"])
    for own in rewards.values():
        assert len(own) == (12 if 0.1 <= sum(own[:8]) / 8 <= 0.9 else 8)
    assert result["finished"] == result["expected"] == sum(map(len, rewards.values()))


def test_numbers_over_an_adaptive_run_say_so_and_stand_on_the_first_stage(
    tasks: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert call(collect(tasks, run, "--goal", "grpo=40", "--audit", "40%"))[0] == 0
    found = rows(run)
    first = [row["reward"] for (_, sample), row in found.items() if sample < 2]
    _, metrics = call([*ROOT, "metrics", str(run), "--json"])
    assert metrics["fields"]["reward"]["mean"] == pytest.approx(sum(first) / len(first))
    assert metrics["fields"]["reward"]["n"] == len(first) == metrics["adaptive"]["rollouts"]
    assert metrics["counts"]["finished"] == len(found)
    assert [flag["id"] for flag in metrics["flags"]].count("adaptive-run") == 1
    assert "pass@8" in metrics["at_k"] or "pass@8" in metrics["adaptive"]["left_out"]
    _, profile = call([*ROOT, "profile", str(run), "--json"])
    assert "first stage" in profile["adaptive"] and profile["rollouts"] == len(first)
    _, biased = call([*ROOT, "metrics", str(run), "--stage", "all", "--json"])
    assert "adaptive-biased" in [flag["id"] for flag in biased["flags"]]
    _, check = call([*ROOT, "check", str(run), "--for", "grpo", "--json"])
    ids = {finding["id"] for finding in check["findings"]}
    assert "adaptive-run" in ids
    assert not ids & {
        "incomplete-groups",
        "partial-groups",
        "missing-rollouts",
        "reward-shift",
        "position-bias",
    }
    manifest = read_manifest(RunFiles(run))
    assert manifest is not None and manifest.extra["goal"]["first"] == 2


@pytest.mark.parametrize(
    "words, said",
    [
        (["--goal", "grpo"], "is no goal"),
        (["--goal", "gpro=5"], "did you mean 'grpo'"),
        (["--goal", "grpo=0"], "at least 1"),
        (["--goal", "grpo=5", "--no-verify"], "nothing judges"),
        (["--goal", "grpo=5", "-k", "1"], "needs groups"),
        (["--goal", "grpo=5", "-k", "500"], "at most 128"),
        (["--goal", "grpo=5", "--max-samples", "4"], "below the 8 samples"),
        (["--goal", "grpo=5", "--band", "0.9-0.1"], "above the second"),
        (["--min-gap", "0.5"], "only with --goal"),
        (["--top-up", "pass_rate > 0"], "there is none"),
    ],
)
def test_a_mistake_is_said_in_words(tasks: Path, tmp_path: Path, words: list[str], said: str) -> None:
    done = subprocess.run(
        collect(tasks, tmp_path / "run", *words), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "rollouts.jsonl").exists()


def test_a_dry_run_shows_the_plan_of_a_goal(tasks: Path, tmp_path: Path) -> None:
    code, plan = call(collect(tasks, tmp_path / "run", "--goal", "sft=50", "--dry-run"))
    assert code == 0
    assert plan["plan"]["goal"]["recipe"] == "sft" and plan["plan"]["goal"]["first"] == 2
    assert not (tmp_path / "run" / "rollouts.jsonl").exists()
