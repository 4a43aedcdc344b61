"""Scored groups and prompt sets: their numbers are over exactly the rollouts that the manifest counts as kept."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.steps.prepare import prepare, prepare_again
from tests.builders import Row, make_rollout, write_rows
from tests.prepare_runs import read_lines, reasoning, text, with_output

SEARCH = {"type": "web_search_call"}


def run_of(folder: Path, *rows: Row) -> Path:
    return write_rows(folder / "rollouts.jsonl", rows).parent


def searched(task: int, sample: int, reward: float) -> Row:
    """A rollout that no message can say."""
    return with_output(make_rollout(task, sample, reward), SEARCH, text(f"s{task}.{sample}"))


def said(task: int, sample: int, reward: float) -> Row:
    return make_rollout(task, sample, reward, text=f"t{task}.{sample}")


@pytest.mark.parametrize("container", ["jsonl", "parquet"])
def test_a_group_is_scored_over_exactly_the_rollouts_that_are_written(container: str, tmp_path: Path) -> None:
    rows = [said(0, 0, 0.0), said(0, 1, 1.0), searched(0, 2, 0.5), said(0, 3, 1.0)]
    run = run_of(tmp_path / "run", *rows, said(1, 0, 0.0), said(1, 1, 1.0))
    out = tmp_path / "data"
    made = prepare("grpo", run, to="chat", out=out, shape="groups", format=container)
    if container == "parquet":
        import pyarrow.parquet as pq

        written = pq.read_table(out / "train.parquet").to_pylist()
    else:
        written = read_lines(out / "train.jsonl")
    first = [row for row in written if row["task_id"] == "0"]
    rewards = [row["reward"] for row in first]
    assert rewards == [0.0, 1.0, 1.0]
    for row in first:
        assert row["group_size"] == 3
        assert row["group_mean"] == pytest.approx(statistics.mean(rewards))
        assert row["group_std"] == pytest.approx(statistics.stdev(rewards))
        assert row["advantage_dr_grpo"] == pytest.approx(row["reward"] - statistics.mean(rewards))
    assert made.counts["rollouts"] == {
        "in": 6,
        "kept": 5,
        "cannot be expressed: item type web_search_call": 1,
    }
    assert made.counts["examples"] == {
        "planned": 6,
        "cannot be expressed: item type web_search_call": 1,
        "written": 5,
    }
    again = prepare_again(out / "manifest.json", out=tmp_path / "again")
    assert again.counts == made.counts


def test_a_group_left_without_signal_by_what_cannot_be_expressed_is_left_out_and_counted(
    tmp_path: Path,
) -> None:
    rows = [said(0, 0, 1.0), said(0, 1, 1.0), searched(0, 2, 0.0), said(1, 0, 1.0), searched(1, 1, 0.0)]
    run = run_of(tmp_path / "run", *rows, said(2, 0, 0.0), said(2, 1, 1.0))
    made = prepare("grpo", run, to="chat", out=tmp_path / "data", shape="groups")
    assert {row["task_id"] for row in read_lines(tmp_path / "data" / "train.jsonl")} == {"2"}
    assert made.counts["rollouts"] == {
        "in": 7,
        "kept": 2,
        "cannot be expressed: item type web_search_call": 2,
        "alone in its group": 1,
        "group without signal": 2,
    }


@pytest.mark.parametrize("recipe", ["ppo", "rm"])
def test_groups_that_need_no_signal_stay_with_the_rollouts_they_have_left(
    recipe: str, tmp_path: Path
) -> None:
    rows = [said(0, 0, 1.0), searched(0, 1, 0.0), said(1, 0, 1.0), said(1, 1, 0.0)]
    shape = "scored" if recipe == "rm" else "groups"
    prepare(
        recipe,
        run_of(tmp_path / "run", *rows),
        to="chat",
        out=tmp_path / "data",
        shape=shape,
        split=(0.5, 0.5),
    )
    written = [row for path in (tmp_path / "data").glob("*.jsonl") for row in read_lines(path)]
    assert sorted((row["task_id"], row["group_size"], row["group_mean"]) for row in written) == [
        ("0", 1, 1.0),
        ("1", 2, 0.5),
        ("1", 2, 0.5),
    ]


def test_a_limit_is_filled_with_whole_groups_as_they_are_written(tmp_path: Path) -> None:
    rows = [
        said(t, k, float(k % 2)) if (t, k) != (t, 3) else searched(t, k, 1.0)
        for t in range(6)
        for k in range(4)
    ]
    run = run_of(tmp_path / "run", *rows)
    made = prepare("grpo", run, to="chat", out=tmp_path / "data", shape="groups", limit=7)
    written = read_lines(tmp_path / "data" / "train.jsonl")
    assert len(written) == 6 and {row["group_size"] for row in written} == {3}
    assert sum(n for name, n in made.counts["rollouts"].items() if name != "in") == 24


def test_groups_of_which_nothing_can_be_expressed_are_refused_with_the_reason(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", *[searched(0, k, float(k)) for k in range(3)])
    with pytest.raises(UsageError, match="web_search_call"):
        prepare("grpo", run, to="chat", out=tmp_path / "data", shape="groups")
    assert not (tmp_path / "data").exists()


def rollouts_behind(folder: Path) -> int:
    return sum(row["n_rollouts"] for row in read_lines(folder / "train.jsonl"))


@pytest.mark.parametrize("recipe", ["ppo", "grpo"])
def test_a_prompt_set_counts_rollouts_whose_answer_cannot_be_expressed_because_no_answer_is_written(
    recipe: str, tmp_path: Path
) -> None:
    odd = [
        with_output(make_rollout(0, 2, 0.0)),
        with_output(make_rollout(0, 3, 1.0), reasoning("hm")),
        with_output(make_rollout(0, 4, 0.0), SEARCH),
    ]
    run = run_of(tmp_path / "run", *odd, said(0, 0, 0.0), said(0, 1, 1.0), said(1, 0, 0.0), said(1, 1, 1.0))
    made = prepare(recipe, run, to="trl", out=tmp_path / "data")
    assert made.counts["rollouts"] == {"in": 7, "kept": 7}
    assert rollouts_behind(tmp_path / "data") == 7
    assert [row["mean_reward"] for row in read_lines(tmp_path / "data" / "train.jsonl")] == [0.4, 0.5]


@pytest.mark.parametrize("exporter", ["trl", "gym", "nemo-rl", "chat"])
def test_a_task_is_asked_even_if_all_its_answers_so_far_are_empty(exporter: str, tmp_path: Path) -> None:
    rows = [with_output(make_rollout(t, k, float(k), agent="a")) for t in range(2) for k in range(2)]
    made = prepare("grpo", run_of(tmp_path / "run", *rows), to=exporter, out=tmp_path / "data")
    assert made.counts["rollouts"] == {"in": 4, "kept": 4}
    assert made.counts["examples"] == {"planned": 2, "written": 2}


def test_groups_still_leave_out_empty_answers(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", said(0, 0, 0.0), said(0, 1, 1.0), with_output(make_rollout(0, 2, 0.0)))
    made = prepare("grpo", run, to="chat", out=tmp_path / "data", shape="groups")
    assert made.counts["rollouts"] == {"in": 3, "kept": 2, "cannot be expressed: empty output": 1}


def test_numbers_of_a_prompt_are_over_the_rollouts_that_are_counted_as_kept(tmp_path: Path) -> None:
    rows = [said(t, k, float(k > t)) for t in range(3) for k in range(4)]
    rows += [make_rollout(t, 4, 0.0, text="Error: connection refused") for t in range(3)]
    run = run_of(tmp_path / "run", *rows)
    options = {"where": "rollout > 0", "band": (0.5, 1.0), "order": "easy-first"}
    made = prepare("ppo", run, to="trl", out=tmp_path / "data", **options)
    written = read_lines(tmp_path / "data" / "train.jsonl")
    assert [(row["task_id"], row["n_rollouts"], row["pass_rate"]) for row in written] == [
        ("0", 3, 1.0),
        ("1", 3, pytest.approx(2 / 3)),
    ]
    assert made.counts["rollouts"] == {
        "in": 15,
        "kept": 6,
        "error text as answer": 3,
        "where does not hold": 3,
        "outside the difficulty band": 3,
    }


def test_the_prompt_of_a_row_in_chat_form_is_read_without_its_answer(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "What is 6 × 7?"}]
    odd = {"role": "assistant", "content": "", "tool_calls": [{"function": {"arguments": "{}"}}]}
    rows = [
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "messages": [*asked, odd], "reward": 0.0},
        {"_ng_task_index": 0, "_ng_rollout_index": 1, "messages": [*asked, 42], "reward": 1.0},
    ]
    made = prepare("grpo", run_of(tmp_path / "run", *rows), to="trl", out=tmp_path / "data")
    (row,) = read_lines(tmp_path / "data" / "train.jsonl")
    assert row["prompt"] == asked and row["n_rollouts"] == made.counts["rollouts"]["kept"]


@pytest.mark.parametrize("options", [{}, {"shape": "groups"}])
def test_two_prompts_under_one_task_number_are_told_apart_by_their_id(
    options: dict[str, Any], tmp_path: Path
) -> None:
    rows = [said(task, k, float(k)) for task in range(2) for k in range(2)]
    first = run_of(tmp_path / "a", *rows)
    for row in rows[2:]:
        row["responses_create_params"]["input"] = "something else"
    second = run_of(tmp_path / "b", *rows)
    prepare("grpo", [first, second], to="chat", out=tmp_path / "data", **options)
    asked = {(row["task_id"], str(row["prompt"])) for row in read_lines(tmp_path / "data" / "train.jsonl")}
    assert {task for task, _ in asked} == {"0", "1-group-1", "1-group-2"} and len(asked) == 3
