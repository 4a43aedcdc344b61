"""Runs for the tests of recipes, exporters and prepare: rollouts as real ones are, with tools, reasoning and untidy ends."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.builders import Row, make_rollout, write_rows

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather at a place",
    "parameters": {"type": "object", "properties": {"scale": {"type": "number", "enum": [0.3, 0.6]}}},
    "strict": True,
}
ARGUMENTS = ('{"city": "Oslo", "at": 0.3}', '{"near": {"lat": 59.9, "g": 6.674e-11}, "days": 3}')


def text(value: str) -> Row:
    """An assistant message item."""
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": value, "annotations": []}],
    }


def call(number: int, arguments: str = "{}", name: str = "get_weather") -> Row:
    """A function call item."""
    return {"type": "function_call", "call_id": f"call_{number}", "name": name, "arguments": arguments}


def result(number: int, output: Any = "9 C") -> Row:
    """A function call output item."""
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": output}


def reasoning(value: str) -> Row:
    """A reasoning item."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": value}]}


def with_output(row: Row, *items: Row, **params: Any) -> Row:
    """The rollout with other items, and other parameters."""
    row["response"]["output"] = list(items)
    row["responses_create_params"] |= params
    return row


def mixed_run(folder: Path, tasks: int = 24, samples: int = 6) -> Path:
    """A run in which some tasks use tools, some think, all have rewards of many sizes; with its tasks file."""
    rng = random.Random(7)
    rows: list[Row] = []
    for task in range(tasks):
        for sample in range(samples):
            row = make_rollout(
                task, sample, round(rng.random(), 3), text=f"Antwort {rng.randrange(10**6)} für {task} ✓"
            )
            answer = row["response"]["output"][0]
            if task % 3 == 0:
                items = [reasoning(f"hm {sample}"), call(0, ARGUMENTS[sample % 2]), result(0), answer]
                row = with_output(row, *items, tools=[TOOL], instructions="Be brief.")
            elif task % 3 == 1:
                row = with_output(row, reasoning("let me think"), answer)
            rows.append(row)
    tasks_rows = [
        {
            "_ng_task_index": task,
            "expected_answer": task * 2,
            "topic": "even" if task % 2 == 0 else "odd",
            "responses_create_params": rows[task * samples]["responses_create_params"],
            "agent_ref": {"name": "model_call"},
        }
        for task in range(tasks)
    ]
    write_rows(folder / "rollouts_tasks.jsonl", tasks_rows)
    write_rows(folder / "rollouts.jsonl", rows)
    return folder


def read_lines(path: Path) -> list[Row]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
