"""Environments: numbers and orders that decide hold at their border, and one step beside it."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rollforge.environments import openenv, textarena, verifiers_v0
from rollforge.environments.base import ROW_KEY, EnvironmentSpec
from rollforge.environments.openenv import Full, OpenEnv, Refused, _error, _ServerError
from rollforge.environments.verifiers import _require
from rollforge.environments.verifiers_harness import HarnessTools
from rollforge.environments.verifiers_release import source_digest
from rollforge.environments.verifiers_v1 import Played, VerifiersV1Agent, _sequences
from rollforge.errors import Failure, UsageError
from tests.proxy.test_borders import answered


def test_an_action_that_a_server_refuses_goes_back_to_the_model() -> None:
    body = _ServerError(code="VALIDATION_ERROR", message="no such move")
    assert isinstance(_error(body, "step"), Refused)
    assert isinstance(_error(body, "reset"), Failure)


def test_environments_bring_a_hundred_tasks_by_default() -> None:
    episodes = OpenEnv(EnvironmentSpec.parse("openenv:http://127.0.0.1:9"))
    assert len(list(episodes.rows(None))) == 100 and len(list(episodes.rows(7))) == 7
    pytest.importorskip("reasoning_gym")
    from rollforge.environments.reasoning_gym import ReasoningGymTasks

    tasks = ReasoningGymTasks(EnvironmentSpec.parse("reasoning-gym:gcd"))
    assert len(list(tasks.rows(None))) == 100


def test_a_source_digest_is_that_of_the_files_in_order(tmp_path: Path) -> None:
    from types import ModuleType

    for name in ("b.py", "__init__.py", "a.py"):
        (tmp_path / name).write_text(name)
    module = ModuleType("m")
    module.__file__ = str(tmp_path / "__init__.py")
    digest = hashlib.sha256()
    for name in ("__init__.py", "a.py", "b.py"):
        digest.update(name.encode() + b"\0" + name.encode() + b"\0")
    assert source_digest(module) == digest.hexdigest()[:16]


def test_tasks_come_from_the_split_that_was_named_and_from_train_by_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = SimpleNamespace(
        rubric=SimpleNamespace(has_group_rewards=False),
        get_dataset=lambda limit: [{"example_id": 0, "question": "to learn"}],
        get_eval_dataset=lambda limit: [{"example_id": 0, "question": "to test"}],
    )
    monkeypatch.setattr(verifiers_v0, "load", lambda name, arguments: installed)
    for text, question in (("", "to learn"), ("?split=train", "to learn"), ("?split=eval", "to test")):
        [row] = verifiers_v0.VerifiersV0(EnvironmentSpec.parse(f"verifiers:words{text}")).rows(None)
        assert cast("Any", row)[ROW_KEY]["question"] == question
    with pytest.raises(UsageError, match="split=test"):
        verifiers_v0.VerifiersV0(EnvironmentSpec.parse("verifiers:words?split=test"))


async def test_a_full_server_is_asked_again_after_at_most_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    async def play(*_: object) -> str:
        if len(waited) < 7:
            raise Full
        return "played"

    monkeypatch.setattr(openenv, "asyncio", SimpleNamespace(sleep=sleep))
    agent = SimpleNamespace(_connected=contextlib.nullcontext, _play=play)
    assert await openenv.OpenEnvAgent.run(cast("Any", agent), cast("Any", None), 0) == "played"
    assert waited == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_an_episode_is_that_of_its_own_role_and_fails_with_it() -> None:
    def played(name: str, reward: float, *, is_trained: bool, error: str = "") -> Played:
        trace = SimpleNamespace(
            agent=SimpleNamespace(name=name, trainable=is_trained),
            ok=not error,
            errors=[SimpleNamespace(type="Crash", message=error)] if error else [],
            timing=SimpleNamespace(finalize=SimpleNamespace(start=0.0)),
            rewards={"right": SimpleNamespace(value=reward)},
            metrics={},
        )
        return Played(trace, cast("Any", SimpleNamespace(failure=None, calls=["a call"])))

    agent: Any = object.__new__(VerifiersV1Agent)
    agent._trajectory = lambda main, parts, verdict, why_not: (main.role, verdict.reward)
    episode = SimpleNamespace(errors=[])
    user, solver = played("user", 0.25, is_trained=False), played("solver", 1.0, is_trained=True)
    for player, expected in (("", ("solver", 1.0)), ("user", ("user", 0.25))):
        agent._player = player
        assert agent._outcome(episode, [user, solver]) == expected
    agent._player = ""
    with pytest.raises(Failure, match="the solver broke"):
        agent._outcome(episode, [user, played("solver", 1.0, is_trained=True, error="the solver broke")])


def test_an_episode_without_a_call_of_its_own_role_is_a_failure() -> None:
    def played(name: str, calls: list[str]) -> Played:
        trace = SimpleNamespace(
            agent=SimpleNamespace(name=name, trainable=True),
            ok=True,
            errors=[],
            timing=SimpleNamespace(finalize=SimpleNamespace(start=1.0)),
        )
        return Played(trace, cast("Any", SimpleNamespace(failure=None, calls=calls)))

    agent: Any = object.__new__(VerifiersV1Agent)
    episode = SimpleNamespace(errors=[])
    for player, parts in (
        ("", []),
        ("solver", [played("user", ["a call"])]),
        ("solver", [played("solver", []), played("user", ["a call"])]),
    ):
        agent._player = player
        with pytest.raises(Failure, match="the environment made no model call"):
            agent._outcome(episode, parts)


@pytest.mark.parametrize("kind", ["absent", "plain", "async"])
async def test_an_environments_own_teardown_is_awaited_if_it_is_async(kind: str) -> None:
    ended: list[str] = []

    async def teardown() -> None:
        ended.append("async")

    own = {
        "absent": {},
        "plain": {"teardown": lambda: ended.append("plain")},
        "async": {"teardown": teardown},
    }
    agent: Any = object.__new__(verifiers_v0.VerifiersAgent)
    agent._environment = SimpleNamespace(**own[kind])
    await agent.close()
    assert ended == (["async"] if kind == "async" else [])


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        ({"action": "allow"}, "error: there is no tool 'look'"),
        ({"action": "deny", "message": {"role": "tool", "content": "not now"}}, "not now"),
        ({"action": "stop", "reason": "enough"}, None),
    ],
)
async def test_the_task_decides_whether_a_tool_runs(decision: dict[str, Any], said: str | None) -> None:
    asked: list[Any] = []

    async def gate(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response(decision)

    app = web.Application()
    app.router.add_post("/gate", gate)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        tools = HarnessTools(http, {}, 5.0, str(server.make_url("/gate")))
        call: Any = {"id": "c1", "function": {"name": "look", "arguments": '{"where": "up"}'}}
        if said is None:
            with pytest.raises(RuntimeError, match="enough"):
                await tools.answer(call)
        else:
            assert (await tools.answer(call)).get("content") == said
    assert asked == [{"tool_call_id": "c1", "name": "look", "arguments": {"where": "up"}}]


def test_a_game_has_a_hundred_episodes_by_default_each_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        envs=SimpleNamespace(registration=SimpleNamespace(ENV_REGISTRY={"Wordle-v0": None}))
    )
    monkeypatch.setattr(textarena, "_library", lambda: library)
    game = textarena.TextArena(EnvironmentSpec.parse("textarena:Wordle-v0?seed=7"))
    seeds = [cast("Any", row)[ROW_KEY]["seed"] for row in game.rows(None)]
    assert seeds == list(range(7, 107)) and len(list(game.rows(3))) == 3
    with pytest.raises(UsageError, match="Wordle"):
        textarena.TextArena(EnvironmentSpec.parse("textarena:Wordle"))


@pytest.mark.parametrize(("turns", "reason"), [(2, "max_turns"), (3, None)])
async def test_a_game_ends_at_the_most_turns_of_its_own_player(
    monkeypatch: pytest.MonkeyPatch, turns: int, reason: str | None
) -> None:
    asked: list[str] = []

    class FakeEpisode:
        def __init__(self, *_: object) -> None:
            self.turns = 0

        def hear(self, text: str) -> None:
            asked.append(text)

        async def ask(self) -> tuple[str, None]:
            self.turns += 1
            return "move", None

        def finish(self, verdict: object, name: str, *, why_unjudged: str, incomplete: str | None) -> Any:
            return verdict, name, incomplete

    steps = iter([False, False, True])
    game = SimpleNamespace(
        get_observation=lambda: (0, "look"),
        step=lambda move: (next(steps), {}),
        close=lambda: ({0: 1.0}, {0: {"score": 2, "name": "x"}}),
    )
    monkeypatch.setattr(textarena, "Episode", FakeEpisode)
    agent: Any = object.__new__(textarena.TextArenaAgent)
    agent._model, agent._max_turns = object(), turns

    class FakeTask(dict[str, Any]):
        params: ClassVar[dict[str, Any]] = {}

    verdict, name, incomplete = await agent._play(game, {}, FakeTask({ROW_KEY: {"game": "Wordle-v0"}}), 0)
    assert (name, incomplete) == ("textarena:Wordle-v0", reason)
    assert (verdict.reward, verdict.numbers, asked) == (1.0, {"score": 2}, ["look", "look"])


def test_only_the_release_that_was_tried_runs_an_environment() -> None:
    _require("0.1.5", "0.1.5", "words", "v0")
    with pytest.raises(UsageError, match=r"verifiers 0\.1\.5; 0\.1\.6 is installed"):
        _require("0.1.6", "0.1.5", "words", "v0")


async def _later(value: object) -> object:
    if value == "raises":
        raise RuntimeError("broken")
    return value


@pytest.mark.parametrize(
    ("returned", "arguments", "noted"),
    [
        (0.5, {}, ""),
        (True, {}, ""),
        ([1, 0.0], {"completions": ["a", "b"]}, ""),
        (None, {}, "TypeError"),
        ("good", {}, "ValueError"),
        (float("nan"), {}, "not finite"),
        ([1.0], {"completions": ["a", "b"]}, "1 rewards for a group of 2"),
        ([1.0, None], {"states": ["a", "b"]}, "TypeError"),
        ("raises", {}, "RuntimeError: broken"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_a_reward_function_of_version_0_that_gives_no_number_is_noted(
    returned: object, arguments: dict[str, Any], noted: str, is_async: bool
) -> None:
    def reward(**kwargs: Any) -> Any:
        if is_async:
            return _later(
                returned
            )  # a plain function that returns an awaitable, as a partial of an async one does
        if returned == "raises":
            raise RuntimeError("broken")
        return returned

    raised: list[str] = []
    mark = verifiers_v0._RAISED.set(raised)
    try:
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            await verifiers_v0._watched(reward)(**arguments)
    finally:
        verifiers_v0._RAISED.reset(mark)
    assert (len(raised) == 1 and noted in raised[0]) if noted else raised == []


def _played(role: str, *numbers: int) -> Played:
    """Call 0 alone has tools; each call was answered by an endpoint of its own."""
    calls = [answered(number, f"{role} {number}", tools=number == 0) for number in numbers]
    for one in calls:
        one.endpoint, one.requests = f"{role} {one.number}", 1
    session = SimpleNamespace(calls=calls, origin=SimpleNamespace(session=f"session of {role}"))
    trace = SimpleNamespace(agent=SimpleNamespace(name=role), stop_condition=None)
    return Played(trace, cast("Any", session))


def test_the_row_names_whose_each_sequence_is_and_the_main_one_comes_first() -> None:
    user, solver = _played("user", 0, 1), _played("solver", 0, 1)
    sequences, records = _sequences(solver, [user, solver])
    assert [record["agent"] for record in records] == ["solver", "solver", "user", "user"]
    assert [one.role for one in sequences] == ["main", "auxiliary", "main", "auxiliary"]
    assert [record["role"] for record in records] == ["main", "auxiliary", "sub", "auxiliary"]


def test_an_episode_names_the_endpoint_of_the_last_call_of_its_main_sequence() -> None:
    agent: Any = object.__new__(VerifiersV1Agent)
    agent._spec = SimpleNamespace(name="words")
    user, solver = _played("user", 0, 1), _played("solver", 0, 1, 2)
    made = agent._trajectory(solver, [user, solver], None, "not scored")
    assert (made.endpoint, made.requests) == ("solver 0", 5)
    assert made.own["environment"]["player"] == "solver"


def test_an_environment_gets_its_arguments_without_the_split() -> None:
    spec = EnvironmentSpec.parse("verifiers:words?split=eval&size=3")
    assert verifiers_v0._arguments(spec) == {key: spec.options[key] for key in ("size",)}
