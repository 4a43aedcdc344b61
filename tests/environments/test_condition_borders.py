"""Environments: conditions that decide hold where they should, and not one step beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rollforge.environments.base import EnvironmentSpec
from rollforge.environments.episode import Episode
from rollforge.environments.openenv import (
    Full,
    OpenEnvAgent,
    Refused,
    _error,
    _Observed,
    _ServerError,
    _text,
    _without_base_fields,
)
from rollforge.environments.textarena import _end
from rollforge.environments.verifiers import environment_module
from rollforge.environments.verifiers_harness import HarnessTools
from rollforge.environments.verifiers_v0 import Recorder
from rollforge.errors import Failure, UsageError
from rollforge.records import Verdict


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ("a", "a"), ({"text": "a", "n": None, "x": [], "y": {}}, "a"), ({"text": "a", "n": 1}, '{"text":"a","n":1}'),
        ({"n": 1, "x": []}, '{"n":1}'), ({}, "{}"), ([1], "[1]"),
    ],
)  # fmt: skip
def test_an_observation_is_its_only_text_or_json(observation: object, text: str) -> None:
    assert _text(observation) == text


@pytest.mark.parametrize(
    ("code", "kind", "made", "text"),
    [
        ("CAPACITY_REACHED", "reset", Full, "m"), ("VALIDATION_ERROR", "step", Refused, 'm: [{"at":1}]'),
        ("EXECUTION_ERROR", "step", Refused, 'm: [{"at":1}]'),
        ("VALIDATION_ERROR", "reset", Failure, "reset: VALIDATION_ERROR: m"),
        ("OTHER", "step", Failure, "step: OTHER: m"),
    ],
)  # fmt: skip
def test_only_a_refused_step_goes_back_to_the_model(
    code: str, kind: str, made: type[Exception], text: str
) -> None:
    error = _error(_ServerError(code=code, message="m", errors=[{"at": 1}]), kind)
    assert type(error) is made and str(error) == text
    assert str(_error(_ServerError(code="EXECUTION_ERROR", message="m"), "step")) == "m"


def test_the_base_field_of_an_action_is_not_the_models() -> None:
    schema: Any = {"type": "object", "properties": {"move": {}, "metadata": {}}}
    assert _without_base_fields(schema)["properties"] == {"move": {}}
    assert _without_base_fields(cast("Any", {"properties": None})) == {"properties": None}


@pytest.mark.parametrize(
    ("call", "said", "rewards"),
    [
        ({"name": "step", "arguments": "{"}, "the arguments are not JSON", []),
        ({"name": "step", "arguments": "[1]"}, "call the function step", []),
        ({"name": "other", "arguments": "{}"}, "call the function step", []),
        ({"name": "step", "arguments": '{"a": 1}'}, "seen {'a': 1}", [1.0]),
        ({"name": "step"}, "seen {}", [1.0]), ({"name": "step", "arguments": '{"a": 0}'}, "no", []),
    ],
)  # fmt: skip
def test_a_call_is_an_action_only_with_the_right_name_and_an_object(
    call: Any, said: str, rewards: list[float]
) -> None:
    agent: Any = object.__new__(OpenEnvAgent)
    answers: list[str] = []

    async def tell(socket: object, kind: str, action: Any) -> Any:
        if action == {"a": 0}:
            raise Refused("no")
        return _Observed(observation=f"seen {action}", reward=1.0, done=False)

    agent._tell = tell
    episode: Any = SimpleNamespace(answer=lambda one, text: answers.append(text))
    given: list[float] = []
    before = _Observed(observation="before", reward=None, done=False)
    seen = asyncio.run(agent._act(None, episode, call, given, before))
    assert len(answers) == 1 and answers[0].startswith(said) and given == rewards
    assert (seen is before) is (not rewards)


@pytest.mark.parametrize(
    ("state", "is_closed"),
    [
        (None, False),
        (SimpleNamespace(), False),
        (SimpleNamespace(done=True), False),
        (SimpleNamespace(done=False), True),
    ],
)
def test_only_a_game_that_did_not_end_is_closed(state: Any, is_closed: bool) -> None:
    closed: list[bool] = []
    _end(SimpleNamespace(state=state, close=lambda: closed.append(True)))
    assert bool(closed) is is_closed
    _end(SimpleNamespace())


@pytest.mark.parametrize(
    ("verdict", "why", "failure"),
    [
        (Verdict(reward=0.5), "", None), (None, "", "the environment gave no reward"), (None, "it ended", "it ended"),
        (Verdict(reward=None), "", "the environment gave no reward"),
        (Verdict(reward=float("inf")), "", "the reward is inf, which is not finite"),
    ],
)  # fmt: skip
def test_an_episode_without_a_finite_reward_is_unjudged(
    verdict: Verdict | None, why: str, failure: str | None
) -> None:
    episode: Any = object.__new__(Episode)
    episode._prompt = {}
    episode._transcript = SimpleNamespace(
        response=lambda incomplete: {"output": []}, endpoint="", api="chat", requests=1, wasted=()
    )
    made = episode.finish(verdict, "v", why_unjudged=why)
    assert (made.verdict is verdict) is (failure is None or verdict is None)
    assert (str(made.verdict_failure) if made.verdict_failure else None) == failure


@pytest.mark.parametrize(
    ("value", "is_fine"), [(2, True), (1, False), (True, False), ("2", False), (3.0, False)]
)
def test_an_option_is_a_whole_number_from_its_least_on(value: object, is_fine: bool) -> None:
    spec = EnvironmentSpec(text="x:y", kind="x", name="y", options={"n": cast("Any", value)})
    assert spec.whole_number("other", 7, least=2) == 7
    if is_fine:
        assert spec.whole_number("n", 7, least=2) == value
        return
    with pytest.raises(UsageError, match="must be a whole number from 2 on"):
        spec.whole_number("n", 7, least=2)


@pytest.mark.parametrize(
    ("error", "installed", "is_old"),
    [("no legacy", "0.4.0", True), ("no legacy", "0.3.1", False), ("no other", "0.4.0", False)],
)
def test_an_environment_of_the_old_generation_names_the_old_release(
    error: str, installed: str, is_old: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed")
    (tmp_path / "broken_environment.py").write_text(f"raise ImportError({error!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as raised:
        environment_module("owner/broken-environment@1", installed)
    assert ("pip install verifiers==" in str(raised.value.hint)) is is_old


@pytest.mark.parametrize(
    ("call", "content"),
    [
        ({"id": "c", "function": {"name": "a", "arguments": "{"}}, "error: the arguments are not JSON"),
        ({"id": "c", "function": {"name": "a", "arguments": "[1]"}}, "error: the arguments must be an object, not list"),
        ({"id": "c", "function": {"name": "a"}}, "error: there is no tool 'a'"), ({"id": "c"}, "error: there is no tool ''"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_made_is_answered_with_the_reason(call: Any, content: str) -> None:
    tools: Any = object.__new__(HarnessTools)
    tools._gate, tools._dispatch = None, {}
    answer = asyncio.run(tools.answer(call))
    assert answer["content"].startswith(content) and answer["tool_call_id"] == "c"
    assert answer["name"] == call.get("function", {}).get("name", "")


def test_what_an_environment_says_after_the_last_turn_is_heard() -> None:
    heard: list[Any] = []
    recorder: Any = object.__new__(Recorder)
    recorder._transcript = SimpleNamespace(add_outputs=heard.append, leave_on=heard.append)
    recorder.failure = Failure("model", "timeout", "slow")
    said = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "more"},
    ]
    recorder.hear(said)
    assert len(heard) == 1 and len(heard[0]) == 1 and "more" in str(heard[0])
    recorder.hear(said[:1])
    recorder.hear("text")
    assert len(heard) == 1
    other = Failure("agent", "agent", "boom")
    assert (
        recorder.lost(other) is other
        and recorder.lost() is recorder.failure
        and heard[1:] == [other, recorder.failure]
    )
    recorder._transcript = None
    recorder.hear(said)
    recorder.leave_on(other)
    assert len(heard) == 3
