"""How much one signal may say alone, and what a second one makes of it."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from rollforge.checks.health import is_loop
from rollforge.checks.sampling import is_same_model
from rollforge.records import JsonObject
from rollforge.steps.check import Report, check_run
from tests.checks.test_plain_files import checked, levels, plain_row, right_answers_lose, say


def finding(report: Report, name: str) -> str:
    return next((item.text for item in report.findings if item.id == name), "")


def rows_of(seed: int = 7, tasks: int = 60, samples: int = 8) -> list[JsonObject]:
    rng = random.Random(seed)
    rates = [rng.betavariate(2, 2) for _ in range(tasks)]
    return [plain_row(task, rollout, rng, rates[task]) for task in range(tasks) for rollout in range(samples)]


def write(folder: Path, rows: list[JsonObject], name: str = "rollouts.jsonl") -> Path:
    path = folder / name
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    return path


def opposite_verdicts(rows: list[JsonObject], verifier: str) -> list[JsonObject]:
    """Verdicts that give each row the other reward."""
    keys = ("_ng_task_index", "_ng_rollout_index")
    return [
        {**{key: row[key] for key in keys}, "verifier": verifier, "reward": 1 - row["reward"]} for row in rows
    ]


# Equal rewards


@pytest.mark.parametrize(("reward", "level"), [(1.0, "error"), (0.0, "warning")])
def test_one_reward_for_right_and_wrong_answers_is_an_error_where_low_demands_cannot_explain_it(
    tmp_path: Path, reward: float, level: str
) -> None:
    report = check_run(write(tmp_path, [row | {"reward": reward} for row in rows_of()]))
    assert levels(report)["identical-rewards"] == level
    assert ("do not name it" in finding(report, "identical-rewards")) == (level == "error")


def test_a_run_that_is_right_throughout_is_no_error(tmp_path: Path) -> None:
    right = [row for row in rows_of(samples=16) if row["reward"] == 1.0]
    report = check_run(write(tmp_path, right))
    assert levels(report)["identical-rewards"] == "warning"


# Missed answers


def test_right_answers_without_reward_are_a_warning_on_their_own(tmp_path: Path) -> None:
    report = checked(tmp_path, right_answers_lose, tasks=60)
    assert levels(report)["missed-answers"] == "warning" and report.exit_code == 0
    assert "may ask for more than the right answer" in finding(report, "missed-answers")


@pytest.mark.parametrize("judged_by", ["mine.py:verify", "math", None])
def test_the_next_step_after_missed_answers_compares_verifiers_that_gave_rewards(
    tmp_path: Path, judged_by: str | None
) -> None:
    rng = random.Random(7)
    rows = [plain_row(task, rollout, rng, 0.5) for task in range(60) for rollout in range(8)]
    right_answers_lose(rows, rng)
    for row in rows if judged_by else []:
        row["_rf"] = {"verifier": judged_by}
    path = write(tmp_path, rows)
    (shown,) = [item.next for item in check_run(path).findings if item.id == "missed-answers"]
    other = "exact" if judged_by == "math" else "math"
    assert shown.endswith(
        f"--verifier {other} && rollforge verify {tmp_path} --diff {judged_by or 'recorded'} {other}"
    )


def test_a_verifier_that_extracted_the_answer_and_wants_more_is_only_noted(tmp_path: Path) -> None:
    def wants_more(rows: list[JsonObject], rng: random.Random) -> None:
        right_answers_lose(rows, rng)
        for row in rows:
            says_it = (
                row["verifier_metadata"]["expected_answer"]
                in row["response"]["output"][0]["content"][0]["text"]
            )
            row["extracted_answer"] = row["verifier_metadata"]["expected_answer"] if says_it else "7"

    report = checked(tmp_path, wants_more, tasks=60)
    assert levels(report)["missed-answers"] == "note" and report.ok


def test_a_metric_that_calls_the_missed_answers_right_makes_it_an_error(tmp_path: Path) -> None:
    def partly_ignored(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["accuracy"] = row["reward"]
        right_answers_lose(rows, rng)

    report = checked(tmp_path, partly_ignored, tasks=60)
    assert levels(report)["missed-answers"] == "error" and report.exit_code == 5


@pytest.mark.parametrize(("every", "level"), [(1, "error"), (2, "error"), (0, "note")])
def test_another_verifier_on_disk_decides(every: int, level: str, tmp_path: Path) -> None:
    """It rewards all of the missed answers, half of them, or none."""
    rows = rows_of()
    was_right = [row["reward"] for row in rows]
    right_answers_lose(rows, random.Random(7))
    path = write(tmp_path, rows)
    verdicts = [
        {
            "_ng_task_index": row["_ng_task_index"],
            "_ng_rollout_index": row["_ng_rollout_index"],
            "verifier": "math",
            "reward": right if every and row["_ng_rollout_index"] % every == 0 else row["reward"],
        }
        for row, right in zip(rows, was_right, strict=True)
    ]
    write(tmp_path, [{"not": "ours"}, *verdicts], "rollouts_verdicts.jsonl")
    report = check_run(path)
    assert levels(report)["missed-answers"] == level
    assert ("verifiers-disagree" in levels(report)) == bool(every)
    assert levels(report).get("verifiers-disagree", "warning") == "warning"


def test_rewards_that_name_no_verifier_are_compared_as_recorded(tmp_path: Path) -> None:
    """Where a row has no reward, the other verifier's counts; the rest is still what the file records."""
    rows = rows_of()
    path = write(
        tmp_path, [{**row, "reward": None} if number < 8 else row for number, row in enumerate(rows)]
    )
    write(tmp_path, opposite_verdicts(rows, "math"), "rollouts_verdicts.jsonl")
    found = next(one for one in check_run(path).findings if one.id == "verifiers-disagree")
    assert found.next is not None and found.next.endswith("--diff recorded math")


def test_a_verdict_of_the_verifier_that_counts_is_no_second_opinion(tmp_path: Path) -> None:
    rows = rows_of()
    for row in rows:
        row["_rf"] = {"verifier": "exact"}
    path = write(tmp_path, rows)
    write(tmp_path, opposite_verdicts(rows, "exact"), "rollouts_verdicts.jsonl")
    assert "verifiers-disagree" not in levels(check_run(path))


@pytest.mark.parametrize(
    ("probe", "missed", "own"),
    [
        (None, "warning", "never-probed"),
        ({"is_broken": False, "reasons": []}, "warning", None),
        ({"is_broken": True, "reasons": ["gold answers fail"]}, "error", "failed-probe"),
        (
            {"is_broken": True, "reasons": ["gold answers fail"], "fingerprint": "old"},
            "warning",
            "never-probed",
        ),
        ("nonsense", "warning", "never-probed"),
    ],
)
def test_a_probe_on_disk_is_a_second_signal(
    probe: object, missed: str, own: str | None, tmp_path: Path
) -> None:
    rows = rows_of()
    right_answers_lose(rows, random.Random(7))
    for row in rows:
        row["_rf"] = {"verifier": "exact", "fingerprint": "new"}
    path = write(tmp_path, rows)
    manifest = {"rollforge": "0", "state": "done", "extra": {} if probe is None else {"probe": probe}}
    (tmp_path / "rollouts_run.json").write_bytes(msgspec.json.encode(manifest))
    found = levels(check_run(path))
    assert found["missed-answers"] == missed
    assert {"never-probed", "failed-probe"} & set(found) == ({own} if own else set())


# Length


def test_a_reward_that_follows_length_while_right_answers_lose_names_the_confound(tmp_path: Path) -> None:
    def pays_for_length(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            answer, is_long = row["expected_answer"], rng.random() < 0.5
            filler = "and so on and so forth and then some more of it " * (12 if is_long else 2)
            say(row, f"{filler}{rng.random()}. It is {answer}.", float(is_long))

    report = checked(tmp_path, pays_for_length, tasks=150, samples=4)
    assert levels(report)["length-bias"] == "warning"
    assert "for longer answers rather than for right ones" in finding(report, "length-bias")


# Identical samples


def act(row: JsonObject, calls: list[str]) -> None:
    items: list[JsonObject] = []
    for number, argument in enumerate(calls):
        call = f"call_{row['_ng_rollout_index']}_{number}"
        items.append({"type": "function_call", "call_id": call, "name": "move", "arguments": argument})
        items.append({"type": "function_call_output", "call_id": call, "output": f"at {argument}"})
    text = "I have finished the task that you asked me to do, and everything is in order."
    items.append({"type": "message", "content": [{"type": "output_text", "text": text}]})
    row["response"]["output"] = items


@pytest.mark.parametrize("is_copied", [True, False])
def test_tool_rollouts_are_copies_only_when_they_act_alike(is_copied: bool, tmp_path: Path) -> None:
    def acts(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            task = row["_ng_task_index"]
            act(row, [f"{task}"] if is_copied else [f"{task}", f"{rng.random()}"])
            row["response"]["output"][-1]["content"][0]["text"] += f" Task {task}."

    found = levels(checked(tmp_path, acts, tasks=20, samples=4))
    assert found.get("identical-samples") == ("error" if is_copied else None)


# Nothing recorded


def test_rewards_without_recorded_output_are_about_the_data_and_not_about_the_verifier(
    tmp_path: Path,
) -> None:
    def records_nothing(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["response"]["output"] = []

    report = checked(tmp_path, records_nothing, tasks=5, samples=2)
    found = levels(report)
    assert found["unrecorded-answers"] == "warning" and report.exit_code == 0
    assert not {"rewarded-empty", "empty-answers"} & set(found)
    assert {verdict.verdict for verdict in report.recipes.values()} == {"no"}


def test_where_no_agent_records_output_one_with_few_rollouts_records_none_either(tmp_path: Path) -> None:
    def records_nothing(rows: list[JsonObject], rng: random.Random) -> None:
        for place, row in enumerate(rows):
            row["agent_ref"] = {"name": "rare" if place % 10 == 0 and place < 30 else "solver"}
            row["response"]["output"] = []
            row["reward"] = 1.0

    report = checked(tmp_path, records_nothing)
    finding = next(one for one in report.findings if one.id == "unrecorded-answers")
    assert finding.value == 1.0, "all answers are unrecorded, those of the rare agent included"
    assert "rewarded-empty" not in levels(report)


def test_answers_that_are_all_empty_and_earn_nothing_are_an_error_of_the_collection(tmp_path: Path) -> None:
    def says_nothing(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["response"]["output"] = []
            row["reward"] = 0.0

    found = levels(checked(tmp_path, says_nothing))
    assert found["empty-answers"] == "error" and "unrecorded-answers" not in found


# Models


@pytest.mark.parametrize(
    ("asked", "answered", "level"),
    [
        ("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct.Q4_1.gguf", None),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "/models/SmolLM2-135M-Instruct-Q4_K_M.gguf", None),
        ("qwen2.5-7b", "qwen2.5-7b@7ae557604adf67be50417f59c2c2f167def9a775", None),
        ("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "warning"),
        ("my-alias", "SmolLM2-135M-Instruct.Q4_1.gguf", "warning"),
        ("Qwen2.5-0.5B-Instruct", "Qwen2.5-7B-Instruct-Q4_0.gguf", "error"),
        ("gpt-4o", "gpt-4o-mini", "error"),
        ("llama-3.1-70b", "llama-3.1-8b", "error"),
        ("llama-3.1-8b", "llama-3.1-8b-chat", "warning"),
    ],
)
def test_versions_and_files_are_no_other_models(
    asked: str, answered: str, level: str | None, tmp_path: Path
) -> None:
    def names(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["responses_create_params"]["model"], row["response"]["model"] = asked, answered

    assert is_same_model(asked, answered) == (level is None)
    assert levels(checked(tmp_path, names)).get("wrong-model") == level


# Requests


def offered(rows: list[JsonObject], *, input_tokens: int) -> None:
    tool = {
        "type": "function",
        "name": "calculate",
        "parameters": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20)}},
    }
    for row in rows:
        row["responses_create_params"]["tools"] = [tool]
        row["response"]["usage"]["input_tokens"] = input_tokens


@pytest.mark.parametrize(("input_tokens", "level"), [(30, "error"), (900, "warning")])
def test_tools_that_are_never_called_may_never_have_been_seen(
    input_tokens: int, level: str, tmp_path: Path
) -> None:
    report = checked(tmp_path, lambda rows, rng: offered(rows, input_tokens=input_tokens))
    assert levels(report)["unused-tools"] == level


def test_tools_that_are_called_once_were_seen(tmp_path: Path) -> None:
    def calls_once(rows: list[JsonObject], rng: random.Random) -> None:
        offered(rows, input_tokens=900)
        act(rows[0], ["1"])

    assert "unused-tools" not in levels(checked(tmp_path, calls_once))


@pytest.mark.parametrize(
    ("params", "said"),
    [({}, "temperature or top_p"), ({"temperature": 1}, "top_p"), ({"temperature": 1, "top_p": 1}, "")],
)
def test_sampling_left_to_the_server_is_noted(params: JsonObject, said: str, tmp_path: Path) -> None:
    report = checked(
        tmp_path, lambda rows, rng: [row["responses_create_params"].update(params) for row in rows]
    )
    assert levels(report).get("server-sampling") == ("note" if said else None)
    assert not said or f"names {said}:" in finding(report, "server-sampling")


def test_logprobs_that_were_asked_for_and_are_absent_are_a_warning(tmp_path: Path) -> None:
    rows = rows_of()
    path = write(tmp_path, rows)
    manifest: JsonObject = {"rollforge": "0", "state": "done", "config": {"logprobs": True}}
    (tmp_path / "rollouts_run.json").write_bytes(msgspec.json.encode(manifest))
    assert levels(check_run(path))["missing-logprobs"] == "warning"
    for row in rows:
        row["response"]["output"][0]["content"][0]["logprobs"] = [{"token": "a", "logprob": -0.1}]
    assert "missing-logprobs" not in levels(check_run(write(tmp_path, rows)))


@pytest.mark.parametrize(("times", "level"), [(3, "note"), (40, "warning")])
def test_attempts_that_timed_out_censor_long_answers(times: int, level: str, tmp_path: Path) -> None:
    path = write(tmp_path, rows_of())
    failures: list[JsonObject] = [
        {"_ng_task_index": number % 60, "_ng_rollout_index": 0, "class": "timeout", "attempt": 0}
        for number in range(times)
    ]
    failures.append({"_ng_task_index": 1, "_ng_rollout_index": 0, "class": "transient", "attempt": 0})
    write(tmp_path, failures, "rollouts_failures.jsonl")
    report = check_run(path)
    assert levels(report)["censored-by-timeout"] == level
    assert finding(report, "censored-by-timeout").startswith(f"{times} attempts")


# Health


def ends_in_an_error(row: JsonObject) -> None:
    row["response"]["error"] = {"code": "server_error", "message": "boom"}


def ends_in_a_call(row: JsonObject) -> None:
    act(row, ["1", "2"])
    del row["response"]["output"][3:]


def has_a_hollow_turn(row: JsonObject) -> None:
    row["response"]["output"].insert(0, {"type": "message", "role": "assistant", "content": []})


def runs_away(row: JsonObject) -> None:
    say(row, "Let me think. " + "wait, that is not right, so " * 40)


def has_ids(row: JsonObject, *, logprobs: int = 30) -> None:
    item = row["response"]["output"][0]
    item["prompt_token_ids"], item["generation_token_ids"] = [1, 2], list(range(30))
    item["generation_log_probs"] = [-0.1] * logprobs


def loses_logprobs(row: JsonObject) -> None:
    has_ids(row, logprobs=29)


@pytest.mark.parametrize(
    ("spoil", "name", "level"),
    [
        (ends_in_an_error, "failed-endings", "warning"),
        (ends_in_a_call, "failed-endings", "warning"),
        (has_a_hollow_turn, "hollow-turns", "warning"),
        (runs_away, "runaway-answers", "warning"),
        (loses_logprobs, "token-mismatch", "error"),
    ],
)
def test_rollouts_that_went_wrong_are_found(spoil, name: str, level: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    def spoils(rows: list[JsonObject], rng: random.Random) -> None:
        if name == "token-mismatch":
            for row in rows:
                has_ids(row)
        for row in rng.sample(rows, len(rows) // 4):
            spoil(row)

    assert levels(checked(tmp_path, spoils))[name] == level


def test_token_ids_that_the_server_counted_otherwise_are_a_warning(tmp_path: Path) -> None:
    def miscounts(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            has_ids(row)
            row["response"]["usage"]["output_tokens"] = 77

    assert levels(checked(tmp_path, miscounts))["token-mismatch"] == "warning"


def test_odd_rows_without_output_are_no_agent_that_records_nothing(tmp_path: Path) -> None:
    def odd(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["agent_ref"] = {"name": "solver"}
        for row in rows[:6]:
            del row["agent_ref"]
            row["response"]["output"] = []
            row["reward"] = 1.0

    assert "unrecorded-answers" not in levels(checked(tmp_path, odd))


def test_whole_rollouts_are_healthy(tmp_path: Path) -> None:
    report = checked(tmp_path, lambda rows, rng: [has_ids(row) for row in rows])
    health = {"failed-endings", "hollow-turns", "runaway-answers", "token-mismatch", "unhealthy-tasks"}
    assert not health & set(levels(report))


def test_a_task_that_is_cut_off_every_time_is_named(tmp_path: Path) -> None:
    def cuts(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            if row["_ng_task_index"] < 6:
                row["response"].update(
                    status="incomplete", incomplete_details={"reason": "max_output_tokens"}
                )

    report = checked(tmp_path, cuts)
    assert levels(report)["unhealthy-tasks"] == "warning"
    assert {
        place["task"] for item in report.findings if item.id == "unhealthy-tasks" for place in item.where
    } == set(range(6))


@pytest.mark.parametrize(
    ("answer", "is_one"),
    [
        ("so " * 100, True),
        ("a long line that comes again\n" * 30, True),
        ("=" * 500, False),
        ("| 1 | 2 |\n" * 3, False),
        (" ".join(str(number) for number in range(400)), False),
        ("", False),
    ],
)
def test_a_loop_is_the_same_words_again_and_again(answer: str, is_one: bool) -> None:
    assert is_loop(answer) == is_one


# Recipes


def truncated(rows: list[JsonObject], rng: random.Random) -> None:
    for row in rng.sample(rows, len(rows) // 2):
        row["response"].update(status="incomplete", incomplete_details={"reason": "max_output_tokens"})


def test_cut_off_answers_do_not_block_recipes_that_leave_them_out(tmp_path: Path) -> None:
    report = checked(tmp_path, truncated, tasks=150)
    assert levels(report)["truncated-answers"] == "error" and report.exit_code == 4
    assert not report.recipes["sft"].reason.startswith("truncated-answers")
    assert report.recipes["grpo"].reason.startswith("truncated-answers")
    path = tmp_path / "rollouts.jsonl"
    spared = check_run(path, recipe="sft")
    assert levels(spared)["truncated-answers"] == "warning" and spared.exit_code == 0
    assert check_run(path, recipes=("sft", "grpo")).exit_code == 4


def test_several_recipes_are_gated_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, [row for row in rows_of() if row["_ng_rollout_index"] == 0])
    assert check_run(path, recipe="kto").asked == ["kto"]
    report = check_run(path, recipes=("kto", "dpo"))
    assert report.asked == ["kto", "dpo"] and report.recipe is None
    assert "no-groups" in levels(report) and report.exit_code == 4
    assert [item.id for item in report.findings].count("one-sided") <= 2


def test_tasks_that_all_have_a_pair_are_not_called_tasks_without(tmp_path: Path) -> None:
    def mixed(rows: list[JsonObject], rng: random.Random) -> None:
        for row in rows:
            row["reward"] = float(row["_ng_rollout_index"] % 2)

    report = checked(tmp_path, mixed, tasks=3, samples=4)
    assert report.recipes["dpo"].verdict == "not yet"
    assert "only 6 of the 100 pairs wanted" in report.recipes["dpo"].reason


# Options


def test_the_table_of_findings_is_sorted_by_level_then_area(tmp_path: Path) -> None:
    report = checked(tmp_path, truncated, tasks=150)
    rank = {"error": 0, "warning": 1, "note": 2}
    area = {"verification": 0, "collection": 1, "confounds": 2, "distribution": 3, "recipe": 4}
    keys = [(rank[item.level], area[item.area]) for item in report.findings]
    assert keys == sorted(keys) and len(set(keys)) > 2
