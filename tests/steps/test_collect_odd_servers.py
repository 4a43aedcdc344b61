"""What a server answers to one rollout is that rollout's fate, not the run's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import Exit
from rollforge.steps.collect import Collection, CollectOptions, CollectResult
from tests.agents.scripted_model import Row, ScriptedModel, Turn, message
from tests.agents.web import serving
from tests.steps.test_collect import read_rows


async def collect(folder: Path, model: ScriptedModel, prompts: list[str], **more: Any) -> CollectResult:
    tasks = folder / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    async with serving(model.app) as url:
        settings: dict[str, Any] = {"base_urls": (f"{url}/v1",), "model": "scripted", **more}
        return await Collection(CollectOptions(input=str(tasks), out=str(folder / "run"), **settings)).run()


def prompt_of(body: Row) -> str:
    return str(body["input"][0]["content"])


def failures_of(folder: Path) -> list[Row]:
    return read_rows(folder / "run" / "rollouts_failures.jsonl")


@pytest.mark.parametrize("bad", [500, {"output": None}], ids=["500", "no output"])
async def test_prompts_that_always_fail_do_not_stop_a_run_on_a_server_that_answers_others(
    tmp_path: Path, bad: Turn
) -> None:
    model = ScriptedModel(lambda body: bad if "bad" in prompt_of(body) else [message("fine")])
    prompts = [f"bad {n}" if 1 <= n < 8 else f"good {n}" for n in range(24)]
    settings = {"concurrency": "4", "retries": 2, "attempts": 1, "outage_patience_s": 1.0}
    result = await collect(tmp_path, model, prompts, **settings)
    assert (result.ending, result.finished, result.failed) == ("incomplete", 17, {"transient": 7})
    assert result.exit_code == Exit.INCOMPLETE and result.owed == 0
    assert Counter(row["requests"] for row in failures_of(tmp_path)) == {3: 7}


async def test_a_first_prompt_that_fails_holds_nobody_up_while_the_api_is_found_out(tmp_path: Path) -> None:
    model = ScriptedModel(lambda body: 500 if prompt_of(body) == "bad" else [message("fine")])
    result = await collect(tmp_path, model, ["bad", "a", "b"], concurrency="1", retries=1, attempts=1)
    assert (result.finished, result.failed) == (2, {"transient": 1})
