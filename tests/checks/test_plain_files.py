"""What `check` sees in a plain file of rollouts, without manifest or tasks beside it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rollforge.records import JsonObject
from rollforge.steps.check import Report, check_run

Change = Callable[[list[JsonObject], random.Random], object]


def plain_row(task: int, rollout: int, rng: random.Random, rate: float) -> JsonObject:
    """A rollout as NeMo Gym writes it."""
    is_right = rng.random() < rate
    value = 100 + task if is_right else 5000 + rng.randrange(1000)
    words = " ".join(f"word{rng.randrange(900)}" for _ in range(20))
    return {
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "responses_create_params": {
            "model": "model-8b",
            "input": [{"role": "user", "content": f"Question {task}: what is hidden behind the seven rows of terms?"}],
        },
        "response": {
            "model": "model-8b",
            "status": "completed",
            "output": [{"type": "message", "content": [{"type": "output_text", "text": f"{words}. It is {value}."}]}],
            "usage": {"input_tokens": 9, "output_tokens": 30, "total_tokens": 39},
        },
        "reward": float(is_right),
        "expected_answer": str(100 + task),
    }  # fmt: skip


def checked(
    folder: Path, change: Change = lambda rows, rng: None, tasks: int = 40, samples: int = 8
) -> Report:
    """The report on a healthy file after a change."""
    rng = random.Random(7)
    rates = [rng.betavariate(2, 2) for _ in range(tasks)]
    rows = [plain_row(task, rollout, rng, rates[task]) for task in range(tasks) for rollout in range(samples)]
    change(rows, rng)
    path = folder / "rollouts.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return check_run(path)


def levels(report: Report) -> dict[str, str]:
    return {finding.id: finding.level for finding in reversed(report.findings)}


def say(row: JsonObject, text: str, reward: float | None = None) -> None:
    row["response"]["output"][0]["content"][0]["text"] = text
    if reward is not None:
        row["reward"] = reward


def half(rows: list[JsonObject]) -> list[JsonObject]:
    return rows[len(rows) // 2 :]


def test_a_healthy_file_is_trusted(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert report.ok and not report.at("warning")


def verdicts_stop(rows: list[JsonObject], rng: random.Random) -> None:
    for row in half(rows):
        row["reward"] = 0.0


def verdicts_nearly_stop(rows: list[JsonObject], rng: random.Random) -> None:
    for row in half(rows):
        row["reward"] *= rng.random() < 0.05


def errors_begin(rows: list[JsonObject], rng: random.Random) -> None:
    for row in half(rows):
        row.update(
            reward=0.0 if rng.random() < 0.9 else row["reward"], verifier_error="TimeoutError: no answer"
        )


def pace_changes(rows: list[JsonObject], rng: random.Random) -> None:
    for place, row in enumerate(rows):
        is_late = place >= len(rows) // 2
        row["verifier_latency"] = 30.0 + rng.random() if is_late else 0.1 + rng.random() / 10
        row["reward"] *= not is_late or rng.random() < 0.1


def echoes_win(rows: list[JsonObject], rng: random.Random) -> None:
    for row in rows[::12]:
        say(row, "You asked: " + row["responses_create_params"]["input"][0]["content"], 1.0)


def right_answers_lose(rows: list[JsonObject], rng: random.Random) -> None:
    for row in rows:
        row["verifier_metadata"] = {"expected_answer": row.pop("expected_answer")}
        if row["reward"] and rng.random() < 0.5:
            answer = row["verifier_metadata"]["expected_answer"]
            say(row, f"It is {answer}. " + "And that is all there is to say about it. " * 6, 0.0)


def right_answers_are_not_extracted(rows: list[JsonObject], rng: random.Random) -> None:
    right_answers_lose(rows, rng)
    for row in rows:
        row["extracted_answer"] = None if row["reward"] == 0 else row["verifier_metadata"]["expected_answer"]


def another_model(rows: list[JsonObject], rng: random.Random) -> None:
    for row in rows:
        row["response"]["model"] = "tiny-fallback"


def two_versions(rows: list[JsonObject], rng: random.Random) -> None:
    for place, row in enumerate(rows):
        row["verifier_version"] = "1.0" if place < 100 else "1.1"


def magic_words(rows: list[JsonObject], rng: random.Random) -> None:
    for row in rows[::16]:
        say(row, "As asked, the answer has been verified and it is correct.", 1.0)


def one_family_fails(rows: list[JsonObject], rng: random.Random) -> None:
    for row in rows:
        row["domain"] = ("algebra", "logic")[row["_ng_task_index"] % 2]
        row["reward"] *= row["domain"] == "algebra"


def a_metric_is_ignored(rows: list[JsonObject], rng: random.Random) -> None:
    for row in rows:
        row.update(accuracy=row["reward"], reward=0.0)


@pytest.mark.parametrize(
    ("change", "finding", "code"),
    [
        (verdicts_stop, "stuck-rewards", 5),
        (verdicts_nearly_stop, "reward-shift", 5),
        (errors_begin, "collapse-with-errors", 5),
        (pace_changes, "collapse-with-latency", 5),
        (echoes_win, "rewarded-echo", 5),
        (right_answers_are_not_extracted, "missed-answers", 5),
        (another_model, "wrong-model", 4),
        (two_versions, "mixed-verifiers", 5),
        (magic_words, "repeated-winners", 4),
        (one_family_fails, "flat-family", 5),
        (a_metric_is_ignored, "contradicting-metric", 5),
    ],
)
def test_a_defect_of_a_small_plain_file_is_an_error(
    change: Change, finding: str, code: int, tmp_path: Path
) -> None:
    report = checked(tmp_path, change, tasks=60)
    assert levels(report).get(finding) == "error" and report.exit_code == code


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}',
        '{"object": "error", "message": "maximum context length is 4096 tokens", "code": 400}',
        "java.lang.NullPointerException\n\tat com.foo.Bar.baz(Bar.java:10)",
        "panic: runtime error: index out of range",
        "openai.RateLimitError: Error code: 429",
        "[ERROR] generation failed",
        "Request timed out.",
    ],
)
def test_messages_of_servers_and_runtimes_are_no_answers(text: str, tmp_path: Path) -> None:
    def fail(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows[::10]:
            say(row, text, 0.0)

    report = checked(tmp_path, fail)
    assert levels(report)["error-answers"] == "error"


@pytest.mark.parametrize("value", [{"a": 1}, [1, 2], "a note", True, 0.5])
def test_a_field_of_any_kind_that_appears_half_way_is_told(value: object, tmp_path: Path) -> None:
    report = checked(tmp_path, lambda rows, rng: [row.update(novelty=value) for row in half(rows)])
    assert levels(report)["late-fields"] == "warning"


def test_a_few_rewards_outside_the_range_of_the_others_do_not_squeeze_it(tmp_path: Path) -> None:
    report = checked(tmp_path, lambda rows, rng: [row.update(reward=7.0) for row in rows[::160]])
    assert levels(report)["out-of-range"] == "warning"
    assert report.counts.reward.range == [0.0, 1.0]


def test_rollouts_that_numbers_leave_out_are_missing(tmp_path: Path) -> None:
    def lose(rows: list[JsonObject], rng: random.Random) -> None:
        rows[:] = [row for row in rows if rng.random() < 0.8]

    assert levels(checked(tmp_path, lose))["missing-rollouts"] == "warning"


def test_materialized_inputs_say_how_many_rollouts_were_asked_for(tmp_path: Path) -> None:
    keys = [
        {"_ng_task_index": task, "_ng_rollout_index": rollout} for task in range(40) for rollout in range(16)
    ]
    path = tmp_path / "rollouts_materialized_inputs.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(key) + b"\n" for key in keys))
    report = checked(tmp_path)
    assert report.counts.expected == 640
    assert levels(report)["missing-rollouts"] == "error"


def test_agents_with_a_model_and_a_verifier_each_are_no_mixture(tmp_path: Path) -> None:
    def split(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            name = ("math", "code")[row["_ng_task_index"] % 2]
            row["agent_ref"], row["verifier_name"] = {"name": name}, name
            row["response"]["model"] = row["responses_create_params"]["model"] = f"model-{name}"

    report = checked(tmp_path, split)
    assert report.ok and not {"mixed-verifiers", "wrong-model"} & levels(report).keys()


def test_twenty_full_marks_out_of_ten_are_no_proof(tmp_path: Path) -> None:
    report = checked(
        tmp_path, lambda rows, rng: [row.update(reward=10.0) for row in rows], tasks=20, samples=1
    )
    assert report.ok and levels(report)["identical-rewards"] == "note"


def test_an_answer_that_many_tasks_share_may_win_by_being_right(tmp_path: Path) -> None:
    def ask_yes_or_no(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["expected_answer"] = "yes" if row["_ng_task_index"] % 10 else "no"
            said = "yes" if rng.random() < 0.7 else "no"
            say(
                row,
                f"After looking at it closely, the answer is {said}.",
                float(said == row["expected_answer"]),
            )

    report = checked(tmp_path, ask_yes_or_no)
    assert report.ok


@pytest.mark.parametrize("value", [0.0, -1.0, 0.5])
def test_a_reward_that_was_never_given_before_and_then_always_is_a_stuck_verifier(
    value: float, tmp_path: Path
) -> None:
    def stuck(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["reward"] = 0.05 + 0.9 * rng.random()
        for row in half(rows):
            row["reward"] = value

    report = checked(tmp_path, stuck)
    assert report.exit_code == 5 and levels(report)["stuck-rewards"] == "error"


def test_nothing_for_no_answer_is_no_reward_where_wrong_ones_are_punished(tmp_path: Path) -> None:
    def abstain(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["reward"] = row["reward"] or -1.0
        for row in rows[::15]:
            say(row, "I'm sorry, but I can't help with that.", 0.0)
        for row in rows[7::40]:
            say(row, "", 0.0)

    found = levels(checked(tmp_path, abstain))
    assert not {"rewarded-refusal", "rewarded-empty"} & set(found)


def test_a_rewarded_row_without_a_response_is_a_rewarded_empty_answer(tmp_path: Path) -> None:
    def lose_some(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows[::10]:
            row.update(response=None, reward=1.0)

    assert levels(checked(tmp_path, lose_some))["rewarded-empty"] == "error"


def test_rewards_for_saying_nothing_after_tool_calls_are_told(tmp_path: Path) -> None:
    def call(rows: list[JsonObject], rng: random.Random) -> None:
        for place, row in enumerate(rows):
            call = {"type": "function_call", "name": "search", "call_id": "c", "arguments": "{}"}
            row["response"]["output"].insert(0, call)
            if place % 10 == 0:
                say_last(row, "", 1.0)

    assert levels(checked(tmp_path, call))["rewarded-empty"] == "warning"


def say_last(row: JsonObject, text: str, reward: float) -> None:
    row["response"]["output"][-1]["content"][0]["text"] = text
    row["reward"] = reward


@pytest.mark.parametrize(
    ("asked", "answered", "level"),
    [
        ("gpt-4o", "gpt-4o-mini", "error"),
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-8B-Instruct", "error"),
        ("DeepSeek-R1", "DeepSeek-R1-Distill-Qwen-1.5B", "error"),
        ("Llama-3-8B", "Llama-3-8B-Instruct", "warning"),
        ("gpt-4o", "gpt-4o-2024-08-06", None),
        ("Qwen/Qwen3-8B", "qwen3-8b-fp8", None),
        ("claude-x", "claude-x-latest", None),
    ],
)
def test_a_model_of_another_size_is_another_model_and_a_dated_one_is_not(
    asked: str, answered: str, level: str | None, tmp_path: Path
) -> None:
    def rename(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["responses_create_params"]["model"], row["response"]["model"] = asked, answered

    assert levels(checked(tmp_path, rename)).get("wrong-model") == level


@pytest.mark.parametrize(("copies", "level"), [(8, "error"), (7, "error"), (4, "warning"), (2, None)])
def test_copies_among_the_samples_of_a_task_are_told(copies: int, level: str | None, tmp_path: Path) -> None:
    def copy(rows: list[JsonObject], rng: random.Random) -> None:
        for place, row in enumerate(rows):
            if place % 8 < copies:
                row["response"] = rows[place - place % 8]["response"]
                row["reward"] = rows[place - place % 8]["reward"]

    assert levels(checked(tmp_path, copy)).get("identical-samples") == level


def test_rollouts_that_failed_count_as_missing_beside_a_plain_file(tmp_path: Path) -> None:
    failed: list[JsonObject] = []

    def fail(rows: list[JsonObject], rng: random.Random) -> None:
        for row in list(rows):
            if row["_ng_task_index"] < 20 and rng.random() < 0.5:
                failed.append({key: row[key] for key in ("_ng_task_index", "_ng_rollout_index")})
                rows.remove(row)
        lines = [msgspec.json.encode(row | {"_ng_failure_class": "timeout"}) for row in failed]
        (tmp_path / "rollouts_failures.jsonl").write_bytes(b"\n".join(lines) + b"\n")

    report = checked(tmp_path, fail)
    assert report.counts.failed == len(failed) and report.counts.expected == 320
    assert levels(report)["missing-rollouts"] == "error"


def test_groups_that_are_mostly_torn_are_told_by_those_that_are_whole(tmp_path: Path) -> None:
    def tear(rows: list[JsonObject], rng: random.Random) -> None:
        rows[:] = [row for row in rows if row["_ng_task_index"] % 3 == 0 or row["_ng_rollout_index"] < 3]

    found = levels(checked(tmp_path, tear))
    assert (found["missing-rollouts"], found["incomplete-groups"]) == ("warning", "warning")


ERRORS = (
    "FAILED: upstream closed the connection", "ERROR 503", "RuntimeError: engine died", "HTTP 502",
    '{"message":"Internal server error"}', '{"status": 429, "error": "Too Many Requests"}',
    "An error occurred:\nTraceback (most recent call last):\n  File a", "[Errno 111] Connection refused",
)  # fmt: skip


@pytest.mark.parametrize("text", ERRORS)
def test_error_messages_for_answers_are_told(text: str, tmp_path: Path) -> None:
    def fail(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows[::5]:
            say(row, text, 0.0)

    assert levels(checked(tmp_path, fail))["error-answers"] == "error"


@pytest.mark.parametrize(
    "text", ['{"error": null, "result": 4}', '{"answer": 3, "error": 0.01}', "Error analysis gives 4", "404"]
)
def test_answers_that_only_mention_an_error_are_answers(text: str, tmp_path: Path) -> None:
    def answer(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows[::5]:
            say(row, text)

    assert "error-answers" not in levels(checked(tmp_path, answer))


def test_what_looks_like_an_error_and_is_right_as_often_as_not_is_doubted(tmp_path: Path) -> None:
    def answer(rows: list[JsonObject], rng: random.Random) -> None:
        for place, row in enumerate(rows):
            say(row, f"<!DOCTYPE html><html><p>page {place}</p></html>")

    assert levels(checked(tmp_path, answer))["error-answers"] == "warning"


def test_token_ids_without_log_probabilities_are_told(tmp_path: Path) -> None:
    def add_ids(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["response"]["output"][0] |= {"generation_token_ids": [1, 2], "prompt_token_ids": [3]}

    checked(tmp_path, add_ids)
    report = check_run(tmp_path / "rollouts.jsonl", recipe="ppo")
    [finding] = [finding for finding in report.findings if finding.id == "text-only"]
    assert "log-probabilities" in finding.text


def test_what_to_do_next_can_be_pasted_where_nobody_said_who_judged(tmp_path: Path) -> None:
    report = checked(tmp_path, verdicts_stop)
    assert not any("NAME" in finding.next or "…" in finding.next for finding in report.findings)
