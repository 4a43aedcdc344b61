"""A collection over rows, with an agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollforge.steps.collect import Collection, CollectOptions, CollectResult
from rollforge.store import RunFiles

Row = dict[str, Any]


def make_task(prompt: str = "do it", **fields: Any) -> Row:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": prompt, "type": "message"}]},
        **fields,
    }


async def collect(folder: Path, rows: list[Row], base_url: str | None, **more: Any) -> CollectResult:
    """Collect the rows; `base_url` is the model's, without /v1."""
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {
        "input": str(path),
        "out": str(folder / "run"),
        "model": "simulated",
        "base_urls": (f"{base_url}/v1",) if base_url else (),
        "api": "responses",
        "concurrency": "8",
        "attempts": 1,
        "retries": 0,
        **more,
    }
    return await Collection(CollectOptions(**settings)).run()


def rollouts(folder: Path) -> list[Row]:
    return read(RunFiles(folder / "run").rollouts)


def failures(folder: Path) -> list[Row]:
    return read(RunFiles(folder / "run").failures)


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
