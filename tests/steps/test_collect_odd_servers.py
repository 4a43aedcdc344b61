"""What a server answers to one rollout is that rollout's fate, not the run's."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import Exit, UsageError
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


@pytest.mark.parametrize("status", [403, 404])
async def test_a_refusal_amid_answers_is_one_rollouts_failure(tmp_path: Path, status: int) -> None:
    model = ScriptedModel(lambda body: status if "secret" in prompt_of(body) else [message("fine")])
    prompts = ["a", "b", "secret", "c"]
    result = await collect(tmp_path, model, prompts, concurrency="1", api="responses")
    assert (result.ending, result.finished, result.failed) == ("incomplete", 3, {"permanent": 1})
    (failure,) = failures_of(tmp_path)
    assert failure["status"] == status and failure["_ng_failure_terminal"]
    again = await collect(tmp_path, model, prompts, concurrency="1", api="responses")
    assert again.fresh == 0


@pytest.mark.parametrize(("status", "answered", "recorded"), [(401, 1, 0), (403, 0, 0), (403, 1, 10)])
async def test_a_key_that_is_refused_stops_the_run(
    tmp_path: Path, status: int, answered: int, recorded: int
) -> None:
    model = ScriptedModel(lambda body: [message("fine")] if len(model.asked) <= answered else status)
    with pytest.raises(UsageError, match="refuses the key"):
        await collect(tmp_path, model, [str(n) for n in range(50)], concurrency="1", api="responses")
    assert len(failures_of(tmp_path)) == recorded and len(model.asked) == answered + recorded + 1


class FailsFirst:
    """Answers each prompt with 500 the first time and with a message afterwards."""

    def __init__(self, prompts: tuple[str, ...]) -> None:
        self._owed = set(prompts)

    def __call__(self, body: Row) -> Turn:
        if (prompt := prompt_of(body)) in self._owed:
            self._owed.remove(prompt)
            return 500
        return [message("fine")]


@pytest.mark.parametrize(
    "more",
    [{}, {"samples": 4, "goal": "sft=5", "min_reward": 1.0, "audit": "0"}],
    ids=["the last one", "a goal that waits for it"],
)
async def test_one_request_at_a_time_leaves_its_place_to_a_retry_that_all_wait_for(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    model = ScriptedModel(FailsFirst(("a", "b")))
    settings = {"concurrency": "1", "attempts": 1, "api": "responses", "verifier": lambda task, response: 1.0}
    async with asyncio.timeout(60):
        result = await collect(tmp_path, model, ["a", "b"], **settings, **more)
    assert result.ending == "done" and not result.failed
