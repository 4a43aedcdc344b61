"""Environments behind `--env`: names, tasks of their own, episodes, and what is no reward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollforge.conversations.reader import ConversationReader
from rollforge.conversations.turns import turns_of
from rollforge.environments.base import EnvironmentSpec, open_environment
from rollforge.errors import UsageError
from rollforge.experience import experiences_from_row
from rollforge.records import OWN_KEY, PARAMS_KEY, to_json
from rollforge.steps.collect import Collection, CollectOptions, CollectResult
from tests.agents.running import failures, rollouts
from tests.agents.scripted_model import ScriptedModel, call, message
from tests.agents.web import serving
from tests.environments.fake_openenv import FakeOpenEnv


async def collect(folder: Path, env: str, model: str | None = None, **more: Any) -> CollectResult:
    settings: dict[str, Any] = {
        "input": "",
        "out": str(folder / "run"),
        "env": env,
        "model": "simulated",
        "base_urls": (f"{model}/v1",) if model else (),
        "api": "responses" if model else "auto",
        "attempts": 1,
        "retries": 0,
        **more,
    }
    return await Collection(CollectOptions(**settings)).run()


def test_a_name_has_a_kind_and_options() -> None:
    spec = EnvironmentSpec.parse("verifiers:owner/wordle?max_turns=3&tone=kind&sizes=[1,2]")
    assert (spec.kind, spec.name) == ("verifiers", "owner/wordle")
    assert spec.options == {"max_turns": 3, "tone": "kind", "sizes": [1, 2]}
    assert EnvironmentSpec.parse("openenv:http://127.0.0.1:8000/x").name == "http://127.0.0.1:8000/x"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("gcd", "names no environment"),
        (":x", "names no environment"),
        ("nope:x", "no environment 'nope'"),
        ("reasoning-gym:gdc", "did you mean 'gcd'"),
        ("reasoning-gym:gcd?size=-1", "whole number"),
        ("reasoning-gym:gcd?sise=3", "unexpected keyword argument 'sise'"),
        ("openenv:localhost", "is no URL"),
        ("openenv:http://user:pw@host/", "a user or a password"),
        ("openenv:http://127.0.0.1:1?api_key=x", "looks like a secret"),
        ("openenv:http://127.0.0.1:1?sede=3", "no option 'sede'"),
        ("gym:http://127.0.0.1:1?via=door", "is no way"),
    ],
)
def test_a_mistake_in_the_name_is_said(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        environment = open_environment(text)
        list(environment.rows(1) or ())


async def test_generated_tasks_are_collected_and_judged_and_the_run_resumes(tmp_path: Path) -> None:
    first = await collect(tmp_path, "reasoning-gym:gcd?size=4", samples=2)
    assert (first.finished, first.unjudged, first.exit_code) == (8, 0, 0)
    assert {row["_rf"]["verifier"] for row in rollouts(tmp_path)} == {"reasoning_gym"}
    again = await collect(tmp_path, "reasoning-gym:gcd?size=4", samples=3)
    assert (again.fresh, again.finished) == (4, 12)
    assert not list((tmp_path / "run").glob(".tasks.*")), "the spooled rows are deleted"


async def test_an_episode_is_played_to_its_end_and_its_rewards_add_up(tmp_path: Path) -> None:
    model = ScriptedModel([call("step", {"number": 0})], [call("step", {"number": 1})])
    async with serving(model.app) as url, serving(FakeOpenEnv().app) as server:
        done = await collect(tmp_path, f"openenv:{server}?episodes=2", url)
    assert done.exit_code == 0
    rows = sorted(rollouts(tmp_path), key=lambda row: row["_ng_task_index"])
    assert [row["reward"] for row in rows] == [1.0, 1.0]
    assert [row["steps"] for row in rows] == [1, 2]
    played = rows[0]["_rf"]["played"]
    assert played["input"] == [{"role": "user", "content": "Guess a number.", "type": "message"}]
    assert [tool["name"] for tool in played["tools"]] == ["step"]
    assert ConversationReader().read(to_json(rows[0])).prompt[0].content == "Guess a number."
    assert experiences_from_row(rows[0])[0].messages == played["input"]
    outputs = [
        item["output"] for item in rows[1]["response"]["output"] if item["type"] == "function_call_output"
    ]
    assert outputs == ["wrong", "right"]
    assert "metadata" not in model.asked[0]["tools"][0]["parameters"]["properties"]


def test_older_rows_whose_played_prompt_is_a_bare_list_of_items_are_read() -> None:
    played = [{"role": "user", "content": "Guess.", "type": "message"}]
    said = {"type": "message", "role": "assistant", "content": "5"}
    row: Any = {PARAMS_KEY: {"input": []}, "response": {"output": [said]}, OWN_KEY: {"played": played}}
    assert ConversationReader().read(to_json(row)).prompt[0].content == "Guess."
    assert experiences_from_row(row)[0].messages == played
    assert [turn.text for turn in turns_of(row)] == ["Guess.", "5"]


async def test_a_refused_action_is_told_to_the_model(tmp_path: Path) -> None:
    model = ScriptedModel([call("step", {"nomber": 0})], [call("step", {"number": 0})])
    async with serving(model.app) as url, serving(FakeOpenEnv().app) as server:
        await collect(tmp_path, f"openenv:{server}?episodes=1", url)
    (row,) = rollouts(tmp_path)
    assert row["reward"] == 1.0
    assert "number: missing" in row["response"]["output"][1]["output"]


async def test_an_environment_without_rewards_leaves_rollouts_unjudged(tmp_path: Path) -> None:
    model = ScriptedModel([call("step", {"number": 0})])
    async with serving(model.app) as url, serving(FakeOpenEnv(is_silent=True).app) as server:
        done = await collect(tmp_path, f"openenv:{server}?episodes=1", url)
    assert rollouts(tmp_path)[0]["reward"] is None
    assert done.exit_code == 3


async def test_a_model_that_takes_no_action_is_unjudged_and_not_zero(tmp_path: Path) -> None:
    model = ScriptedModel([message("I would rather not.")])
    async with serving(model.app) as url, serving(FakeOpenEnv().app) as server:
        await collect(tmp_path, f"openenv:{server}?episodes=1", url)
    assert rollouts(tmp_path)[0]["reward"] is None


@pytest.mark.parametrize(("turns", "reward", "status"), [(2, 0.0, "incomplete"), (3, 1.0, "completed")])
async def test_an_episode_ends_after_its_most_turns(
    tmp_path: Path, turns: int, reward: float, status: str
) -> None:
    model = ScriptedModel(*([call("step", {"number": number})] for number in (5, 4, 0)))
    async with serving(model.app) as url, serving(FakeOpenEnv().app) as server:
        await collect(tmp_path, f"openenv:{server}?episodes=1", url, max_turns=turns)
    (row,) = rollouts(tmp_path)
    assert (len(model.asked), row["reward"], row["response"]["status"]) == (turns, reward, status)


async def test_a_server_may_give_rewards_as_booleans(tmp_path: Path) -> None:
    model = ScriptedModel([call("step", {"number": 5})], [call("step", {"number": 0})])
    async with serving(model.app) as url, serving(FakeOpenEnv(says_bool=True).app) as server:
        await collect(tmp_path, f"openenv:{server}?episodes=1", url)
    assert rollouts(tmp_path)[0]["reward"] == 1.0


async def test_a_server_that_does_not_answer_is_named_and_not_the_rollouts_deadline(tmp_path: Path) -> None:
    model = ScriptedModel([call("step", {"number": 0})])
    async with serving(model.app) as url, serving(FakeOpenEnv(hangs=True).app) as server:
        await collect(tmp_path, f"openenv:{server}?episodes=1", url, tool_timeout_s=0.3)
    (failure,) = failures(tmp_path)
    assert failure["class"] == "timeout" and "did not answer step within 0.3 s" in failure["message"]
    assert failure["response"]["output"][0]["type"] == "function_call"


async def test_a_full_server_is_waited_for(tmp_path: Path) -> None:
    model, server = ScriptedModel([call("step", {"number": 0})]), FakeOpenEnv(sessions=1)
    async with serving(model.app) as url, serving(server.app) as address:
        done = await collect(
            tmp_path, f"openenv:{address}?episodes=1&seed=0", url, samples=4, concurrency="4"
        )
    assert done.finished == 4
    assert server.most == 1
    assert not failures(tmp_path)


async def test_a_model_failure_inside_an_episode_is_a_failure_with_what_was_played(tmp_path: Path) -> None:
    model = ScriptedModel([call("step", {"number": 7})], 400)
    async with serving(model.app) as url, serving(FakeOpenEnv().app) as server:
        await collect(tmp_path, f"openenv:{server}?episodes=1", url, max_failures="100%")
    assert not rollouts(tmp_path)
    (failure,) = failures(tmp_path)
    assert failure["response"]["output"][0]["name"] == "step"


async def test_a_server_that_is_not_there_is_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not answer"):
        await collect(tmp_path, "openenv:http://127.0.0.1:1?episodes=1")


async def test_servers_of_nemo_gym_want_a_task_file(tmp_path: Path) -> None:
    from tests.agents.fake_gym import FakeResources

    async with serving(FakeResources().app) as server:
        with pytest.raises(UsageError, match="brings no tasks of its own"):
            await collect(tmp_path, f"gym:{server}?via=resources")


def test_an_environment_and_an_agent_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="contradict"):
        CollectOptions(
            input="", out="x", model="simulated", env="reasoning-gym:gcd", agent="tool_loop"
        ).check()
    with pytest.raises(UsageError, match="no task file"):
        CollectOptions(input="", out="x", model="simulated").check()
