"""The traps of the trainers' loaders, one test each; tests/trainers shows the same with the loaders themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.json as paj
import pyarrow.parquet as pq
import pytest

from rollforge.errors import UsageError
from rollforge.exporters.columns import PROMPT_COLUMNS
from rollforge.exporters.datasets_loader.call_arguments import SURE_BYTES, ArgumentsGuard
from rollforge.steps.prepare import prepare
from tests.builders import Row, make_rollout, write_rows
from tests.prepare_runs import ARGUMENTS, TOOL, call, mixed_run, read_lines, result, text, with_output

TRL_RESERVED = {
    "completion", "label", "labels", "input_ids", "chat_template_kwargs", "tools", "text", "messages", "conversations", "images",
    "image", "margin", "chosen_ids", "rejected_ids", "environment",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_run(tmp_path_factory.mktemp("run"))


def rows_of(run: Path, out: Path, recipe: str, name: str, **options: Any) -> list[Row]:
    made = prepare(recipe, run, to=name, out=out, min_reward=0.4, **options)
    return read_lines(out / made.files[0].path)


def message_lists(row: Row) -> list[list[Row]]:
    return [value for value in row.values() if isinstance(value, list) and value and "role" in value[0]]


@pytest.mark.parametrize("name", ["trl", "openrlhf", "axolotl"])
@pytest.mark.parametrize("recipe", ["sft", "dpo"])
def test_every_row_has_every_column_and_every_message_the_same_keys(
    name: str, recipe: str, run: Path, tmp_path: Path
) -> None:
    rows = rows_of(run, tmp_path / "data", recipe, name)
    assert len({tuple(row) for row in rows}) == 1
    for column in rows[0]:
        lists = [row[column] for row in rows if isinstance(row[column], list)]
        assert len({tuple(message) for messages in lists for message in messages}) <= 1, column


def test_plain_chat_data_has_no_null_keys(tmp_path: Path) -> None:
    run = write_rows(
        tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, k, 1.0, text=f"t{k}") for k in range(3)]
    ).parent
    rows = rows_of(run, tmp_path / "data", "sft", "trl")
    assert all(
        set(message) == {"role", "content"} for row in rows for message in row["prompt"] + row["completion"]
    )


def test_numbers_survive_arrow_bit_for_bit(run: Path, tmp_path: Path) -> None:
    rows = rows_of(run, tmp_path / "data", "sft", "trl")
    loaded = paj.read_json(tmp_path / "data" / "train.jsonl").to_pylist()
    assert loaded == rows
    arguments = {
        c["function"]["arguments"] for row in loaded for m in row["messages"] for c in m["tool_calls"] or []
    }
    assert arguments == set(ARGUMENTS)
    assert any("[0.3, 0.6]" in row["tools"] for row in loaded if row["tools"])


def test_uniform_arguments_stay_objects(tmp_path: Path) -> None:
    rows = [
        with_output(
            make_rollout(0, k, 1.0), call(0, f'{{"at": {k}.3}}'), result(0), text(f"t{k}"), tools=[TOOL]
        )
        for k in range(3)
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    found = rows_of(run, tmp_path / "data", "sft", "trl")
    assert [row["messages"][1]["tool_calls"][0]["function"]["arguments"] for row in found] == [
        {"at": k + 0.3} for k in range(3)
    ]
    assert paj.read_json(tmp_path / "data" / "train.jsonl").to_pylist() == found


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (['{"a": 1}', '{"a": 2}'], None),
        (['{"a": "x"}', '{"b": "y"}', '{"c": 7}'], None),
        (['{"a": 0.3}', '{"a": 6.674e-11}'], None),
        (['{"a": 0.3}', '{"b": 1}'], "rounded"),
        (['{"a": "x"}', '{"b": {"c": [0.1]}}'], "rounded"),
        (['{"a": 1}', '{"a": 1.5}'], "several types"),
        (['{"a": "x"}', "not json"], "not a JSON object"),
        (['{"a": "x"}', "[1]"], "not a JSON object"),
        (['{"a": "x", "a": "y"}'], "twice"),
        (['{"a": {"b": 1, "b" : 2}}'], "twice"),
        (['{"a": "\\"b\\": \\"b\\":"}'], None),
        (['{"day": "2024-01-31"}'], "date"),
        (['{"a": "x"}', '{"a": "2024-01-31T10:00:00Z"}'], "date"),
        (['{"a": [1, 2.5]}'], "several types"),
        (['{"a": ["x", {"b": 1}]}'], "several types"),
        (['{"a": [{"b": 0.5}, {"c": 0.5}]}'], "rounded"),
        (['{"a": 0.3, "b": {}}'], "rounded"),
        (['{"a": 9223372036854775808}'], "64 bits"),
        (['{"a": "x"}', '{"b": 1}', '{"a": {"c": 1}}'], "several types"),
    ],
)
def test_the_guard_knows_what_the_loader_would_damage(seen: list[str], reason: str | None) -> None:
    guard = ArgumentsGuard()
    found = [damage for arguments in seen if (damage := guard.damage(arguments, 0))]
    assert (reason is None and not found) or (reason is not None and reason in found[0])


def test_the_guard_knows_that_new_keys_late_in_a_file_fail_the_load() -> None:
    guard = ArgumentsGuard()
    assert guard.damage('{"a": "x"}', 0) is None
    assert "late" in (guard.damage('{"b": "x"}', SURE_BYTES + 1) or "")


@pytest.mark.parametrize("arguments", ["{not json", "[1]", '{"a": "x", "a": "y"}'])
def test_a_slip_in_one_call_costs_its_own_row_and_not_the_form_of_all(arguments: str, tmp_path: Path) -> None:
    rows = [
        with_output(make_rollout(k, 0, 1.0), call(0, written), result(0), text(f"t{k}"), tools=[TOOL])
        for k, written in enumerate(['{"a": "x"}', arguments, '{"a": "y"}'])
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    made = prepare("sft", run, to="trl", out=tmp_path / "data")
    assert made.form["arguments"] == "object" and made.counts["rollouts"]["kept"] == 2
    kept = prepare("sft", run, to="trl", out=tmp_path / "strings", arguments="string")
    assert kept.counts["rollouts"]["kept"] == 3


def test_axolotl_gets_no_arguments_that_it_cannot_parse(tmp_path: Path) -> None:
    rows = [
        with_output(make_rollout(k, 0, 1.0), call(0, written), result(0), text(f"t{k}"), tools=[TOOL])
        for k, written in enumerate(['{"a": "x"}', "{not json"])
    ]
    made = prepare(
        "sft",
        write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent,
        to="axolotl",
        out=tmp_path / "data",
    )
    assert made.counts["rollouts"]["cannot be expressed: call arguments are not a JSON object"] == 1


def test_a_column_whose_first_value_comes_late_is_moved_to_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollforge.exporters.datasets_loader.call_arguments.SURE_BYTES", 500)
    rows = [make_rollout(task, 0, 1.0, text=f"t{task}") for task in range(30)]
    rows.append(with_output(make_rollout(30, 0, 1.0), call(0), result(0), text("last"), tools=[TOOL]))
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    made = prepare("sft", run, to="trl", out=tmp_path / "data")
    found = read_lines(tmp_path / "data" / "train.jsonl")
    assert len(found) == 31 and found[0]["tools"] and found[0]["messages"][-1]["content"] == "last"
    assert "moved to the front" in made.form["changes"][-1]


def test_a_column_that_only_another_split_fills_is_brought_into_the_first(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, 1.0, text=f"t{task}") for task in range(12)]
    for task in (12, 13):
        rows.append(
            with_output(make_rollout(task, 0, 1.0), call(0), result(0), text(f"t{task}"), tools=[TOOL])
        )
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    for seed in range(12):
        out = tmp_path / f"data{seed}"
        made = prepare("sft", run, to="trl", out=out, split=(0.5, 0.5), seed=seed)
        train, held = read_lines(out / "train.jsonl"), read_lines(out / "validation.jsonl")
        assert len(train) == len(held) == 7 and any(row["tools"] for row in train)
        asked = [{row["messages"][0]["content"] for row in rows} for rows in (train, held)]
        assert not asked[0] & asked[1]
        if any("moved to train" in change for change in made.form["changes"]):
            return
    pytest.fail("no seed put the two tasks with tools into validation")


def test_arguments_whose_keys_only_another_split_has_are_strings(tmp_path: Path) -> None:
    rows = [
        with_output(
            make_rollout(task, 0, 1.0),
            call(0, '{"b": "y"}' if task == 0 else '{"a": "x"}'),
            result(0),
            text(f"t{task}"),
        )
        for task in range(10)
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    forms = {}
    for seed in range(12):
        made = prepare("sft", run, to="trl", out=tmp_path / str(seed), split=(0.5, 0.5), seed=seed)
        held = read_lines(tmp_path / str(seed) / "validation.jsonl")
        forms[any("question 0" in row["messages"][0]["content"] for row in held)] = made.form["arguments"]
    assert forms == {True: "string", False: "object"}


def test_a_number_that_is_null_in_all_early_rows_is_shown_at_the_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollforge.exporters.datasets_loader.call_arguments.SURE_BYTES", 500)
    rows = [make_rollout(task, 0, 0.5) for task in range(30)]
    rows += [make_rollout(30, sample, float(sample)) for sample in range(2)]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    prepare("ppo", run, to="trl", out=tmp_path / "data")
    found = read_lines(tmp_path / "data" / "train.jsonl")
    assert found[0]["std_reward"] is not None and all(row["std_reward"] is None for row in found[1:])


@pytest.mark.parametrize("name", ["trl", "openrlhf", "nemo-rl", "llama-factory", "axolotl"])
def test_texts_that_are_all_dates_are_written_where_no_loader_makes_times_of_them(
    name: str, tmp_path: Path
) -> None:
    rows = [
        make_rollout(task, sample, float(sample), text=f"2024-0{task + 1}-0{sample + 1}")
        for task in range(3)
        for sample in range(2)
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    made = prepare("dpo", run, to=name, out=tmp_path / "data")
    assert [file.path for file in made.files] == ["train.parquet"]
    assert "looks like a date" in made.form["changes"][0]
    assert "2024-01-02" in str(pq.read_table(tmp_path / "data" / "train.parquet").to_pylist()[0])


def test_numbers_beside_arguments_with_different_keys_are_not_rounded(tmp_path: Path) -> None:
    def asked(arguments: str) -> list[Row]:
        return [
            {"role": "user", "content": "q"},
            call(0, arguments),
            result(0),
            {"role": "user", "content": "?"},
        ]

    rows = [
        with_output(
            make_rollout(task, k, float(k == 0)), text(f"t{k}"), input=asked(f'{{"{"ab"[task]}": "x"}}')
        )
        for task in range(2)
        for k in range(3)
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    made = prepare("grpo", run, to="trl", out=tmp_path / "data")
    assert made.form["arguments"] == "string"


def test_nemo_rl_pairs_are_read_by_a_loader_that_infers_and_keep_their_numbers(
    run: Path, tmp_path: Path
) -> None:
    rows_of(run, tmp_path / "data", "dpo", "nemo-rl")
    loaded = paj.read_json(tmp_path / "data" / "train.jsonl").to_pylist()
    assert loaded == read_lines(tmp_path / "data" / "train.jsonl")


def test_no_column_of_a_prompt_set_has_a_name_that_trl_gives_a_meaning() -> None:
    assert not TRL_RESERVED & set(PROMPT_COLUMNS)


def test_nemo_rl_rows_never_have_task_name_and_end_with_the_assistant(run: Path, tmp_path: Path) -> None:
    for recipe in ("sft", "dpo", "grpo"):
        rows = rows_of(run, tmp_path / recipe, recipe, "nemo-rl")
        assert all("task_name" not in row for row in rows)
        if recipe == "sft":
            assert all(row["messages"][-1]["role"] == "assistant" for row in rows)
            assert any(
                isinstance(c["function"]["arguments"], dict)
                for r in rows
                for m in r["messages"]
                for c in m.get("tool_calls", [])
            )
        if recipe == "dpo":
            assert all(len(side["completion"]) == 1 for row in rows for side in row["completions"])
        if recipe == "grpo":
            assert all(
                row["agent_ref"]["name"] and "response" not in row and "reward" not in row for row in rows
            )


def test_nemo_rl_objects_keep_their_digits(run: Path, tmp_path: Path) -> None:
    rows_of(run, tmp_path / "data", "sft", "nemo-rl")
    written = (tmp_path / "data" / "train.jsonl").read_bytes()
    assert all(b'"arguments":' + arguments.encode() in written for arguments in ARGUMENTS)


def test_verl_parquet_has_no_filled_keys_and_one_type_of_ground_truth(run: Path, tmp_path: Path) -> None:
    prepare("sft", run, to="verl", out=tmp_path / "sft", min_reward=0.4)
    rows = pq.read_table(tmp_path / "sft" / "train.parquet").to_pylist()
    assert all(set(message) == {"role", "content"} for row in rows for message in row["messages"])
    assert any(ARGUMENTS[1] in message["content"] for row in rows for message in row["messages"])
    prepare("grpo", run, to="verl", out=tmp_path / "grpo")
    rows = pq.read_table(tmp_path / "grpo" / "train.parquet").to_pylist()
    assert all(
        isinstance(row["reward_model"]["ground_truth"], str) and row["extra_info"]["index"] is not None
        for row in rows
    )
    assert len({row["extra_info"]["index"] for row in rows}) == len(rows)


def test_openrlhf_prompts_start_with_no_assistant_and_have_a_text(run: Path, tmp_path: Path) -> None:
    first = with_output(make_rollout(0, 0, 1.0), text("a"), input=[{"role": "assistant", "content": "hello"}])
    folder = write_rows(tmp_path / "run" / "rollouts.jsonl", [first, make_rollout(1, 0, 1.0)]).parent
    made = prepare("sft", folder, to="openrlhf", out=tmp_path / "data")
    assert made.counts["rollouts"]["cannot be expressed: starts with the assistant"] == 1


def test_llama_factory_turns_alternate_and_parallel_results_are_joined(tmp_path: Path) -> None:
    rollout = with_output(
        make_rollout(0, 0, 1.0),
        call(0),
        call(1),
        result(0, "r0"),
        result(1, "r1"),
        text("done"),
        tools=[TOOL],
    )
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", [rollout]).parent
    (row,) = rows_of(run, tmp_path / "data", "sft", "llama-factory")
    assert [turn["from"] for turn in row["conversations"]] == ["human", "function_call", "observation", "gpt"]
    assert row["conversations"][2]["value"] == "r0\nr1"
    assert [c["name"] for c in json.loads(row["conversations"][1]["value"])] == ["get_weather", "get_weather"]


def test_text_beside_a_call_is_not_lost_for_llama_factory(tmp_path: Path) -> None:
    rollout = with_output(
        make_rollout(0, 0, 1.0),
        text("let me look"),
        call(0, ARGUMENTS[0]),
        result(0),
        text("done"),
        tools=[TOOL],
    )
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", [rollout]).parent
    (row,) = rows_of(run, tmp_path / "data", "sft", "llama-factory")
    assert row["conversations"][1]["from"] == "gpt"
    assert (
        "let me look" in row["conversations"][1]["value"] and ARGUMENTS[0] in row["conversations"][1]["value"]
    )


def test_parquet_of_a_jsonl_exporter_writes_strings(run: Path, tmp_path: Path) -> None:
    prepare("sft", run, to="trl", out=tmp_path / "data", min_reward=0.4, format="parquet")
    rows = pq.read_table(tmp_path / "data" / "train.parquet").to_pylist()
    arguments = {
        c["function"]["arguments"] for row in rows for m in row["messages"] for c in m["tool_calls"] or []
    }
    assert arguments == set(ARGUMENTS)


RISKY = 0.7071057811879616


def tool_of(name: str, **properties: Any) -> Row:
    return {**TOOL, "name": name, "parameters": {"type": "object", "properties": properties}}


def tools_run(folder: Path, *tools: Row) -> Path:
    rows = [
        with_output(
            make_rollout(k, 0, 1.0), call(0, '{"a": 1}', tool["name"]), result(0), text("t"), tools=[tool]
        )
        for k, tool in enumerate(tools)
    ]
    return write_rows(folder / "rollouts.jsonl", rows).parent


@pytest.mark.parametrize("exporter", ["trl", "axolotl"])
def test_a_list_of_tools_becomes_a_text_when_the_loader_would_change_a_number_in_it(
    exporter: str, tmp_path: Path
) -> None:
    two = tool_of("f", a={"enum": [RISKY]}), tool_of("g", b={"type": "string"})
    made = prepare("sft", tools_run(tmp_path / "run", *two), to=exporter, out=tmp_path / "data", tools="list")
    rows = read_lines(tmp_path / "data" / "train.jsonl")
    assert [json.loads(row["tools"])[0]["function"]["name"] for row in rows] == ["f", "g"]
    assert str(RISKY) in rows[0]["tools"]
    assert made.form["tools"] == "string"
    assert made.form["changes"] == [
        "tools are written as string: a number in the tools, or beside them, would be rounded by the loader"
    ]


def test_a_list_of_tools_stays_one_when_the_loader_changes_nothing_in_it(tmp_path: Path) -> None:
    alike = tool_of("f", a={"enum": [RISKY]}), tool_of("g", a={"enum": [0.3]})
    unlike = tool_of("f", a={"enum": [1]}), tool_of("g", b={"type": "string"})
    for name, two in (("alike", alike), ("unlike", unlike)):
        made = prepare(
            "sft", tools_run(tmp_path / name, *two), to="trl", out=tmp_path / f"{name}-data", tools="list"
        )
        assert made.form["tools"] == "list" and made.form["changes"] == []


def test_arguments_of_one_column_are_strings_when_another_column_would_round_their_numbers(
    tmp_path: Path,
) -> None:
    sides = (('{"x": 1}', f'{{"y": {RISKY}}}'), ('{"z": 1}', '{"y": 0.3}'))
    rows = [
        with_output(make_rollout(task, k, float(1 - k)), call(0, written), tools=[TOOL])
        for task, two in enumerate(sides)
        for k, written in enumerate(two)
    ]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    made = prepare("dpo", run, to="trl", out=tmp_path / "data")
    assert made.form["arguments"] == "string"


def test_numbers_beside_messages_without_empty_keys_change_the_keys(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "again"}, call(9), result(9)]
    rows = [make_rollout(task, k, (0.0, 1.0, 1 / 3)[k]) for task in range(2) for k in range(3)]
    rows[3:] = [with_output(row, text("t"), input=asked) for row in rows[3:]]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    made = prepare("grpo", run, to="trl", out=tmp_path / "data", keys="present")
    assert made.form["keys"] == "uniform" and "beside the messages" in made.form["changes"][0]


def test_the_card_of_plain_chat_data_reads_lines_and_infers_nothing(tmp_path: Path) -> None:
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(0, 0, 1.0)]).parent
    prepare("sft", run, to="chat", out=tmp_path / "data")
    card = (tmp_path / "data" / "README.md").read_text(encoding="utf-8")
    assert "json.loads(line)" in card and "load_dataset(" not in card
    prepare("sft", run, to="chat", out=tmp_path / "data", format="parquet")
    assert "load_dataset('parquet'" in (tmp_path / "data" / "README.md").read_text(encoding="utf-8")


def test_single_answers_for_trl_are_prompt_and_completion_and_longer_ones_messages(tmp_path: Path) -> None:
    plain = [make_rollout(task, 0, 1.0, text=f"t{task}") for task in range(3)]
    called = with_output(make_rollout(3, 0, 1.0), call(0), result(0), text("done"), tools=[TOOL])
    single = write_rows(tmp_path / "single" / "rollouts.jsonl", plain).parent
    mixed = write_rows(tmp_path / "mixed" / "rollouts.jsonl", [*plain, called]).parent
    for name, run, options, columns in (
        ("a", single, {}, ["prompt", "completion", "tools"]),
        ("b", mixed, {}, ["messages", "tools"]),
        ("c", single, {"layout": "messages"}, ["messages", "tools"]),
        ("d", mixed, {"layout": "completion", "where": "tool_calls = 0"}, ["prompt", "completion", "tools"]),
        ("e", single, {"format": "parquet"}, ["prompt", "completion", "tools"]),
    ):
        made = prepare("sft", run, to="trl", out=tmp_path / name, **options)  # type: ignore[arg-type]
        path = tmp_path / name / made.files[0].path
        rows = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else read_lines(path)
        assert list(rows[0]) == columns
        card = (tmp_path / name / "README.md").read_text()
        assert ("assistant_only_loss=True" in card) == ("messages" in columns)
    with pytest.raises(UsageError, match="several messages"):
        prepare("sft", mixed, to="trl", out=tmp_path / "x", layout="completion")
    with pytest.raises(UsageError, match="has no such rows"):
        prepare("sft", mixed, to="chat", out=tmp_path / "x", layout="completion")
