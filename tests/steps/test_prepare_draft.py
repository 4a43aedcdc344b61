"""The draft: rows are written while the survey looks through them, and written again where its form was wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollforge.conversations.reader import ConversationReader
from rollforge.steps.prepare import pipeline, prepare
from rollforge.steps.prepare.survey import SAMPLE
from tests.builders import Row, make_rollout, write_rows
from tests.prepare_runs import TOOL, call, read_lines, reasoning, result, with_output

TASKS = 4 * SAMPLE
"""So many that the sample skips three of four."""


def plain_rows() -> list[Row]:
    return [make_rollout(task, 0, 1.0) for task in range(TASKS)]


def with_items(row: Row, *items: Row, **params: Any) -> Row:
    return with_output(row, *items, row["response"]["output"][0], **params)


def made(rows: list[Row], folder: Path, **options: Any) -> dict[str, bytes]:
    """Names and bytes of the data files, and nothing else that prepare might leave."""
    write_rows(folder / "rollouts.jsonl", rows)
    out = folder / "data"
    manifest = prepare("sft", folder, out=out, **options)
    assert {file.path for file in manifest.files} == {
        path.name
        for path in out.iterdir()
        if path.suffix in (".jsonl", ".parquet") and path.stem[:5] in ("train", "valid")
    }
    return {file.path: (out / file.path).read_bytes() for file in manifest.files}


@pytest.fixture
def rewrites(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each time that the rows are written after the survey."""
    seen: list[str] = []
    write = pipeline.write_dataset

    def counted(*given: Any) -> Any:
        seen.append("written")
        return write(*given)

    monkeypatch.setattr(pipeline, "write_dataset", counted)
    return seen


def without_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.steps.prepare.survey._likely_form", lambda *_: None)


def test_a_rollout_is_converted_once_where_the_sample_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrites: list[str]
) -> None:
    read = ConversationReader.read
    lines: list[bytes] = []
    monkeypatch.setattr(
        ConversationReader, "read", lambda self, line, *rest: lines.append(line) or read(self, line, *rest)
    )
    made(plain_rows(), tmp_path, to="trl")
    assert not rewrites
    assert TASKS <= len(lines) <= TASKS + 2 * SAMPLE


RARE = {
    "reasoning": lambda row: with_items(row, reasoning("hm")),
    "calls": lambda row: with_items(row, call(0, '{"at": 0.5}'), result(0), tools=[TOOL]),
    "damage": lambda row: with_items(row, call(0, '{"at": "2020-01-01"}'), result(0), tools=[TOOL]),
    "slip": lambda row: with_items(row, call(0, "no object"), result(0), tools=[TOOL]),
    "lost": lambda row: with_items(row, {"type": "web_search_call"}),
}


@pytest.mark.parametrize("options", [{}, {"format": "parquet"}, {"split": (0.7, 0.3), "shards": 2}], ids=str)
@pytest.mark.parametrize("kind", RARE)
def test_what_the_sample_missed_changes_no_byte(
    kind: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = plain_rows()
    rows[TASKS // 2 + 1] = RARE[kind](rows[TASKS // 2 + 1])
    found = made(rows, tmp_path / "drafted", to="trl", **options)
    without_draft(monkeypatch)
    assert found == made(rows, tmp_path / "surveyed", to="trl", **options)


def test_rows_are_written_again_where_the_sample_missed_a_key(tmp_path: Path, rewrites: list[str]) -> None:
    rows = plain_rows()
    rows[TASKS // 2 + 1] = RARE["reasoning"](rows[TASKS // 2 + 1])
    files = made(rows, tmp_path, to="trl")
    assert rewrites
    keys = {frozenset(json.loads(line)["completion"][0]) for line in files["train.jsonl"].splitlines()}
    assert keys == {frozenset({"role", "content", "reasoning_content"})}


def test_a_key_that_only_its_own_message_has_is_no_reason_to_write_again(
    tmp_path: Path, rewrites: list[str]
) -> None:
    rows = plain_rows()
    rows[TASKS // 2 + 1] = RARE["reasoning"](rows[TASKS // 2 + 1])
    made(rows, tmp_path, to="chat")
    assert not rewrites


def test_what_is_untidy_is_counted_once_though_the_survey_begins_anew(tmp_path: Path) -> None:
    """The first answers are single messages, so the survey begins with a layout that a later answer rules out."""
    asked = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "why?"}]
    rows = [make_rollout(task, 0, 1.0) for task in range(6)]
    for row in rows:
        row["responses_create_params"]["input"] = asked
    rows[5] = with_items(rows[5], call(0), result(0), tools=[TOOL])
    write_rows(tmp_path / "rollouts.jsonl", rows)
    manifest = prepare("sft", tmp_path, to="trl", out=tmp_path / "data")
    assert manifest.untidy == {"developer role": 6}
    assert len(read_lines(tmp_path / "data" / "train.jsonl")) == 6
