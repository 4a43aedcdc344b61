"""Report and viewer over runs that are not one plain file: shards, adaptive goals, programs with several sequences."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rollforge as rf
from rollforge.assembly.reports import write_report
from rollforge.index import open_index
from rollforge.testing import sick_run
from rollforge.view.book import Book, Group
from rollforge.view.viewer_server import draw_overview
from tests.builders import write_rows
from tests.steps.test_sequences import row


def command(folder: Path, *words: str) -> str:
    """Run rollforge as a user does."""
    ran = subprocess.run(
        [sys.executable, "-m", "rollforge", *words], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two shards, and the same run merged into one file."""
    folder = tmp_path_factory.mktemp("kinds")
    command(folder, "simulate", "--write-tasks", "tasks.jsonl", "-n", "24")
    flags = ["-i", "tasks.jsonl", "-m", "simulated", "--verifier", "exact", "--progress", "none"]
    for shard in range(2):
        command(folder, "collect", *flags, "-o", "sharded", "-k", "3", "--shard", f"{shard}/2")
    (folder / "merged").mkdir()
    command(folder, "merge", "sharded", "-o", "merged/rollouts.jsonl")
    for file in folder.glob("sharded/rollouts_*.json*"):
        shutil.copy(file, folder / "merged")
    command(folder, "collect", *flags, "-o", "goal", "-k", "6", "--goal", "grpo=4")
    return folder


def _without_rows(group: Group) -> tuple[object, ...]:
    return group.task, group.mean, group.contradictions, [sample[1:] for sample in group.samples]


def test_a_run_of_shards_reads_as_the_merged_run(folder: Path) -> None:
    pages = []
    for name in ("sharded", "merged"):
        out = folder / f"{name}.html"
        write_report([folder / name], out)
        pages.append(out.read_text().replace(str(folder / name), "RUN"))
    assert pages[0] == pages[1]
    sharded, merged = Book(str(folder / "sharded")), Book(str(folder / "merged"))
    listed = [one.page([], "", "task, rollout", 0, 100).rows for one in (sharded, merged)]
    assert [row[1:] for row in listed[0]] == [row[1:] for row in listed[1]]  # rows are numbered as they came
    assert len(listed[0]) == 72
    grouped = [one.groups("hardest", 0, 50)[1] for one in (sharded, merged)]
    assert [_without_rows(one) for one in grouped[0]] == [_without_rows(one) for one in grouped[1]]
    assert sharded.suspicious(0, 50)[0] == merged.suspicious(0, 50)[0]
    for task in (0, 23):
        opened = [one.open(int(one.tasks.rows_of_task(task)[0])) for one in (sharded, merged)]
        assert opened[0].turns == opened[1].turns and opened[0].task == opened[1].task
        assert opened[0].facts["reward"] == opened[1].facts["reward"]
    sharded.close()
    merged.close()


def test_a_shard_that_grows_is_noticed(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sharded", tmp_path / "run")
    book = Book(str(tmp_path / "run"))
    before = book.state()
    assert book.state() == before
    later = {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 0.0, "verifier": "other"}
    write_rows(tmp_path / "run" / "rollouts_verdicts.jsonl", [later])
    assert book.state() != before
    book.close()


def test_labels_of_a_run_of_shards_lie_beside_it(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sharded", tmp_path / "run")
    book = Book(str(tmp_path / "run"))
    queue = book.queue("random", seed=0, done=(), count=5)
    assert len(queue) == 5
    assert (
        len(book.queue("random", seed=0, done=[one[1:] for one in queue], count=100)) == len(book.index) - 5
    )
    book.close()


def test_an_adaptive_run_says_what_its_numbers_are_over(folder: Path) -> None:
    out = folder / "goal.html"
    write_report([folder / "goal"], out)
    text = out.read_text()
    assert "tasks were sampled adaptively" in text
    assert "finding-incomplete-groups" not in text, "groups of unequal size are by design"
    mean = rf.open_run(folder / "goal").metrics().fields["reward"].mean
    assert mean is not None and f"mean {mean:.3f}" in text
    assert "tasks were sampled adaptively" in draw_overview(str(folder / "goal"), None).decode()


def test_every_sequence_and_what_the_program_printed_can_be_read(tmp_path: Path) -> None:
    made = row(0, 0, 1.0)
    made["_rf"]["program"] = {"exit_code": 3, "stdout": "it said\u202e so\n", "stderr": ""}
    write_rows(tmp_path / "run" / "rollouts.jsonl", [made, row(0, 1, 0.0)])
    book = Book(str(tmp_path / "run"))
    turns = book.open(0).turns
    kinds = [turn.kind for turn in turns]
    assert kinds.count("sequence") == 2
    after = turns[kinds.index("sequence") + 1 :]
    assert "Title 0" in [turn.text for turn in after]
    assert [(turn.title, turn.text) for turn in turns if turn.kind == "program"] == [
        ("stdout", "it said⟨U+202E⟩ so\n"),
        ("exit code 3", ""),
    ]
    book.close()


@pytest.mark.parametrize("name", ["goal", "merged", "sharded", "lost"])
def test_every_mark_of_a_chart_selects_the_rollouts_that_it_counts(folder: Path, name: str) -> None:
    """Also in an adaptive run, whose charts are over the first stage."""
    if name == "lost":
        sick_run("rollouts-lost", seed=2).write(folder / name)
    drawn = json.loads(draw_overview(str(folder / name), None))
    figures = {one["name"]: one for section in drawn["sections"] for one in section["figures"]}
    counted = {  # chart → what the number in a tooltip counts
        "reward": (r": ([\d,]+) \(", "count(*)"),
        "length": (r"n = ([\d,]+)$", "count(reward)"),
        "difficulty": (r": ([\d,]+) tasks", "count(DISTINCT task)"),
        "strip": (r"([\d,]+) judged", "count(reward)"),
        "time-reward": (r"([\d,]+) started", "count(*)"),
        "tokens": (r": ([\d,]+) \(", "count(*)"),
    }
    checked = 0
    with open_index(folder / name) as index:
        for chart, (pattern, counts) in counted.items():
            for mark in figures[chart]["scene"]["marks"]:
                if not mark.get("where"):
                    continue
                number = re.search(pattern, mark["title"])
                assert number, mark["title"]
                table = index.select(f"SELECT {counts} FROM rollouts WHERE {index.checked(mark['where'])}")
                without = int(
                    (re.search(r", ([\d,]+) of them no rollout", _note(figures[chart], mark)) or [0, 0])[1]
                )
                assert table.column(0)[0].as_py() == int(number[1].replace(",", "")) - without, mark
                checked += 1
    assert checked > 20


def _note(figure: dict[str, Any], mark: dict[str, Any]) -> str:
    """The last cell of the row of the chart's table that a mark stands for."""
    label = mark["title"].partition(":")[0]
    return next((row[-1] for row in figure["rows"] if row[0] == label), "")
