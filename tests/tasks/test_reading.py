"""Task rows come from any container, and every bad one says what is wrong and what would be right."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

from rollforge.errors import DataError, UsageError
from rollforge.records import from_json, to_json
from rollforge.tasks import BadRow, PromptTemplate, read_lines, to_task_row

ROWS = [{"prompt": f"question {number}", "expected_answer": str(number)} for number in range(5)]
TABLE = pa.Table.from_pylist(ROWS)
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
        case "arrow":
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, TABLE.schema) as writer:
                writer.write_table(TABLE)
        case "arrow stream":
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, TABLE.schema) as writer:
                writer.write_table(TABLE)
        case "feather":
            feather.write_feather(TABLE, str(path))
        case "array":
            path.write_text(json.dumps(ROWS))
        case "array over lines":
            path.write_text("\n " + json.dumps(ROWS, indent=2) + "\n")
        case "array, gzip":
            path.write_bytes(gzip.compress(json.dumps(ROWS, indent=1).encode()))
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
    "kind",
    [
        *("plain", "gzip", "zstd", "parquet", "arrow", "arrow stream", "feather"),
        *("array", "array over lines", "array, gzip", "bom", "crlf", "blank lines", "no last newline"),
    ],
)
def test_the_rows_are_the_same_whatever_holds_them(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "tasks.data", kind)
    assert [from_json(line) for _, line in read_lines(path)] == ROWS


CSV = 'prompt,expected_answer,note\n"a ""quoted"", text",42,\n"two\nlines",7,x\n'


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv"])
def test_a_csv_table_is_a_task_file_and_an_empty_cell_is_missing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = (CSV.replace(",42,", "\t42\t").replace(",7,", "\t7\t") if name == "t.tsv" else CSV).encode()
    data = (
        data.replace(b"prompt,expected_answer,note", b"prompt\texpected_answer\tnote")
        if name == "t.tsv"
        else data
    )
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else b"\xef\xbb\xbf" + data)
    assert [from_json(line) for _, line in read_lines(path)] == [
        {"prompt": 'a "quoted", text', "expected_answer": "42"},
        {"prompt": "two\nlines", "expected_answer": "7", "note": "x"},
    ]


def test_cells_of_messages_are_json(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('messages,prompt\n"[{""role"": ""user"", ""content"": ""x""}]","[1] is a text"\n')
    ((_, line),) = read_lines(path)
    assert from_json(line) == {"messages": [{"role": "user", "content": "x"}], "prompt": "[1] is a text"}


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"a,a\n1,2\n", "no header"),
        (b"a,b\n1,2,3\n", "t.csv:2: 3 cells"),
        (b"a,b\n1,\xff\n", "not UTF-8"),
        (b'a,b\n"1,2\n', "t.csv:"),
        (b"messages\n[1\n", "not JSON"),
    ],
)
def test_a_table_that_cannot_be_read_says_where(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(DataError, match=what):
        list(read_lines(path))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b'[{"prompt": "a"}', "after element 1"),
        (b'[{"prompt": "a"}, {"pro', "after element 1"),
        (b'[{"prompt": "a"}]\n[{"prompt": "b"}]', "more text"),
    ],
)
def test_an_array_that_was_cut_or_goes_on_is_refused(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(data)
    with pytest.raises(DataError, match=what):
        list(read_lines(path))


def test_elements_longer_than_a_chunk_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.tasks.containers.ARRAY_CHUNK", 16)
    rows = [{"prompt": "x" * size, "n": [1, {"a": "]}"}]} for size in (1, 100, 3, 1000, 0)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(rows, indent=1))
    assert [from_json(line) for _, line in read_lines(path)] == rows


@pytest.mark.parametrize("size", [8, 100, 400])
def test_an_arrow_file_that_was_cut_is_said_to_be_damaged(tmp_path: Path, size: int) -> None:
    path = write(tmp_path / "tasks.arrow", "arrow")
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match="damaged"):
        list(read_lines(path))


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


def test_a_row_whose_prompt_has_another_name_is_answered_with_its_fields() -> None:
    with pytest.raises(BadRow) as caught:
        row({"question": "2 + 2?", "answer": "#### 4", "level": 3})
    assert "--map prompt=FIELD, of question, answer;" in caught.value.hint


def test_the_page_of_a_dataset_on_the_hub_is_answered_with_its_name(tmp_path: Path) -> None:
    from rollforge.tasks.source import open_tasks

    for page in (
        "https://huggingface.co/datasets/openai/gsm8k",
        "https://huggingface.co/datasets/openai/gsm8k/tree/main",
    ):
        with pytest.raises(UsageError) as caught:
            open_tasks(page)
        assert caught.value.hint == "a dataset on the Hub is named hf://datasets/openai/gsm8k"


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
