"""`validate` and `collect` take the same task files, and name the same things that are none."""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path

import pytest

from rollforge.cli import main

TASK = json.dumps({"prompt": "What is 1 + 1?", "expected_answer": "2"}).encode() + b"\n"
TASK_ROW = json.dumps(
    {"responses_create_params": {"input": "What is 1 + 1?"}, "expected_answer": "2"}
).encode()
FILES = {
    "plain": TASK_ROW + b"\n",
    "with a byte order mark": codecs.BOM_UTF8 + TASK_ROW + b"\n",
    "a prompt with a byte order mark": codecs.BOM_UTF8 + TASK,
    "packed without the ending": gzip.compress(TASK_ROW + b"\n"),
    "packed and bad": gzip.compress(b"{}\n"),
    "a table": b"prompt,expected_answer\nWhat?,2\n",
    "an array": b"[" + TASK_ROW + b"]",
    "no rows": b"\n \n",
    "a PDF": b"%PDF-1.7 ...",
}


def outcome(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return int(ended.value.code or 0), "".join(capsys.readouterr())


@pytest.mark.parametrize("name", FILES)
def test_validate_and_collect_agree_on_a_task_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(FILES[name])
    validated, _ = outcome(["validate", str(path)], capsys)
    out = str(tmp_path / "run")
    collected, _ = outcome(
        ["collect", "-i", str(path), "-o", out, "-m", "simulated", "--verifier", "exact", "--dry-run"], capsys
    )
    assert validated == collected


def test_a_byte_order_mark_is_a_warning_for_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(FILES["with a byte order mark"])
    code, said = outcome(["validate", str(path)], capsys)
    assert code == 0
    assert "byte order mark" in said


def test_a_table_under_another_name_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(FILES["a table"])
    for words in (
        ["validate", str(path)],
        ["collect", "-i", str(path), "-o", str(tmp_path / "r"), "-m", "simulated"],
    ):
        code, said = outcome(words, capsys)
        assert code == 2
        assert "a table (CSV)" in said and ".csv" in said


def test_a_folder_as_input_is_named_with_the_files_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "part.jsonl").write_bytes(TASK)
    code, said = outcome(
        ["collect", "-i", str(tmp_path / "tasks"), "-o", str(tmp_path / "run"), "-m", "simulated"], capsys
    )
    assert code == 2
    assert "a folder, not a file" in said and "part.jsonl" in said
