"""Small hand-checked files per exporter and recipe. `ROLLFORGE_GOLDEN=1` writes them anew; review the difference like code."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rollforge.exporters import EXPORTERS
from rollforge.exporters.base import load_exporter
from rollforge.steps.prepare import prepare
from tests.builders import make_rollout, write_rows
from tests.prepare_runs import TOOL, call, reasoning, result, text, with_output

GOLDEN = Path(__file__).parents[1] / "golden" / "exporters"
EVERY = [(recipe, name) for name in EXPORTERS.names() for recipe in load_exporter(name).recipes]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks: a plain question, and one with a system prompt, a tool, reasoning and a float that loaders like to change."""
    folder = tmp_path_factory.mktemp("golden")
    weather = {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Weather in Zürich?"},
        ],
        "tools": [TOOL],
    }
    looked = [reasoning("I need the tool."), call(1, '{"scale": 0.3}'), result(1, "9 °C")]
    rows = [
        make_rollout(0, 0, 1.0, text="4", prompt="2+2?"),
        make_rollout(0, 1, 0.25, text="5", prompt="2+2?"),
        with_output(make_rollout(1, 0, 1.0), *looked, text("9 degrees."), **weather),
        with_output(make_rollout(1, 1, 0.0), *looked, text("No idea."), **weather),
    ]
    write_rows(folder / "rollouts.jsonl", rows)
    tasks = [
        {"_ng_task_index": 0, "expected_answer": "4", "agent_ref": {"name": "model_call"}},
        {"_ng_task_index": 1, "expected_answer": {"celsius": 9}, "agent_ref": {"name": "model_call"}},
    ]
    for task, row in zip(tasks, (rows[0], rows[2]), strict=True):
        task["responses_create_params"] = row["responses_create_params"]
    write_rows(folder / "rollouts_tasks.jsonl", tasks)
    return folder


@pytest.mark.parametrize(("recipe", "name"), EVERY)
def test_rows_are_those_that_were_checked_by_hand(recipe: str, name: str, run: Path, tmp_path: Path) -> None:
    made = prepare(recipe, run, to=name, out=tmp_path / "data", min_reward=0.9)
    path = tmp_path / "data" / made.files[0].path
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        lines = [json.dumps(row, ensure_ascii=False) for row in pq.read_table(path).to_pylist()]
        found = "\n".join(lines) + "\n"
    else:
        found = path.read_text(encoding="utf-8")
    golden = GOLDEN / f"{name}-{recipe}.jsonl"
    if os.environ.get("ROLLFORGE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(found, encoding="utf-8")
    assert found == golden.read_text(encoding="utf-8")
