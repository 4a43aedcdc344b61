"""Profile: the statistics of the profiler people know, where it is right, and ours where it is not."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollforge.errors import DataError
from rollforge.index import open_index
from rollforge.steps.profile import ProfileOptions, profile_index, profile_run, write_profile
from tests.builders import Row, make_rollout, write_rows


def written(path: Path, **options: Any) -> tuple[list[Row], list[Row]]:
    with open_index(path) as index:
        files = write_profile(profile_index(index), index, **options)
    tasks = [json.loads(line) for line in Path(files["tasks"]).read_text().splitlines()]
    return tasks, json.loads(Path(files["agents"]).read_text())


def plain_profile(rows: list[Row], key: str) -> dict[Any, dict[str, float]]:
    """The known profiler's arithmetic in plain Python: numbers and usage merged, sample std, its rules for a missing std."""
    groups: dict[Any, list[dict[str, float]]] = {}
    for row in rows:
        merged = row | (row["response"].get("usage") or {})
        numbers = {
            name: float(value) for name, value in merged.items()
            if isinstance(value, bool | int | float) and name not in ("_ng_task_index", "_ng_rollout_index")
        }  # fmt: skip
        groups.setdefault(row["agent_ref"]["name"] if key == "agent" else row["_ng_task_index"], []).append(
            numbers
        )
    names = {name for group in groups.values() for numbers in group for name in numbers}
    return {group: _plain_statistics(members, names) for group, members in groups.items()}


def _plain_statistics(members: list[dict[str, float]], names: set[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    values = {name: [numbers[name] for numbers in members if name in numbers] for name in names}
    has_spread = any(len(known) > 1 for known in values.values())
    for name, known in values.items():
        if known:
            found |= {
                f"mean/{name}": statistics.fmean(known), f"max/{name}": max(known), f"min/{name}": min(known),
                f"median/{name}": statistics.median(known),
            }  # fmt: skip
        if len(known) > 1:
            found[f"std/{name}"] = statistics.stdev(known)
        elif not has_spread and len(known) == len(members):
            found[f"std/{name}"] = 0.0
    return found


def test_a_profile_too_large_for_memory_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        make_rollout(task, sample, reward=(task * sample) % 3 / 2, style=None if task % 2 else sample / 7)
        for task in range(700)
        for sample in range(1 + task % 3)
    ]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    small = written(path, parquet=True)
    table = (tmp_path / "rollouts_reward_profiling.parquet").read_bytes()
    monkeypatch.setattr("rollforge.steps.profile.shelf.BUDGET", 0)
    assert written(path, parquet=True) == small
    assert (tmp_path / "rollouts_reward_profiling.parquet").read_bytes() == table
    assert not list((tmp_path / "rollouts_index").glob("tmp*"))


numbers = st.one_of(st.none(), st.booleans(), st.floats(-100, 100), st.integers(-5, 5))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4), st.dictionaries(st.sampled_from("abc"), numbers), st.sampled_from(["x", "y"])
        ),
        min_size=1,
        max_size=20,
    )
)
def test_statistics_agree_with_the_known_profiler(tmp_path: Path, made: list[tuple[int, Row, str]]) -> None:
    rows = [
        make_rollout(task, n, 0.5 * (n % 3), agent=agent, **fields)
        for n, (task, fields, agent) in enumerate(made)
    ]
    tasks, agents = written(write_rows(tmp_path / "r.jsonl", rows))
    for found, expected in (
        ({row["_ng_task_index"]: row for row in tasks}, plain_profile(rows, "task")),
        ({row["agent_ref"]["name"]: row for row in agents}, plain_profile(rows, "agent")),
    ):
        assert set(found) == set(expected)
        for group, statistics_ in expected.items():
            ours = {
                key: value
                for key, value in found[group].items()
                if key.split("/")[0] in ("mean", "max", "min", "median", "std")
            }
            assert set(ours) == set(statistics_)
            assert all(
                math.isclose(ours[key], value, rel_tol=1e-9, abs_tol=1e-9)
                for key, value in statistics_.items()
            )


def test_one_rollout_has_std_zero_and_a_field_seen_once_of_two_has_none(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0), make_rollout(1, 0, 1.0, x=1), make_rollout(1, 1, 0.0)]
    tasks, _ = written(write_rows(tmp_path / "r.jsonl", rows))
    assert tasks[0]["std/reward"] == 0 and "std/x" not in tasks[0]
    assert (
        tasks[1]["std/reward"] == pytest.approx(math.sqrt(0.5))
        and "std/x" not in tasks[1]
        and tasks[1]["mean/x"] == 1
    )


def test_a_null_response_an_endless_reward_and_a_missing_rollout_do_not_stop_it(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0) | {"response": None}, make_rollout(0, 1, 0.0), make_rollout(2, 0, 1.0)]
    inf = json.dumps(make_rollout(1, 0, float("inf"))).encode()
    path = write_rows(tmp_path / "rollouts.jsonl", [*rows, inf])
    inputs = [
        {
            "_ng_task_index": t,
            "_ng_rollout_index": n,
            "responses_create_params": {"input": f"q{t}"},
            "agent_ref": {"name": "a"},
        }
        for t in range(4)
        for n in range(2)
    ]
    write_rows(tmp_path / "rollouts_materialized_inputs.jsonl", inputs)
    tasks, _ = written(path)
    assert [row["_ng_task_index"] for row in tasks] == [0, 1, 2, 3]
    assert [row["num_rollouts"] for row in tasks] == [2, 1, 1, 0]
    assert [row["missing_num_rollouts"] for row in tasks[:3]] == [0, 1, 1] and tasks[2][
        "reward_profile_completion_pct"
    ] == 50
    assert "mean/reward" not in tasks[1] and tasks[2]["mean/reward"] == 1
    assert tasks[2]["sample"] == {"responses_create_params": {"input": "q2"}, "agent_ref": {"name": "a"}}


def test_samples_come_from_the_rollouts_when_no_tasks_are_there(tmp_path: Path) -> None:
    tasks, _ = written(write_rows(tmp_path / "r.jsonl", [make_rollout(5, 0, prompt="why?")]))
    assert (
        tasks[0]["sample"]["responses_create_params"]["input"][0]["content"] == "why?"
        and tasks[0]["_ng_task_index"] == 5
    )


@pytest.mark.parametrize("has_twice", [False, True])
def test_under_a_condition_the_sample_is_the_first_rollout_it_keeps(tmp_path: Path, has_twice: bool) -> None:
    rows = [make_rollout(t, n, float(n), prompt=f"q{t} as asked {n}") for t in (1, 0) for n in range(3)]
    if has_twice:
        rows.insert(0, make_rollout(0, 1, 5.0, prompt="overruled by a later row"))
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    for where, asked in (("reward > 0", [1, 1]), ("reward > 0 and (task = 0 or reward > 1) -- or", [1, 2])):
        with open_index(path) as index:
            profile = profile_index(index, ProfileOptions(where=where))
            write_profile(profile, index, where=where)
        found = [json.loads(line) for line in (tmp_path / "rollouts_reward_profiling.jsonl").open()]
        output = [row["sample"]["responses_create_params"]["input"][0]["content"] for row in found]
        assert output == [f"q{task} as asked {n}" for task, n in enumerate(asked)]


def test_bands_signal_and_histograms(tmp_path: Path) -> None:
    groups = {
        0: [0, 0, 0, 0],
        1: [1, 0, 0, 0],
        2: [1, 1, 0, 0],
        3: [1, 1, 1, 0],
        4: [1, 1, 1, 1],
        5: [0.3, 0.1 + 0.2, 0.3, 0.3],
    }
    rows = [make_rollout(t, n, float(r)) for t, group in groups.items() for n, r in enumerate(group)]
    path = write_rows(tmp_path / "r.jsonl", rows)
    tasks, agents = written(path, rollout_infos=True, parquet=True)
    assert [row["difficulty"] for row in tasks] == [
        "never solved",
        "hard",
        "mixed",
        "easy",
        "always solved",
        "never solved",
    ]
    assert [row["has_signal"] for row in tasks] == [False, True, True, True, False, False]
    assert tasks[2]["pass_rate"] == 0.5 and tasks[2]["pass_rate_ci"][0] < 0.5 < tasks[2]["pass_rate_ci"][1]
    assert (
        sum(tasks[4]["histogram/reward"]["counts"]) == 4 and tasks[4]["histogram/reward"]["counts"][-1] == 4
    )
    assert (
        agents[0]["histogram/reward"]["counts"][-1] == 10
        and (tmp_path / "r_reward_profiling.parquet").exists()
    )
    assert tasks[1]["rollout_infos"][0]["rollout_id"] == "1:0" and tasks[1]["rollout_infos"][0]["reward"] == 1
    summary = profile_run(path).summary
    assert summary.bands == {"never solved": 2, "hard": 1, "mixed": 1, "easy": 1, "always solved": 1}
    assert summary.no_signal.tasks == 3 and {y.k: y.value for y in summary.group_yield}[4] == pytest.approx(
        0.5
    )
    assert [look.task for look in summary.look["solved_once"]] == [1]


def test_a_reward_at_the_threshold_solves_its_task_everywhere_in_the_summary(tmp_path: Path) -> None:
    rows = [make_rollout(t, n, 0.5 if t == n else 0.25) for t in range(3) for n in range(3)]
    path = write_rows(tmp_path / "r.jsonl", rows)
    summary = profile_run(path, options=ProfileOptions(threshold=0.5)).summary
    assert summary.bands == {"never solved": 0, "hard": 0, "mixed": 3, "easy": 0, "always solved": 0}
    assert summary.tokens_per_success == 9 * 20 / 3
    assert sorted(look.task for look in summary.look["solved_once"]) == [0, 1, 2]
    assert not summary.look.get("never_solved_long")


def test_tolerance_decides_what_counts_as_the_same_reward(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [make_rollout(0, 0, 0.5), make_rollout(0, 1, 0.51)])
    assert profile_run(path).summary.no_signal.tasks == 0
    assert profile_run(path, options=ProfileOptions(tolerance=0.05)).summary.no_signal.tasks == 1


def test_a_table_for_python(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "r.jsonl", [make_rollout(t, n, float(n)) for t in range(3) for n in range(2)]
    )
    profile = profile_run(path)
    assert profile.tasks.column("mean/reward").to_pylist() == [0.5, 0.5, 0.5]
    assert profile.agents.column("num_rollouts").to_pylist() == [6]


def test_unjudged_groups_have_no_difficulty(tmp_path: Path) -> None:
    tasks, _ = written(write_rows(tmp_path / "r.jsonl", [make_rollout(0, 0, None)]))
    assert "difficulty" not in tasks[0] and "pass_rate" not in tasks[0] and tasks[0]["num_judged"] == 0


def test_fields_keep_the_names_the_rows_give_them(tmp_path: Path) -> None:
    rows = [
        make_rollout(0, 0, 1.0, turns=3, length=7, Task=2, _ng_attempt_index=1),
        make_rollout(0, 1, 0.0, turns=5, length=9, Task=4, _ng_attempt_index=2),
        make_rollout(1, 0, 0.0, turns=1, length=1, Task=1, _ng_attempt_index=1),
    ]
    tasks, agents = written(write_rows(tmp_path / "r.jsonl", rows), rollout_infos=True)
    for name, value in {"turns": 4, "length": 8, "Task": 3, "_ng_attempt_index": 1.5}.items():
        assert tasks[0][f"mean/{name}"] == value and tasks[1][f"std/{name}"] == 0
        assert f"median/{name}" in agents[0] and f"histogram/{name}" in agents[0]
    assert tasks[0]["rollout_infos"][1]["turns"] == 5
    assert not any("fields." in key for key in (*tasks[0], *agents[0]))


def test_a_key_that_needs_escaping_is_a_field_like_any_other(tmp_path: Path) -> None:
    rows = [make_rollout(0, 0, 1.0, **{'say "x"\n': 2})]
    assert written(write_rows(tmp_path / "r.jsonl", rows))[0][0]['mean/say "x"\n'] == 2


@pytest.mark.parametrize(
    "rewards", [(5.0, 5.000000000000001), (1e308, -1e308), (1.79e308, 1.79e308), (5e-324, -5e-324)]
)
def test_rewards_of_any_size_and_nearness_are_profiled(tmp_path: Path, rewards: tuple[float, float]) -> None:
    rows = [make_rollout(0, n, reward) for n, reward in enumerate(rewards)]
    tasks, _ = written(write_rows(tmp_path / "r.jsonl", rows))
    assert sum(tasks[0]["histogram/reward"]["counts"]) == 2
    is_noise = abs(rewards[0] / 2 - rewards[1] / 2) < 1e-9
    profile = profile_run(tmp_path / "r.jsonl")
    assert profile.tasks.column("has_signal").to_pylist() == [not is_noise]
    assert bool(profile.summary.look["highest_variance"]) is not is_noise


def test_several_agents_without_a_single_verdict_are_told(tmp_path: Path) -> None:
    rows = [make_rollout(0, n, None, agent=f"agent {n}") for n in range(2)]
    profile = profile_run(write_rows(tmp_path / "r.jsonl", rows))
    assert profile.agents.column("mean/reward").to_pylist() == [None, None]


def test_an_odd_row_of_the_tasks_file_is_shown_as_far_as_json_can(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, 0, 1.0) for task in range(2)])
    params = '"responses_create_params":{"input":"q"}'
    tasks = [
        f'{{"_ng_task_index":0,{params},"difficulty":NaN}}',
        f'{{"_ng_task_index":1,{params},"text":"\\ud800"}}',
    ]
    write_rows(tmp_path / "rollouts_materialized_inputs.jsonl", [line.encode() for line in tasks])
    samples = [row["sample"] for row in written(path)[0]]
    assert samples[0]["difficulty"] is None and samples[1]["text"] == "\ud800"


def test_several_profiles_of_one_run_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, 0, 1.0) for task in range(3000)])
    command = [sys.executable, "-m", "rollforge", "profile", str(path)]
    running = [subprocess.Popen(command, stdout=-3, stderr=-3) for _ in range(4)]
    assert [one.wait() for one in running] == [0] * 4
    assert len((tmp_path / "rollouts_reward_profiling.jsonl").read_text().splitlines()) == 3000
    assert not list(tmp_path.glob(".rollouts*"))


def test_a_task_without_a_rollout_misses_all_that_were_expected(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, 1.0)])
    rows = [{"_ng_task_index": task, "responses_create_params": {"input": "q"}} for task in (0, 0, 1, 1)]
    write_rows(tmp_path / "rollouts_materialized_inputs.jsonl", rows)
    first, second = written(path)[0]
    assert (first["expected_num_rollouts"], first["missing_num_rollouts"]) == (2, 1)
    assert (second["expected_num_rollouts"], second["missing_num_rollouts"]) == (2, 2)
    assert second["reward_profile_completion_pct"] == 0


def test_a_number_with_a_dot_in_its_name_is_one_of_the_rollout(tmp_path: Path) -> None:
    row = make_rollout(0, 0, 1.0) | {"a.b": 10, "reward_components": {"c": 0.5}}
    tasks, _ = written(write_rows(tmp_path / "rollouts.jsonl", [row]), rollout_infos=True)
    info = tasks[0]["rollout_infos"][0]
    assert info["a.b"] == 10 and "reward_components.c" not in info


def test_tokens_per_success_are_those_of_judged_rollouts(tmp_path: Path) -> None:
    cost = {"output_tokens": 100}
    rows = [make_rollout(0, n, reward, usage=cost) for n, reward in enumerate((1.0, 0.0, None, None))]
    rows.append(make_rollout(0, 4, 1.0, usage={"input_tokens": 3}))
    profile = profile_run(write_rows(tmp_path / "rollouts.jsonl", rows))
    assert profile.summary.tokens_per_success == 200


def test_whoever_reads_a_profile_that_is_made_anew_reads_the_old_one_whole(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0), make_rollout(1, 0)])
    with open_index(path) as index:
        written = write_profile(profile_index(index), index)
        with Path(written["tasks"]).open() as tasks, Path(written["agents"]).open() as agents:
            write_profile(profile_index(index, ProfileOptions(where="task = 0")), index, where="task = 0")
            assert len(tasks.readlines()) == 2
            assert json.load(agents)[0]["num_tasks"] == 2


def test_the_number_of_readers_does_not_change_the_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        make_rollout(task, rollout, reward=None if task == 7 else (task * rollout) % 3 / 2)
        for task in range(50)
        for rollout in range(3)
    ]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    monkeypatch.setattr("rollforge.steps.profile.profile_files.SLICE", 4)
    found = []
    for workers in (1, 2, 5):
        with open_index(path, workers=workers) as index:
            files = write_profile(profile_index(index), index, rollout_infos=True)
        found.append([Path(file).read_bytes() for file in files.values()])
    assert found[0] == found[1] == found[2]
    assert [json.loads(line)["_ng_task_index"] for line in found[0][0].splitlines()] == list(range(50))


@pytest.mark.parametrize("workers", [1, 2])
def test_text_that_ends_while_it_is_written_leaves_the_old_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, 0) for task in range(20)])
    monkeypatch.setattr("rollforge.steps.profile.profile_files.SLICE", 4)
    with open_index(path, workers=workers) as index:
        files = write_profile(profile_index(index), index)
        before = Path(files["tasks"]).read_bytes()
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(DataError, match="shorter"):
            write_profile(profile_index(index), index)
    assert Path(files["tasks"]).read_bytes() == before
    assert not list(tmp_path.glob(".rollouts*"))
