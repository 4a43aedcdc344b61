"""Task rows come from any container, and every bad one says what is wrong and what would be right."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from rollforge.errors import DataError, UsageError
from rollforge.records import from_json, to_json
from rollforge.tasks import BadRow, PromptTemplate, read_lines, to_task_row

ROWS = [{"prompt": f"question {number}", "expected_answer": str(number)} for number in range(5)]
LINES = b"".join(to_json(row) + b"\n" for row in ROWS)


def zstd(data: bytes) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd as library
    else:
        from backports import zstd as library
    packed: bytes = library.compress(data)
    return packed


def write(path: Path, kind: str) -> Path:
    match kind:
        case "gzip":
            path.write_bytes(gzip.compress(LINES))
        case "zstd":
            path.write_bytes(zstd(LINES))
        case "parquet":
            parquet.write_table(pa.Table.from_pylist(ROWS), path)
        case "bom":
            path.write_bytes(b"\xef\xbb\xbf" + LINES)
        case "crlf":
            path.write_bytes(LINES.replace(b"\n", b"\r\n"))
        case "blank lines":
            path.write_bytes(LINES.replace(b"\n", b"\n\n  \n"))
        case "no last newline":
            path.write_bytes(LINES.rstrip())
        case _:
            path.write_bytes(LINES)
    return path


@pytest.mark.parametrize(
    "kind", ["plain", "gzip", "zstd", "parquet", "bom", "crlf", "blank lines", "no last newline"]
)
def test_the_rows_are_the_same_whatever_holds_them(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "tasks.data", kind)
    assert [from_json(line) for _, line in read_lines(path)] == ROWS


@pytest.mark.parametrize("size", [4, 100, 700])
def test_a_parquet_file_that_was_cut_is_said_to_be_damaged(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "tasks.parquet", "parquet")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="damaged"):
        list(read_lines(path))


def test_stdin_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LINES)))
    assert len(list(read_lines("-"))) == 5


def test_a_damaged_archive_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl.gz"
    path.write_bytes(gzip.compress(LINES)[:-12])
    with pytest.raises(DataError, match="damaged"):
        list(read_lines(path))


def test_nulls_that_parquet_fills_in_are_missing_again(tmp_path: Path) -> None:
    path = tmp_path / "tasks.parquet"
    filled = [
        {"prompt": "a", "x": {"k": 1, "l": 2}, "y": 3},
        {"prompt": "b", "x": {"k": 1, "l": None}, "y": None},
    ]
    parquet.write_table(pa.Table.from_pylist(filled), path)
    assert [from_json(line) for _, line in read_lines(path)] == [filled[0], {"prompt": "b", "x": {"k": 1}}]


def row(value: object, **options: object) -> dict[str, object]:
    return to_task_row(json.dumps(value).encode(), **options)  # type: ignore[arg-type]


def test_overrides_go_deep_and_win() -> None:
    made = row(
        {
            "responses_create_params": {
                "input": "x",
                "temperature": 1,
                "reasoning": {"effort": "high", "summary": "auto"},
            }
        },
        overrides={"temperature": 0.2, "reasoning": {"effort": "low"}},
    )
    assert made["responses_create_params"] == {
        "input": "x",
        "temperature": 0.2,
        "reasoning": {"effort": "low", "summary": "auto"},
    }


@pytest.mark.parametrize(
    ("value", "path", "word"),
    [
        ([1], "", "list"),
        ({"x": 1}, "", "no prompt"),
        ({"responses_create_params": 3}, "responses_create_params", "int"),
        ({"responses_create_params": {"input": ""}}, "responses_create_params.input", "empty"),
        ({"responses_create_params": {"input": []}}, "responses_create_params.input", "the prompt is empty"),
        ({"prompt": " "}, "responses_create_params.input", "the prompt is empty"),
        ({"responses_create_params": {"input": 3}}, "responses_create_params.input", "neither"),
        ({"responses_create_params": {"input": [{}]}}, "responses_create_params.input[0].role", "role None"),
        (
            {"responses_create_params": {"input": [{"role": "wizard", "content": "x"}]}},
            "responses_create_params.input[0].role",
            "wizard",
        ),
        (
            {"responses_create_params": {"input": [{"role": "user"}]}},
            "responses_create_params.input[0].content",
            "no content",
        ),
        (
            {"responses_create_params": {"input": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}},
            "responses_create_params.input[0].role",
            "tool",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "no content"),
    ],
)
def test_a_bad_row_says_what_and_where(value: object, path: str, word: str) -> None:
    with pytest.raises(BadRow, match=word) as caught:
        row(value)
    assert caught.value.path == path


def test_a_field_the_verifier_needs_must_be_there() -> None:
    with pytest.raises(BadRow, match="expected_answer"):
        row({"prompt": "x"}, needs=("expected_answer",))


def template(folder: Path, text: str) -> PromptTemplate:
    path = folder / "prompt.yaml"
    path.write_text(text)
    return PromptTemplate.load(path)


def test_a_template_is_filled_from_the_rows_fields(tmp_path: Path) -> None:
    filled = row(
        {"question": "6 × 7?"},
        template=template(tmp_path, "system: be brief\nuser: '{question} Use \\boxed{{}}.'"),
    )
    params = filled["responses_create_params"]
    assert isinstance(params, dict)
    assert [item["content"] for item in params["input"]] == ["be brief", "6 × 7? Use \\boxed{}."]


def test_a_template_names_the_field_that_is_missing_and_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(BadRow, match=r"\{qestion\} is not in the row; did you mean 'question'"):
        row({"question": "x"}, template=template(tmp_path, "user: '{qestion}'"))


def test_a_row_with_its_own_input_and_a_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRow, match="its own"):
        row({"responses_create_params": {"input": "x"}}, template=template(tmp_path, "user: hi"))


@pytest.mark.parametrize(
    "text", ["system: only", "user: '{a.b}'", "user: '{}'", "user: '{a'", "usr: x", "- a"]
)
def test_a_template_that_cannot_work_is_refused_before_any_row(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"prompt\.yaml"):
        template(tmp_path, text)
