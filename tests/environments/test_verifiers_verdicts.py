"""What environments of verifiers gave, as verdicts, failures and answers; the library itself is not needed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from rollforge.agents.base import AgentOptions
from rollforge.endpoint import Client, ClientOptions, Model, ModelOptions
from rollforge.environments.base import EnvironmentSpec
from rollforge.environments.verifiers_v0 import (
    GroupRewards,
    Recorder,
    VerifiersAgent,
    _numbers,
    _takes,
    _their_response,
)
from rollforge.environments.verifiers_v1 import (
    Played,
    VerifiersV1,
    VerifiersV1Agent,
    _merged,
    _pass_on,
    _prompt_items,
    _split,
    _verdict,
)
from rollforge.environments.verifiers_v1 import _numbers as numbers_of_trace
from rollforge.errors import Failure, UsageError
from rollforge.records import Verdict


def error(message: str) -> SimpleNamespace:
    return SimpleNamespace(type="Crash", message=message)


def played(
    name: str = "solver",
    rewards: dict[str, float | None] | None = None,
    *,
    ok: bool = True,
    judged_at: float = 0.0,
    metrics: dict[str, Any] | None = None,
) -> Played:
    trace = SimpleNamespace(
        agent=SimpleNamespace(name=name, trainable=True),
        ok=ok,
        errors=[] if ok else [error("broke")],
        timing=SimpleNamespace(finalize=SimpleNamespace(start=judged_at)),
        rewards={
            one: None if value is None else SimpleNamespace(value=value)
            for one, value in ({"right": 1.0} if rewards is None else rewards).items()
        },
        metrics=metrics or {},
        stop_condition="max_turns",
    )
    session: Any = SimpleNamespace(failure=None, calls=["a call"])
    return Played(trace, session)


def test_options_that_begin_with_a_field_of_the_config_are_not_the_tasksets() -> None:
    text = (
        "verifiers:words?player=a&size=3&agent.max_turns=5&taskset.agent.depth=2&other.deep=4&taskset.top=1"
    )
    taskset, others = _split(EnvironmentSpec.parse(text), {"agent", "size"})
    assert taskset == {"size": 3, "agent": {"depth": 2}, "other": {"deep": 4}, "top": 1}
    assert others == {"agent": {"max_turns": 5}}


def test_settings_are_merged_key_by_key_and_other_values_replaced() -> None:
    base = {"agent": {"max_turns": 4, "harness": {"id": "ours"}}, "id": "", "list": {"a": 1}}
    over = {"agent": {"max_turns": 9}, "id": {"b": 2}, "list": 3, "new": {"c": 4}}
    merged = {
        "agent": {"max_turns": 9, "harness": {"id": "ours"}},
        "id": {"b": 2},
        "list": 3,
        "new": {"c": 4},
    }
    assert _merged(base, over) == merged
    assert base["agent"] == {"max_turns": 4, "harness": {"id": "ours"}}


@pytest.mark.parametrize(
    ("errors", "parts", "own", "said"),
    [
        (["Crash: broke"], [played()], 1, "Crash: broke"),
        ([], [played(), played("user", ok=False)], 1, "user: Crash: broke"),
        ([], [played(rewards={"a": 1.0, "b": None, "c": None})], 1, "no reward from b, c (the episode ended: max_turns)"),
        ([], [played(rewards={})], 1, "no reward from any function (the episode ended: max_turns)"),
        ([], [played(rewards={"right": float("inf")})], 1, "the rewards add up to inf"),
        ([], [played(rewards={"right": float("nan")})], 1, "the rewards add up to nan"),
    ],
)  # fmt: skip
def test_an_episode_without_a_reward_is_unjudged_and_says_why(
    errors: list[str], parts: list[Played], own: int, said: str
) -> None:
    episode = SimpleNamespace(errors=[error("broke")] if errors else [])
    assert _verdict(episode, parts, parts[:own]) == (None, said)


def test_the_reward_is_the_sum_of_a_trace_and_the_mean_over_the_roles_traces() -> None:
    parts = [
        played(
            rewards={"right": 1.0, "style": 0.5},
            metrics={"turns": 3, "reward": 9.0, "is_long": True, "odd": float("nan"), "text": "x"},
        ),
        played(rewards={"right": 0.0, "style": 0.5}),
        played("user", rewards={"right": 7.0}),
    ]
    verdict, why = _verdict(SimpleNamespace(errors=[]), parts, parts[:2])
    numbers = {"turns": 3.0, "is_long": 1.0, "reward/right": 1.0, "reward/style": 0.5}
    assert (verdict, why) == (Verdict(reward=1.0, numbers=numbers), "")
    assert numbers_of_trace(parts[0].trace) == numbers


def test_an_episode_that_broke_while_it_was_judged_is_unjudged_and_no_failure() -> None:
    agent: Any = object.__new__(VerifiersV1Agent)
    agent._player = "solver"
    agent._trajectory = lambda main, parts, verdict, why_not: (verdict, why_not)
    judging = SimpleNamespace(errors=[error("Task.finalize() raised")])
    playing = SimpleNamespace(errors=[error("Task.finalize() raised"), error("Task.step() raised")])
    assert agent._outcome(judging, [played()]) == (None, "Crash: Task.finalize() raised")
    with pytest.raises(Failure, match=r"Task\.step"):
        agent._outcome(playing, [played()])
    late = SimpleNamespace(errors=[])
    assert agent._outcome(late, [played(ok=False, judged_at=2.0)]) == (None, "solver: Crash: broke")
    with pytest.raises(Failure, match="Crash: broke"):
        agent._outcome(late, [played(ok=False)])


def test_the_row_shows_the_system_prompt_and_a_prompt_of_text_or_messages() -> None:
    class Message:
        def model_dump(self, **_: object) -> dict[str, str]:
            return {"role": "user", "content": "one"}

    def shown(system: str | None, prompt: object) -> list[tuple[Any, Any]]:
        items = _prompt_items(SimpleNamespace(system_prompt=system, prompt=prompt))
        return [(item.get("role"), item.get("content")) for item in items]

    assert shown(None, "hello") == [("user", "hello")]
    assert shown("be brief", [Message()]) == [("system", "be brief"), ("user", "one")]
    assert shown("be brief", None) == [("system", "be brief")]


def test_a_taskset_without_end_needs_a_number_of_tasks() -> None:
    tasks: Any = object.__new__(VerifiersV1)
    tasks._spec = EnvironmentSpec.parse("verifiers:words")
    data = SimpleNamespace(model_dump=lambda **_: {"answer": 4}, system_prompt=None, prompt="2 + 2")
    three = [SimpleNamespace(key=str(number), data=data) for number in range(3)]

    class Taskset(list[Any]):
        bounded = False

    tasks._taskset = Taskset(three)
    with pytest.raises(UsageError, match="tasks without end"):
        list(tasks.rows(None))
    assert len(list(tasks.rows(2))) == 2
    tasks._taskset.bounded = True
    assert len(list(tasks.rows(None))) == 3 and len(list(tasks.rows(5))) == 3


async def test_a_failure_is_passed_on_once_and_not_from_what_was_cancelled() -> None:
    loop = asyncio.get_running_loop()
    one, cancelled, to = loop.create_future(), loop.create_future(), loop.create_future()
    cancelled.cancel()
    _pass_on(cancelled, to)
    assert not to.done()
    first, second = Failure("a", "agent", "first"), Failure("a", "agent", "second")
    one.set_result(first)
    _pass_on(one, to)
    other = loop.create_future()
    other.set_result(second)
    _pass_on(other, to)
    assert to.result() is first


def test_an_argument_of_an_environment_is_one_by_name_or_any_if_it_takes_any() -> None:
    def by_name(size: int) -> None: ...
    def by_any_name(**arguments: int) -> None: ...
    def by_place(*sizes: int) -> None: ...

    assert _takes(by_name, "size") and not _takes(by_name, "depth")
    assert _takes(by_any_name, "depth") and not _takes(by_place, "depth")


@pytest.mark.parametrize(
    ("judges", "raised", "state", "verdict"),
    [
        (True, [], {"reward": 1, "metrics": {"a": 2, "reward": 3, "c": "x"}}, Verdict(reward=1.0, numbers={"a": 2})),
        (True, [], {"reward": 0.5, "metrics": None}, Verdict(reward=0.5)),
        (True, ["a raised"], {"reward": 1.0}, None),
        (False, [], {"reward": 1.0}, None),
        (True, [], {}, None),
        (True, [], {"reward": "1"}, None),
    ],
)  # fmt: skip
def test_a_reward_of_version_0_counts_if_the_environment_judges_and_nothing_raised(
    judges: bool, raised: list[str], state: dict[str, Any], verdict: Verdict | None
) -> None:
    agent: Any = object.__new__(VerifiersAgent)
    agent._judges = judges
    assert agent._verdict(state, raised) == verdict


def test_numbers_of_a_group_verdict_are_all_but_the_reward() -> None:
    assert _numbers({"a": 1, "b": False, "c": "x", "reward": 2.0, "d": None}) == {"a": 1, "b": False}


@pytest.mark.parametrize("raises", [False, True])
async def test_a_group_is_judged_unless_a_reward_function_raised(raises: bool) -> None:
    from rollforge.environments import verifiers_v0

    class Rubric:
        async def score_group(self, states: list[dict[str, Any]]) -> None:
            for number, state in enumerate(states):
                state |= {"reward": number, "metrics": {"length": 3, "reward": 9}}
            if raises:
                raised = verifiers_v0._RAISED.get()
                assert raised is not None
                raised.append("right raised ValueError: x")

    verifier: Any = object.__new__(GroupRewards)
    verifier._environment = SimpleNamespace(rubric=Rubric())
    verifier._state = lambda task, response: {"response": response}
    if raises:
        with pytest.raises(ValueError, match="right raised"):
            await verifier.verify_group({}, ["a", "b"])
    else:
        judged = await verifier.verify_group({}, ["a", "b"])
        assert judged == [{"reward": 0.0, "length": 3}, {"reward": 1.0, "length": 3}]


def test_an_answer_is_shown_to_version_0_in_its_own_form() -> None:
    empty = _their_response({})
    assert empty == {
        "id": "", "created": 0, "model": "", "usage": None,
        "message": {
            "content": None, "reasoning_content": None, "tool_calls": None, "finish_reason": "stop", "is_truncated": False,
        },
    }  # fmt: skip
    full = _their_response(
        {
            "id": "r1", "created_at": 5, "model": "m", "status": "completed",
            "usage": {
                "input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "output_tokens_details": {"reasoning_tokens": 2},
            },
            "output": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            ],
        }
    )  # fmt: skip
    assert (full["id"], full["created"], full["model"]) == ("r1", 5, "m")
    assert full["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "reasoning_tokens": 2,
    }  # fmt: skip
    message = full["message"]
    assert (message["content"], message["reasoning_content"]) == ("hi", "hm")
    assert message["tool_calls"] == [{"id": "c1", "name": "look", "arguments": "{}"}]
    assert (message["finish_reason"], message["is_truncated"]) == ("tool_calls", False)
    cut = _their_response({"status": "incomplete", "incomplete_details": {"reason": "content_filter"}})
    assert cut["message"]["finish_reason"] == "stop"


def test_a_rollout_without_a_model_call_is_a_failure_of_the_agent() -> None:
    recorder = Recorder(
        model=SimpleNamespace(options=SimpleNamespace(name="m")),  # type: ignore[arg-type]
        params={},
        sample=0,
    )
    recorder.hear([{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}])
    with pytest.raises(Failure, match="made no model call"):
        recorder.finish(None, "verifiers:words", [])


class Config:
    """A configuration without roles."""

    model_fields: ClassVar[dict[str, Any]] = {}


class ServedEnvironment:
    """An environment whose servers start, or not."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.config = Config()
        self.error = error
        self.states: list[str] = []

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        if self.error is not None:
            raise self.error
        self.states.append("up")
        yield
        self.states.append("down")


async def start_and_close(environment: ServedEnvironment) -> None:
    spec = EnvironmentSpec.parse("verifiers:words")
    agent = VerifiersV1Agent(environment, spec, AgentOptions(), source=None)
    async with Client(ClientOptions(base_urls=("http://127.0.0.1:9",))) as client:
        try:
            await agent.start(Model(client, ModelOptions(name="m")))
        finally:
            await agent.close()


@pytest.mark.parametrize("error", [RuntimeError("no port"), BaseExceptionGroup("no port", [SystemExit(1)])])
async def test_an_environment_that_does_not_start_is_an_error_with_its_cause(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "verifiers.v1.configs.agent", SimpleNamespace(AgentConfig=int))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--env verifiers:words does not start: no port") as caught:
        await start_and_close(ServedEnvironment(error))
    assert "try it alone" in (caught.value.hint or "")
    healthy = ServedEnvironment()
    await start_and_close(healthy)
    assert healthy.states == ["up", "down"]
