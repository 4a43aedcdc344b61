"""Rollouts with several sequences, from recorded programs to datasets; rows without any read as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollforge.conversations.reader import ConversationReader, sequence_roles
from rollforge.conversations.turns import turns_of
from rollforge.errors import UsageError
from rollforge.experience import experiences_from_row
from rollforge.index import open_index
from rollforge.records import to_json
from rollforge.steps.prepare import prepare


def item(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def answer(text: str, prompt: list[int] | None = None, generated: list[int] | None = None) -> dict[str, Any]:
    made = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
    if prompt is not None:
        made |= {"prompt_token_ids": prompt, "generation_token_ids": generated}
        made["generation_log_probs"] = [-0.1] * len(generated or [])
    return made


def row(task: int, sample: int, reward: float, *, several: bool = True) -> dict[str, Any]:
    own: dict[str, Any] = {"seconds": 1.0}
    if several:
        own |= {
            "played": {"input": [item("system", "Be an agent."), item("user", f"Question {task}!")]},
            "sequences": [
                {"role": "main", "turns": 1, "calls": [0], "fidelity": "exact"},
                {
                    "role": "auxiliary",
                    "turns": 1,
                    "calls": [1],
                    "fidelity": "exact",
                    "output_tokens": 2,
                    "prompt": {"input": [item("user", "A title?")]},
                    "output": [answer(f"Title {task}", [5], [6, 7])],
                },
                {
                    "role": "retry",
                    "turns": 1,
                    "calls": [2],
                    "fidelity": "text",
                    "prompt": {"input": [item("user", "Again?")]},
                    "output": [answer("dropped")],
                },
            ],
        }
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": sample,
        "reward": reward,
        "responses_create_params": {"input": [item("user", f"Question {task}?")]},
        "response": {
            "model": "m",
            "status": "completed",
            "output": [answer(f"Answer {task} {sample}", [1, 2], [3, 4])],
            "usage": {
                "input_tokens": 9,
                "output_tokens": 4,
                "sequences": 3,
                "model_calls": 3,
                "drift_turns": 0,
            },
        },
        "_rf": own,
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    rows = [row(task, sample, float(sample)) for task in range(6) for sample in range(2)]
    (folder / "rollouts.jsonl").write_bytes(b"".join(to_json(one) + b"\n" for one in rows))
    return folder


def written(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


def test_prepare_trains_on_the_main_sequence_with_the_prompt_as_played(run: Path, tmp_path: Path) -> None:
    prepare("sft", run, to="chat", out=tmp_path / "d")
    rows = written(tmp_path / "d")
    assert len(rows) == 6
    assert [message["content"] for message in rows[0]["messages"]][:2] == ["Be an agent.", "Question 0!"]


def test_prepare_with_all_sequences_makes_an_example_of_each_but_retries(run: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    prepare("sft", run, to="chat", out=tmp_path / "d", sequences="all")
    rows = written(tmp_path / "d")
    firsts = [one["messages"][0]["content"] for one in rows]
    assert len(rows) == 12 and firsts.count("A title?") == 6 and firsts.count("Be an agent.") == 6
    assert {one["reward"] for one in rows} == {1.0}
    lineage = pq.read_table(tmp_path / "d" / "lineage.parquet")
    assert sorted(lineage.column("sequence").to_pylist()) == [0] * 6 + [1] * 6
    manifest = json.loads((tmp_path / "d" / "manifest.json").read_text())
    assert manifest["options"]["sequences"] == "all"


def test_scored_groups_carry_the_sequence_and_the_rollouts_reward(run: Path, tmp_path: Path) -> None:
    prepare("grpo", run, to="chat", out=tmp_path / "d", shape="groups", sequences="all")
    rows = written(tmp_path / "d")
    assert len(rows) == 24 and {one["fidelity"] for one in rows} == {"token-exact"}
    by_rollout: dict[tuple[str, int], set[float]] = {}
    for one in rows:
        by_rollout.setdefault((one["task_id"], one["rollout"]), set()).add(one["reward"])
    assert len(by_rollout) == 12 and all(len(rewards) == 1 for rewards in by_rollout.values())


def test_the_same_bytes_come_again(run: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        prepare("sft", run, to="chat", out=tmp_path / name, sequences="all")
    assert (tmp_path / "a" / "train.jsonl").read_bytes() == (tmp_path / "b" / "train.jsonl").read_bytes()


def test_token_drift_is_carried_into_the_dataset(tmp_path: Path) -> None:
    rows = [row(task, sample, float(sample)) for task in range(4) for sample in range(2)]
    rows[0]["_rf"]["sequences"][0] |= {"fidelity": "drift", "drift": {"turn": 2, "tokens": 3, "turns": 1}}
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join(to_json(one) + b"\n" for one in rows))
    manifest = prepare("grpo", tmp_path / "rollouts.jsonl", to="chat", out=tmp_path / "d", shape="groups")
    written_rows = written(tmp_path / "d")
    assert [one["fidelity"] for one in written_rows].count("token-drift") == 1
    assert [count for mark, count in manifest.untidy.items() if mark.startswith("token drift")] == [1]


def test_a_check_names_rollouts_whose_tokens_drift(tmp_path: Path) -> None:
    from rollforge.steps.check import check_run

    rows = [row(task, sample, float(sample)) for task in range(10) for sample in range(2)]
    for one in rows[:5]:
        one["response"]["usage"]["drift_turns"] = 2
    (tmp_path / "rollouts.jsonl").write_bytes(b"".join(to_json(one) + b"\n" for one in rows))
    report = check_run(tmp_path / "rollouts.jsonl", recipe="grpo")
    (finding,) = [finding for finding in report.findings if finding.id == "token-drift"]
    assert finding.level == "warning" and finding.value == 0.25 and finding.n == 20


def test_pairs_and_prompts_refuse_all_sequences(run: Path, tmp_path: Path) -> None:
    for recipe in ("dpo", "grpo"):
        with pytest.raises(UsageError, match="--sequences all does not apply"):
            prepare(recipe, run, to="trl", out=tmp_path / "d", sequences="all")


def test_experiences_come_one_per_sequence() -> None:
    main, title = experiences_from_row(row(3, 1, 1.0))
    assert (main.id, main.sequence, main.role) == ("3/1", None, "")
    assert main.messages[0]["content"] == "Be an agent." and main.fidelity == "exact"
    assert (title.id, title.sequence, title.role) == ("3/1/s1", 1, "auxiliary")
    assert title.response == "Title 3" and title.reward == 1.0 and title.output_tokens == 2
    assert title.tokens is not None and title.tokens.tolist() == [5, 6, 7] and title.run == main.run


def test_rows_without_sequences_read_as_before() -> None:
    plain = row(0, 0, 1.0, several=False)
    (only,) = experiences_from_row(plain)
    assert only.messages[0]["content"] == "Question 0?"
    conversation = ConversationReader().read(to_json(plain))
    assert [message.content for message in conversation.prompt] == ["Question 0?"]
    assert sequence_roles(to_json(plain)) == ["main"]
    assert [turn.text for turn in turns_of(plain)] == ["Question 0?", "Answer 0 0"]


def test_show_and_the_index_know_the_sequences(run: Path) -> None:
    turns = turns_of(row(0, 0, 1.0))
    assert [turn.title for turn in turns if turn.kind == "sequence"] == [
        "1: auxiliary, 1 turn, exact",
        "2: retry, 1 turn, text",
    ]
    with open_index(run) as index:
        found = index.select("SELECT min(sequences) AS s, sum(drift_turns) AS d FROM rollouts").to_pylist()
    assert found == [{"s": 3.0, "d": 0.0}]
