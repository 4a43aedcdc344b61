"""Validate: what is wrong is found, with its place; what is right passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollforge.cli import main
from rollforge.errors import DataError, UsageError
from rollforge.simulate import SimulatedServer, SimulateOptions, example_tasks
from rollforge.steps.collect import Collection, CollectOptions
from rollforge.steps.prepare import prepare
from rollforge.steps.validate import FileReport, ValidateOptions, validate_files
from rollforge.steps.validate.params import PARAMS
from rollforge.steps.validate.tool_checks import HOSTED_TOOLS
from rollforge.tasks import BadRow, FieldMap, PromptTemplate, read_lines, to_task_row
from rollforge.verifiers import VERIFIERS
from rollforge.verifiers.base import load_verifier
from tests.builders import Row, make_rollout, write_rows


def make_task(prompt: Any = "why?", **fields: Any) -> Row:
    params = fields.pop("params", {})
    return {"responses_create_params": {"input": prompt, **params}, **fields}


def problems(path: Path, *rows: Row | bytes, **options: Any) -> list[tuple[int, str]]:
    report = validate_files([write_rows(path, rows)], ValidateOptions(**options))
    assert report.ok == (not report.files[0].bad)
    assert all(problem.hint for problem in report.files[0].bad + report.files[0].warnings)
    return [(problem.line, problem.path) for problem in report.files[0].bad]


GOOD_TOOL = {
    "type": "function",
    "name": "add",
    "strict": True,
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
GOOD = [
    make_task("a text"),
    make_task([{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "input_text", "text": "u"}]}]),
    make_task("tools", params={"tools": [GOOD_TOOL], "temperature": 1, "metadata": {"a": "b"}}),
    make_task([
        {"role": "user", "content": "call"}, {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
    ]),
]  # fmt: skip


def test_good_tasks_pass(tmp_path: Path) -> None:
    report = validate_files([write_rows(tmp_path / "t.jsonl", GOOD)])
    assert report.ok and report.files[0].kind == "tasks" and report.files[0].rows == 4
    metrics = report.files[0].metrics
    assert metrics.examples == 4 and metrics.tools.max == 1 and metrics.turns.mean == 1
    assert metrics.temperature.n == 1 and (metrics.words.min or 0) > 0


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({}, "input[0]"),
        ({"role": "usr", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "tool", "content": "x", "tool_call_id": "c"}, "input[0].role"),
        ({"content": "x"}, "input[0].role"),
        ({"type": "nonsense"}, "input[0].type"),
        ("text", "input[0]"),
        ({"role": "user", "content": [{"type": "text_input", "text": "x"}]}, "input[0].content[0].type"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}}, "input[0].arguments"),
        ({"type": "function_call_output", "call_id": "c", "output": {"a": 1}}, "input[0].output"),
        ({"type": "function_call_output", "call_id": "c", "output": ["x"]}, "input[0].output[0]"),
        ({"type": "item_reference"}, "input[0].id"),
        ({"type": "reasoning", "id": "r", "summary": ["x"]}, "input[0].summary[0]"),
        ({"role": "assistant", "content": [{"type": "refusal"}]}, "input[0].content[0].refusal"),
    ],
)
def test_items_that_slip_through_the_peers_schema_are_errors(tmp_path: Path, item: Any, path: str) -> None:
    assert (1, f"responses_create_params.{path}") in problems(tmp_path / "t.jsonl", make_task([item]))


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"stream": True}, "stream"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
        ({"tools": [GOOD_TOOL, GOOD_TOOL]}, "tools[1].name"),
        (
            {"tools": [{**GOOD_TOOL, "parameters": {"type": "object", "properties": {}, "required": ["b"]}}]},
            "tools[0].parameters.required",
        ),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}]}, "tools[0].strict"),
    ],
)  # fmt: skip
def test_parameters_and_tools_are_checked(tmp_path: Path, params: Row, path: str) -> None:
    assert (1, f"responses_create_params.{path}") in problems(tmp_path / "t.jsonl", make_task(params=params))


def test_bad_lines_are_placed(tmp_path: Path) -> None:
    found = problems(
        tmp_path / "t.jsonl", make_task("a"), b"", b"{torn", b"[1]", b'{"a": "\xff"}',
        b'{"responses_create_params": {"input": "b"}, "x": NaN}', b'{"responses_create_params": {"input": "c"}, "x": 1, "x": 2}',
    )  # fmt: skip
    assert [line for line, _ in found] == [3, 4, 5, 6, 7]


def test_duplicates_leaks_mixed_types_and_missing_fields(tmp_path: Path) -> None:
    rows = [
        make_task("a", expected_answer="1"),
        make_task("a", expected_answer="1"),
        make_task("b", expected_answer=2),
        make_task("c"),
    ]
    found = problems(tmp_path / "t.jsonl", *rows, needs=["expected_answer"])
    assert found == [(4, "expected_answer")]
    [file] = validate_files([tmp_path / "t.jsonl"]).files
    assert [(one.line, one.path) for one in file.warnings] == [(2, ""), (3, "expected_answer")]
    train = write_rows(tmp_path / "train.jsonl", [make_task("x"), make_task("y")])
    validation = write_rows(tmp_path / "validation.jsonl", [make_task([{"role": "user", "content": "y"}])])
    report = validate_files([train, validation])
    assert not report.ok and "train.jsonl:2" in report.files[1].bad[0].text


def test_rollouts_are_checked(tmp_path: Path) -> None:
    good = make_rollout(0, 0)
    half = make_rollout(0, 2)
    half["response"]["output"][0]["generation_token_ids"] = [1]
    rows = [
        good,
        make_rollout(0, 0),
        half,
        make_rollout(0, 3) | {"response": None},
        make_rollout(0, 4, "high"),
    ]  # type: ignore[arg-type]
    found = problems(tmp_path / "r.jsonl", *rows)
    assert {(2, "_ng_task_index"), (3, "response.output[0]"), (4, "response"), (5, "reward")} <= set(found)
    assert not [line for line, _ in found if line == 1]


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, None),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages[0].role"),
        ({"prompt": "a", "completion": "b"}, None),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "rejected"),
        ({"prompt": "a", "chosen": "b"}, "rejected"),
        ({"prompt": "a", "completion": "b", "label": "yes"}, "label"),
        ({"something": 1}, ""),
    ],
)
def test_dataset_rows_are_checked(tmp_path: Path, row: Row, path: str | None) -> None:
    found = problems(tmp_path / "d.jsonl", row)
    assert found == ([] if path is None else [(1, path)])


def test_fix_writes_the_good_lines_and_the_reasons(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.jsonl", [make_task("a"), b"{torn", make_task([{}]), make_task("b")])
    report = validate_files([path], ValidateOptions(fix=True))
    clean, rejects = Path(report.files[0].fixed or ""), Path(report.files[0].rejects or "")
    assert [
        json.loads(line)["responses_create_params"]["input"] for line in clean.read_text().splitlines()
    ] == ["a", "b"]
    assert [json.loads(line)["line"] for line in rejects.read_text().splitlines()] == [2, 3]
    assert validate_files([clean]).ok


def test_of_a_rollout_that_is_there_twice_fix_keeps_the_last_good_one(tmp_path: Path) -> None:
    bad = make_rollout(0, 0, reward=0.75) | {"response": {"output": [{}]}}
    rows = [
        make_rollout(0, 0, reward=0.25),
        make_rollout(1, 0, reward=1.0),
        make_rollout(0, 0, reward=0.5),
        bad,
    ]
    path = write_rows(tmp_path / "rollouts.jsonl", rows)
    report = validate_files([path], ValidateOptions(fix=True)).files[0]
    assert [problem.line for problem in report.bad if "same (task, rollout)" in problem.text] == [3, 4]
    assert [json.loads(line)["reward"] for line in Path(report.fixed or "").read_text().splitlines()] == [
        1.0,
        0.5,
    ]
    rejected = [json.loads(line) for line in Path(report.rejects or "").read_text().splitlines()]
    assert [row["line"] for row in rejected] == [1, 4]
    assert rejected[0]["reasons"] == ["line 3 replaces it"]


def test_a_chat_part_slips_through_the_peers_schema_too(tmp_path: Path) -> None:
    item = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    path = write_rows(tmp_path / "t.jsonl", [{"responses_create_params": {"input": [item]}}])
    (problem,) = validate_files([path]).files[0].bad
    assert problem.path == "responses_create_params.input[0].content[0].type" and "input_text" in problem.hint


def test_every_rejected_line_has_its_reasons_however_many_there_are(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.v2.jsonl", [b"{bad"] * 1200)
    report = validate_files([path], ValidateOptions(fix=True)).files[0]
    assert report.rejects == str(tmp_path / "t.v2.rejects.jsonl")
    rejected = [json.loads(line) for line in Path(report.rejects).read_text().splitlines()]
    assert len(rejected) == 1200 and all("strings" in row["reasons"][0] for row in rejected)


def test_half_a_surrogate_pair_is_named(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "t.jsonl", [b'{"responses_create_params": {"input": "\\ud800 x"}}'])
    (problem,) = validate_files([path]).files[0].bad
    assert "surrogate" in problem.text


@pytest.mark.parametrize(
    ("row", "path"),
    [
        (make_task([{"type": ["message"], "role": "user", "content": "x"}]), "input[0].type"),
        (make_task([{"type": {}, "role": "user", "content": "x"}]), "input[0].type"),
        (make_task([{"type": "function_call", "call_id": ["c"], "name": "f", "arguments": "{}"}]), "input[0].call_id"),
        (make_task([{"type": "function_call_output", "call_id": ["c"], "output": "x"}]), "input[0].call_id"),
        (make_task(params={"tools": [{**GOOD_TOOL, "name": {"a": 1}}]}), "tools[0].name"),
        (
            make_task(params={"tools": [{**GOOD_TOOL, "parameters": {"type": "object", "required": [["a"]]}}]}),
            "tools[0].parameters.required",
        ),
        (
            make_task(params={"tools": [{**GOOD_TOOL, "parameters": {"type": "object", "required": [{}]}}]}),
            "tools[0].parameters.required",
        ),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_a_finding_wherever_it_stands(tmp_path: Path, row: Row, path: str) -> None:
    assert (1, f"responses_create_params.{path}") in problems(tmp_path / "t.jsonl", row)


def test_a_reward_that_no_float_holds_is_out_of_range(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "r.jsonl", [make_rollout(0, 0), make_rollout(0, 1, 10**400)])
    (problem,) = validate_files([path]).files[0].bad
    assert (problem.line, problem.path) == (2, "reward") and "out of range" in problem.text


@pytest.mark.parametrize(
    ("value", "reasons"),
    [
        (b"1e999", ["1e999 is a number out of range"]),
        (b"1" * 5000, ["5,000 digits is out of range"]),
        (b'[NaN, "\\ud800"]', ["NaN is no JSON", "surrogate"]),
        (b'[NaN, "\\ud800", 1e999]', ["NaN is no JSON", "surrogate", "out of range"]),
        (b"[" * 5000 + b"]" * 5000, ["nested too deeply"]),
    ],
)
def test_what_most_readers_refuse_is_called_what_it_is(
    tmp_path: Path, value: bytes, reasons: list[str]
) -> None:
    line = b'{"responses_create_params": {"input": "a"}, "x": ' + value + b"}"
    (problem,) = validate_files([write_rows(tmp_path / "t.jsonl", [line])]).files[0].bad
    assert all(reason in problem.text for reason in reasons)
    assert ("surrogate" in problem.text) == ("surrogate" in reasons)


def test_a_byte_order_mark_is_called_what_it_is(tmp_path: Path) -> None:
    task = b'\xef\xbb\xbf{"responses_create_params": {"input": "a"}}'
    report = validate_files([write_rows(tmp_path / "t.jsonl", [task])]).files[0]
    assert "byte order mark" in report.warnings[0].text and not report.bad, "collect accepts it"
    rollout = b"\xef\xbb\xbf" + json.dumps(make_rollout(0, 0)).encode()
    (problem,) = validate_files([write_rows(tmp_path / "r.jsonl", [rollout])]).files[0].bad
    assert "byte order mark" in problem.text


@pytest.mark.parametrize("depth", range(900, 1000, 3))
def test_a_row_that_can_just_be_read_is_good_or_nested_too_deeply(tmp_path: Path, depth: int) -> None:
    line = b'{"responses_create_params": {"input": "a"}, "x": ' + b"[" * depth + b"]" * depth + b"}"
    bad = validate_files([write_rows(tmp_path / "t.jsonl", [line])]).files[0].bad
    assert all(problem.text == "nested too deeply" for problem in bad)


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_text("nope")
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read as Parquet"):
        validate_files([path])


def _with_field(row: Row, path: str) -> Row:
    outer, _, inner = path.partition(".")
    return row | {outer: _with_field(row.get(outer, {}), inner) if inner else "x"}


@pytest.mark.parametrize("name", VERIFIERS.names())
def test_the_fields_a_verifier_needs_are_found_where_it_finds_them(tmp_path: Path, name: str) -> None:
    needs = load_verifier(name).needs
    for choice in range(2):
        row = make_task(f"question {choice}")
        for need in needs:
            row = _with_field(row, need.split("|")[-choice])
        assert problems(tmp_path / "t.jsonl", row, needs=needs) == []
    missing = problems(tmp_path / "t.jsonl", make_task(), needs=needs)
    assert missing == [(1, need.split("|")[0]) for need in needs]


def kept_lines(report: FileReport) -> list[Row]:
    return [json.loads(line) for line in Path(report.fixed or "").read_text().splitlines()]


def test_a_field_of_mixed_type_takes_no_rollout_out(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, note=f"row {task}") for task in range(3)]
    rows.append(make_rollout(0, 0, note=5))
    report = validate_files([write_rows(tmp_path / "r.jsonl", rows)], ValidateOptions(fix=True)).files[0]
    assert [row["note"] for row in kept_lines(report)] == ["row 1", "row 2", 5]
    assert validate_files([report.fixed or ""]).ok


def test_of_equal_rows_the_first_good_one_stays(tmp_path: Path) -> None:
    rows = [make_task("a", _ng_task_index=index) for index in (-1, 4, 5)]
    report = validate_files([write_rows(tmp_path / "t.jsonl", rows)], ValidateOptions(fix=True)).files[0]
    assert [row["_ng_task_index"] for row in kept_lines(report)] == [4]


@pytest.mark.parametrize("names", [
    ("a/train.jsonl", "b/train.jsonl"), ("train.jsonl", "train.jsonl.gz"),
    ("train.jsonl", "train.parquet"), ("train.jsonl", "train.jsonl"),
])  # fmt: skip
def test_two_clean_copies_of_one_name_are_refused_before_anything_is_written(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    paths = [write_rows(tmp_path / name, [make_task(name)]) for name in names]
    with pytest.raises(UsageError, match="would both be written to") as refused:
        validate_files(paths, ValidateOptions(fix=True, out=str(tmp_path / "clean")))
    assert all(str(path) in str(refused.value) for path in paths) and refused.value.hint
    assert not (tmp_path / "clean").exists()


def test_a_clean_copy_never_overwrites_a_file_that_is_validated(tmp_path: Path) -> None:
    paths = [write_rows(tmp_path / name, [make_task(name)]) for name in ("t.jsonl", "t.clean.jsonl")]
    with pytest.raises(UsageError, match="would overwrite"):
        validate_files(paths, ValidateOptions(fix=True))
    assert "t.clean.jsonl" in paths[1].read_text()


ASKED = [{"role": "user", "content": "p"}]


def answers(*texts: str) -> list[Row]:
    return [{"rank": n, "completion": [{"role": "assistant", "content": t}]} for n, t in enumerate(texts)]


def turns(*texts: str) -> list[Row]:
    return [{"from": ("human", "gpt")[n % 2], "value": t} for n, t in enumerate(texts)]


FORMS = {
    "openrlhf": lambda a: {"input": ASKED, "label": a, "datasource": "d"},
    "openrlhf-sft": lambda a: {"input": [*ASKED, {"role": "assistant", "content": a}]},
    "text": lambda a: {"input": "p", "output": a},
    "nemo-rl": lambda a: {"context": ASKED, "completions": answers(a, "worse")},
    "sharegpt": lambda a: {"conversations": turns("p", a), "system": "", "tools": ""},
    "implicit": lambda a: {
        "chosen": [*ASKED, {"role": "assistant", "content": a}],
        "rejected": [*ASKED, {"role": "assistant", "content": "worse"}],
    },
    "tasks": lambda a: make_task("p", expected_answer=a),
}


@pytest.mark.parametrize("other", FORMS)
@pytest.mark.parametrize("form", FORMS)
def test_a_prompt_in_train_and_validation_is_seen_in_every_form(
    tmp_path: Path, form: str, other: str
) -> None:
    train = write_rows(tmp_path / "train.jsonl", [FORMS[form]("a")])
    validation = write_rows(tmp_path / "validation.jsonl", [FORMS[other]("b")])
    first, second = validate_files([train, validation]).files
    assert not first.bad and [problem.text for problem in second.bad] == [f"the same prompt as {train}:1"]


def test_shards_of_one_split_may_share_prompts_and_splits_may_not(tmp_path: Path) -> None:
    names = [f"{split}-0000{n}-of-00002.jsonl" for split in ("train", "validation") for n in range(2)]
    paths = [write_rows(tmp_path / name, [{"prompt": "p", "completion": name}]) for name in names]
    assert validate_files(paths[:2]).ok and validate_files(paths[2:]).ok
    report = validate_files(paths)
    assert [file.errors for file in report.files] == [0, 0, 1, 1]


def test_no_line_of_a_shared_prompt_stays_in_the_clean_copy(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.jsonl", [make_task("p", expected_answer="1")])
    rows = [make_task("p", expected_answer=answer) for answer in ("1", "1", "2")] + [make_task("q")]
    validation = write_rows(tmp_path / "validation.jsonl", rows)
    report = validate_files([train, validation], ValidateOptions(fix=True))
    assert kept_lines(report.files[1]) == [make_task("q")]
    assert validate_files([file.fixed or "" for file in report.files]).ok


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def with_tool(**changed: Any) -> Row:
    return {"tools": [{**GOOD_TOOL, **changed}]}


def with_property(schema: Any) -> Row:
    return with_tool(parameters={"type": "object", "properties": {"a": schema}})


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"instructions": 5}, "instructions"),
        ({"model": 5}, "model"),
        ({"store": "x"}, "store"),
        ({"background": "x"}, "background"),
        ({"reasoning": "high"}, "reasoning"),
        ({"text": "x"}, "text"),
        ({"prompt": "x"}, "prompt"),
        ({"truncation": "x"}, "truncation"),
        ({"truncation": ["auto"]}, "truncation"),
        ({"include": "x"}, "include"),
        ({"include": [1]}, "include"),
        ({"user": 3}, "user"),
        ({"tool_choice": 5}, "tool_choice"),
        ({"tool_choice": "add"}, "tool_choice"),
        ({"tool_choice": {"name": "add"}}, "tool_choice"),
        ({**with_tool(), "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name"),
        ({**with_tool(), "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({**with_tool(), "tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice.function"),
        (
            {**with_tool(), "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "sub"}]}},
            "tool_choice.tools[0].name",
        ),
        (with_tool(type="fnction"), "tools[0].type"),
        (with_tool(type=["function"]), "tools[0].type"),
        (with_tool(strict="yes"), "tools[0].strict"),
        (with_tool(description=5), "tools[0].description"),
        (with_property({"type": "string", "enum": "x"}), "tools[0].parameters.properties.a.enum"),
        (with_property({"anyOf": [{"type": "strng"}]}), "tools[0].parameters.properties.a.anyOf[0].type"),
        (with_property({"anyOf": {"type": "string"}}), "tools[0].parameters.properties.a.anyOf"),
        (
            with_property({"type": "array", "items": {"oneOf": [{"allOf": [{"items": {"type": "strng"}}]}]}}),
            "tools[0].parameters.properties.a.items.oneOf[0].allOf[0].items.type",
        ),
        (
            with_property({"type": "object", "additionalProperties": {"type": "int"}}),
            "tools[0].parameters.properties.a.additionalProperties.type",
        ),
        (with_tool(parameters=SCHEMA | {"$defs": {"d": {"type": "strng"}}}), "tools[0].parameters.$defs.d.type"),
    ],
)  # fmt: skip
def test_parameters_and_tools_of_a_wrong_kind_are_errors(tmp_path: Path, params: Row, path: str) -> None:
    assert problems(tmp_path / "t.jsonl", make_task(params=params)) == [
        (1, f"responses_create_params.{path}")
    ]


@pytest.mark.parametrize(
    "params",
    [
        dict.fromkeys(PARAMS),
        {"instructions": "i", "model": "m", "store": True, "background": False, "user": "u", "service_tier": "auto"},
        {"reasoning": {"effort": None}, "text": {"format": {"type": "text"}}, "truncation": "disabled", "include": []},
        *({"tool_choice": choice, **with_tool()} for choice in ("auto", "none", "required")),
        *({"tools": [{"type": name}], "tool_choice": {"type": name}} for name in HOSTED_TOOLS),
        {**with_tool(), "tool_choice": {"type": "function", "name": "add"}},
        {**with_tool(), "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}},
        {"tools": [{"type": "mcp", "server_label": "s"}], "tool_choice": {"type": "mcp", "server_label": "s", "name": "f"}},
        with_tool(strict=None, description=None),
        with_tool(parameters=SCHEMA | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "additionalProperties": False}),
        with_property({"type": ["string", "null"], "enum": ["x", None]}),
        with_property({"type": "array", "items": True, "prefixItems": [{"$ref": "#/$defs/d"}, {}]}),
        with_property({"properties": {"enum": {"type": "string"}, "items": {"type": "string"}}, "not": {"type": "null"}}),
    ],
)  # fmt: skip
def test_what_the_responses_api_allows_is_not_accused(tmp_path: Path, params: Row) -> None:
    row = make_task(params=params | {"input": "why?"})
    report = validate_files([write_rows(tmp_path / "t.jsonl", [row])]).files[0]
    assert report.bad == [] and report.warnings == []


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"role": "user", "content": [{"type": "input_image"}]}, "content[0].image_url"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": {"url": "u"}}]},
            "content[0].image_url",
        ),
        ({"role": "user", "content": [{"type": "output_text", "text": "x"}]}, "content[0].type"),
        ({"role": "system", "content": [{"type": "refusal", "refusal": "x"}]}, "content[0].type"),
        ({"type": "reasoning", "id": "r"}, "summary"),
        ({"type": "mcp_list_tools"}, "server_label"),
        ({"type": "mcp_list_tools", "server_label": "s"}, "tools"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{bad"}, "arguments"),
    ],
)
def test_items_that_say_nothing_or_what_their_speaker_cannot_are_errors(
    tmp_path: Path, item: Row, path: str
) -> None:
    assert (1, f"responses_create_params.input[0].{path}") in problems(
        tmp_path / "t.jsonl", make_task([item])
    )


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": [{"type": "input_image", "image_url": "u"}, {"type": "input_image", "file_id": "f"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x"}, {"type": "refusal", "refusal": "n"}]},
        {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "mcp_list_tools", "id": "m", "server_label": "s", "tools": []},
        {"type": "web_search_call", "id": "w"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    ],
)  # fmt: skip
def test_items_of_every_right_form_pass(tmp_path: Path, item: Row) -> None:
    assert problems(tmp_path / "t.jsonl", make_task([item])) == []


def test_arguments_that_a_model_wrote_wrong_are_no_error_of_the_rollout(tmp_path: Path) -> None:
    row = make_rollout(0, 0)
    row["response"]["output"].insert(
        0, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{bad"}
    )
    report = validate_files([write_rows(tmp_path / "r.jsonl", [row])])
    assert report.ok
    assert [warning.path for warning in report.files[0].warnings] == ["response.output[0].arguments"]


CHAT = [*ASKED, {"role": "assistant", "content": "a"}]


def called(calls: Any) -> Row:
    return {"messages": [*ASKED, {"role": "assistant", "content": "", "tool_calls": calls}]}


def spoken(*speakers: str, **fields: Any) -> Row:
    return {"conversations": [{"from": speaker, "value": "x"} for speaker in speakers], **fields}


SIDES = {"chosen": {"from": "gpt", "value": "a"}, "rejected": {"from": "gpt", "value": "b"}}


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"messages": CHAT, "tools": "[{bad"}, "tools"),
        ({"messages": CHAT, "tools": "{}"}, "tools"),
        (called("x"), "messages[1].tool_calls"),
        (called([5]), "messages[1].tool_calls[0]"),
        (called([{"function": "f"}]), "messages[1].tool_calls[0].function"),
        (spoken("human", "human"), "conversations[1].from"),
        (spoken("gpt", "human"), "conversations[0].from"),
        (spoken("human", "gpt", "human"), "conversations[2].from"),
        (spoken("human", "function_call", "observation", "observation", "gpt"), "conversations[3].from"),
        (spoken("human", "gtp"), "conversations[1].from"),
        (spoken("system"), "conversations[0].from"),
        (spoken("human", "gpt", **SIDES), "conversations[1].from"),
        (spoken("human", **SIDES, ) | {"chosen": {"from": "human", "value": "a"}}, "chosen[0].from"),
    ],
)  # fmt: skip
def test_rows_that_a_trainer_drops_or_stops_at_are_errors(tmp_path: Path, row: Row, path: str) -> None:
    assert problems(tmp_path / "d.jsonl", row) == [(1, path)]


@pytest.mark.parametrize(
    "row",
    [
        *({"messages": CHAT, "tools": tools} for tools in ("", "[]", "null", None, '[{"name": "f", "parameters": {}}]')),
        *(called(calls) for calls in (None, [], [{"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}], [{"name": "f"}])),
        spoken("human", "gpt"),
        spoken("system", "human", "function_call", "observation", "gpt"),
        spoken("user", "assistant", "user", "assistant"),
        spoken("human", **SIDES),
        {"conversations": CHAT},
    ],
)  # fmt: skip
def test_rows_in_the_forms_of_the_trainers_pass(tmp_path: Path, row: Row) -> None:
    assert problems(tmp_path / "d.jsonl", row) == []


def test_arguments_that_a_model_wrote_wrong_are_a_warning_in_a_dataset(tmp_path: Path) -> None:
    row = called([{"function": {"name": "f", "arguments": "{bad"}}])
    report = validate_files([write_rows(tmp_path / "d.jsonl", [row])])
    assert report.ok
    assert [warning.path for warning in report.files[0].warnings] == [
        "messages[1].tool_calls[0].function.arguments"
    ]


async def test_tasks_runs_and_shards_that_rollforge_writes_pass(tmp_path: Path) -> None:
    tasks = write_rows(tmp_path / "tasks.jsonl", example_tasks(12, 0, "mixed"))
    run = tmp_path / "run"
    async with SimulatedServer(SimulateOptions(reasoning=0.5)) as server:
        options = CollectOptions(
            input=str(tasks), out=str(run), model="simulated", base_urls=(server.base_url,), verifier="exact", samples=4
        )  # fmt: skip
        await Collection(options).run()
    made = prepare("kto", run, to="trl", out=tmp_path / "data", shards=3)
    shards = [tmp_path / "data" / file.path for file in made.files]
    assert len(shards) == 3
    for paths in ([tasks], [run / "rollouts.jsonl"], [run / "rollouts_tasks.jsonl"], shards):
        report = validate_files(paths)
        assert report.ok, [problem for file in report.files for problem in file.bad][:3]
        assert all(file.rows for file in report.files)


def test_items_and_schemas_that_the_api_allows_pass(tmp_path: Path) -> None:
    items = [
        {"role": "user", "content": "x"},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "shell_call", "call_id": "s", "action": {}},
        {"type": "shell_call_output", "call_id": "s", "output": []},
        {"type": "compaction", "encrypted_content": "…"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}]},
    ]
    properties = {
        "any": True,
        "none": False,
        "other": {"type": "object", "properties": None, "required": None},
    }
    tool = {**GOOD_TOOL, "parameters": {"type": "object", "properties": properties}}
    assert problems(tmp_path / "t.jsonl", make_task(items, params={"tools": [tool]})) == []


def test_a_message_without_parts_in_a_response_is_what_happened_and_only_told(tmp_path: Path) -> None:
    row = make_rollout(0, 0)
    row["response"]["output"][0]["content"] = []
    [file] = validate_files([write_rows(tmp_path / "rollouts.jsonl", [row])]).files
    assert not file.bad and [one.path for one in file.warnings] == ["response.output[0].content"]


@pytest.mark.parametrize("name", ["tasks.parquet", "tasks.data"])
def test_tasks_in_parquet_pass_whatever_their_items_and_the_name_of_the_file(
    tmp_path: Path, name: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [task for task in GOOD if isinstance(task["responses_create_params"]["input"], list)]
    rows[0] = make_task([{"role": "user", "content": "u", "type": "message"}])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    report = validate_files([tmp_path / name], ValidateOptions(fix=True))
    assert report.ok and report.files[0].kind == "tasks" and report.files[0].rows == len(rows)
    assert validate_files([str(report.files[0].fixed)]).ok


def chat_tool(**function: Any) -> Row:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}} | function}


BAD_TOOL = chat_tool(parameters={"type": "object", "properties": {"a": {"type": "strnig"}}})


@pytest.mark.parametrize(
    ("row", "path"),
    [
        ({"messages": CHAT, "tools": [BAD_TOOL]}, "tools[0].function.parameters.properties.a.type"),
        ({"messages": CHAT, "tools": json.dumps([BAD_TOOL])}, "tools[0].function.parameters.properties.a.type"),
        ({"messages": CHAT, "tools": '[{"name": "a b"}]'}, "tools[0].name"),
        ({"messages": CHAT, "tools": [chat_tool(), chat_tool()]}, "tools[1].function.name"),
        ({"messages": CHAT, "tools": '["f"]'}, "tools[0]"),
        ({"messages": [{"role": "user", "content": ["x"]}, *CHAT[1:]]}, "messages[0].content[0]"),
        ({"prompt": "p", "completion": "c", "label": "good"}, "label"),
        ({"instruction": "", "input": "", "output": "o"}, "instruction"),
    ],
)  # fmt: skip
def test_faults_inside_rows_of_datasets_are_placed(tmp_path: Path, row: Row, path: str) -> None:
    assert problems(tmp_path / "d.jsonl", row) == [(1, path)]


def test_a_chat_call_has_a_name(tmp_path: Path) -> None:
    found = problems(tmp_path / "d.jsonl", called([{"id": "c", "function": {"arguments": "{}"}}]))
    assert [path.rpartition("tool_calls")[2] for _, path in found] == ["[0].function.name"]


@pytest.mark.parametrize(
    "row",
    [
        {"instruction": "i", "input": "", "output": "o"},
        {"text": "plain"},
        {"prompt": "p", "completion": "c", "label": 1},
        {"prompt": "p", "label": "42"},
        {"messages": [CHAT[0], {"role": "assistant", "content": None, "refusal": "no"}]},
        {"messages": [CHAT[0], {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                      {"role": "function", "name": "f", "content": "1"}, CHAT[-1]]},
        {"messages": CHAT, "tools": [chat_tool()]},
    ],
)  # fmt: skip
def test_other_rows_that_trainers_read_pass(tmp_path: Path, row: Row) -> None:
    assert problems(tmp_path / "d.jsonl", row) == []


def test_a_tool_message_needs_no_call_where_calls_are_text(tmp_path: Path) -> None:
    result = {"role": "tool", "content": "1"}
    as_text = {"messages": [CHAT[0], CHAT[-1], result, CHAT[-1]]}
    as_calls = called([{"id": "c", "function": {"name": "f", "arguments": "{}"}}])
    as_calls["messages"] = [*as_calls["messages"], result, CHAT[-1]]
    [file] = validate_files([write_rows(tmp_path / "d.jsonl", [as_text, as_calls])]).files
    assert not file.bad and {one.line for one in file.warnings} == {2}


def test_plain_tasks_have_the_fields_that_the_verifier_needs(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "expected_answer": "1"}, {"prompt": "b"}, {"prompt": "c", "completion": "d"}]
    found = problems(tmp_path / "t.jsonl", *rows, needs=["expected_answer"])
    assert found == [(2, "expected_answer")]


ASKS_TWICE = [*CHAT, {"role": "user", "content": "and now?"}]


@pytest.mark.parametrize(
    ("row", "turns", "tools"),
    [
        ({"messages": [*ASKS_TWICE, CHAT[-1]], "tools": json.dumps([chat_tool()])}, 2, 1),
        (spoken("human", "gpt", "human", "gpt", tools='[{"name": "f"}, {"name": "g"}]'), 2, 2),
        ({"prompt": ASKS_TWICE, "chosen": [CHAT[-1]], "rejected": [{"role": "assistant", "content": "b"}]}, 2, 0),
        ({"input": ASKS_TWICE, "label": "1"}, 2, 0),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "tools": [chat_tool()]}, 1, 1),
        ({"rollout": make_rollout(), "label": True}, 1, 0),
        ({"context": ASKS_TWICE, "completions": [
            {"rank": rank, "completion": [{"role": "assistant", "content": f"answer {rank}"}]} for rank in range(2)
        ]}, 2, 0),
    ],
)  # fmt: skip
def test_turns_tools_and_words_are_counted_in_every_form(
    tmp_path: Path, row: Row, turns: int, tools: int
) -> None:
    report = validate_files([write_rows(tmp_path / "d.jsonl", [row])])
    metrics = report.files[0].metrics
    assert report.ok and (metrics.turns.mean, metrics.tools.mean) == (turns, tools)
    assert (metrics.words.mean or 0) > 3


def test_a_common_fault_does_not_hide_a_rare_one(tmp_path: Path) -> None:
    common = [make_task([{"role": "usr", "content": f"q{number}"}], answer="x") for number in range(3000)]
    rows = [*common, b"{torn", make_task("number", answer=1), *common[:1]]
    [file] = validate_files([write_rows(tmp_path / "t.jsonl", rows)]).files
    assert file.errors == 3002 and len(file.bad) == 1001
    assert [(one.line, one.path) for one in file.bad[1000:]] == [(3001, "")]
    assert [(one.line, one.path) for one in file.warnings] == [(3003, ""), (3002, "answer")]


def test_a_line_for_each_rollout_of_a_task_is_no_repetition_but_the_same_rollout_twice_is(
    tmp_path: Path,
) -> None:
    rows = [make_task("a", _ng_task_index=0, _ng_rollout_index=rollout) for rollout in (0, 1, 2, 1)]
    [file] = validate_files([write_rows(tmp_path / "rollouts_materialized_inputs.jsonl", rows)]).files
    assert [(one.line, one.text) for one in file.warnings] == [(4, "the same row as line 2")]
    assert not file.bad


def test_every_failed_attempt_may_have_its_line_with_or_without_a_response(tmp_path: Path) -> None:
    judged = make_rollout(0, 0, 0.0, _ng_failure_class="judge_failed", _ng_attempt_index=0)
    own = {"_ng_task_index": 0, "_ng_rollout_index": 0, "_ng_failure_class": "timeout", "response": None}
    assert problems(tmp_path / "rollouts_failures.jsonl", judged, own | {"_ng_attempt_index": 1}) == []


def test_the_row_of_another_kind_is_the_wrong_one_also_when_it_is_the_first(tmp_path: Path) -> None:
    rows = [{"messages": CHAT}, make_task("a"), make_task("b")]
    path = write_rows(tmp_path / "t.jsonl", rows)
    [file] = validate_files([path], ValidateOptions(fix=True)).files
    assert (file.kind, [(one.line, one.path) for one in file.bad]) == ("tasks", [(1, "")])
    assert file.fixed is not None and Path(file.fixed).read_bytes().count(b"\n") == 2


def test_a_file_without_rows_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    [report] = validate_files([tmp_path / "empty.jsonl"]).files
    assert (report.kind, report.errors, [one.text for one in report.bad]) == (
        "empty",
        1,
        ["the file has no rows"],
    )


def test_unknown_parameters_are_warnings_at_most_and_null_ones_nothing(tmp_path: Path) -> None:
    params = {
        "temprature": 1,
        "conversation": None,
        "context_management": [],
        "brand_new": None,
        "prompt_cache_key": "k",
    }
    [file] = validate_files([write_rows(tmp_path / "t.jsonl", [make_task(params=params)])]).files
    assert file.errors == 0
    (warning,) = file.warnings
    assert (
        warning.path == "responses_create_params.temprature" and "did you mean 'temperature'" in warning.text
    )


@pytest.mark.parametrize("empty", [[], "", [{"role": "user", "content": ""}]])
def test_an_empty_prompt_is_legal_where_an_agent_makes_it(tmp_path: Path, empty: Any) -> None:
    row = {"responses_create_params": {"input": empty}, "task_idx": 3}
    [file] = validate_files([write_rows(tmp_path / "t.jsonl", [row])]).files
    assert file.errors == 0 and (
        not isinstance(empty, list) or empty or "--gym-agent" in file.warnings[0].hint
    )
    with pytest.raises(BadRow, match="the prompt is empty"):
        to_task_row(json.dumps(row).encode())
    assert to_task_row(json.dumps(row).encode(), may_lack_prompt=True)["task_idx"] == 3


def test_typed_tasks_are_tasks_with_the_fields_of_their_input(tmp_path: Path) -> None:
    inner = {"responses_create_params": {"input": "why?"}, "task_data": {"expected_answer": "42"}}
    typed = {"task_id": {"taskset": "math", "task_id": "7"}, "task_input": inner}
    bare = {"task_id": "user-1", "resolved_row": {"persona": {"age": 35}}}
    path = write_rows(tmp_path / "t.jsonl", [typed, bare])
    [file] = validate_files([path], ValidateOptions()).files
    assert (file.kind, file.errors) == ("tasks", 0)
    row = to_task_row(json.dumps(typed).encode(), needs=["expected_answer"])
    assert row["responses_create_params"]["input"] == "why?" and row["expected_answer"] == "42"
    assert row["task_id"] == {"taskset": "math", "task_id": "7"}


def test_a_template_makes_the_prompts_that_are_checked(tmp_path: Path) -> None:
    template = PromptTemplate(user="{question}")
    rows = [{"question": "why?", "responses_create_params": {"temperature": 1.0}}, {"other": 1}]
    path = write_rows(tmp_path / "t.jsonl", rows)
    [file] = validate_files([path], ValidateOptions(prompt_template=template)).files
    assert [(one.line, one.text) for one in file.bad] == [
        (2, "the template's field {question} is not in the row")
    ]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("rows.json", b'[\n  {"prompt": "a"},\n {"prompt": "b", "x": NaN}, {"prompt": ""}\n]'),
        ("rows.csv", b"prompt,x\na,1\nb,2\n,3\n"),
    ],
)
def test_the_rows_of_other_containers_are_checked_and_fixed_as_lines_are(
    tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    report = validate_files([tmp_path / name], ValidateOptions(fix=True))
    [file] = report.files
    assert not report.ok and 3 in {one.line for one in file.bad}
    assert file.fixed is not None
    clean = [json.loads(line)["prompt"] for line in Path(file.fixed).read_text().splitlines()]
    assert clean[0] == "a" and "" not in clean


def test_a_map_is_applied_before_a_row_is_checked(tmp_path: Path) -> None:
    rows = [{"question": "q", "answer": "x #### 4"}, {"question": "q2", "answer": "none"}]
    path = write_rows(tmp_path / "t.jsonl", rows)
    mapping = FieldMap.parse(['prompt=question,expected_answer="answer|after:####"'])
    [file] = validate_files([path], ValidateOptions(mapping=mapping, needs=("expected_answer",))).files
    assert [(one.line, one.path) for one in file.bad] == [(2, "answer")]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("rows.json", b'{\n  "prompt": "a"\n}', "several lines"),
        ("rows.xlsx", b"PK\x03\x04\x00\x00", "zip archive"),
        ("rows.png", b"\x89PNG\r\n\x1a\n\x00\x00", "a PNG image"),
        ("rows.bin", b"ab\x00\x01cd", "a binary file"),
    ],
)
def test_other_formats_are_named_by_validate_and_by_collect(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    [file] = validate_files([tmp_path / name]).files
    assert file.errors == 1 and words in file.bad[0].text and file.bad[0].hint
    with pytest.raises(UsageError, match=words):
        list(read_lines(tmp_path / name))


def test_the_same_fault_in_many_rows_is_printed_once_with_its_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_task(f"q{number}", params={"temperature": "hot"}) for number in range(40)]
    with pytest.raises(SystemExit) as ended:
        main(["validate", str(write_rows(tmp_path / "t.jsonl", rows))])
    said = capsys.readouterr().out
    assert ended.value.code == 2
    assert said.count("expected a number from 0 to 2") == 1 and "and 39 more rows" in said


def test_nested_output_lists_are_looked_into(tmp_path: Path) -> None:
    row = make_rollout(0, 0)
    row["response"]["output"] = [row["response"]["output"]]
    assert problems(tmp_path / "r.jsonl", row) == []


def test_what_validate_accepts_collect_accepts(tmp_path: Path) -> None:
    rows: list[Row] = [
        {"responses_create_params": {"input": "a", "stream": True}},
        {"responses_create_params": {"input": [{"type": "function_call_output", "output": "x"}]}},
        {"responses_create_params": {"input": [{"role": "user", "content": None}]}},
        {"responses_create_params": {"input": [{"type": 3, "content": "x"}]}},
        {"responses_create_params": {"input": "fine"}},
    ]
    for row in rows:
        [file] = validate_files([write_rows(tmp_path / "t.jsonl", [row])]).files
        try:
            to_task_row(json.dumps(row).encode())
        except BadRow:
            assert file.errors, row
        else:
            assert not file.errors, row


def test_a_plain_file_with_the_name_of_an_archive_is_read_as_collect_reads_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "tasks.jsonl", [make_task("one"), make_task("two")])
    packed = path.rename(tmp_path / "tasks.jsonl.gz")
    (report,) = validate_files([packed], ValidateOptions()).files
    assert (report.rows, report.errors) == (2, 0)


def test_a_single_row_is_counted_in_the_singular(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path / "data.jsonl", [{"prompt": "a", "completion": "b"}, {"prompt": 5, "completion": "b"}]
    )
    (report,) = validate_files([path], ValidateOptions()).files
    assert "a number in 1 row, a text in the others" in [problem.text for problem in report.bad]


def test_advice_for_json_over_several_lines_names_the_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "my tasks.json"
    path.write_text(json.dumps({"prompt": "a"}, indent=2))
    (report,) = validate_files([path], ValidateOptions()).files
    assert [problem.hint for problem in report.bad] == [
        f"write each object on one line: jq -c . '{path}' > 'my tasks.lines.jsonl'"
    ]
