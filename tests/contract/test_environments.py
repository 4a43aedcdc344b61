"""Every registered environment can be named, refuses what it does not know, and gives rows, an agent and a verdict as promised."""

from __future__ import annotations

import pytest

from rollforge.agents.base import AgentOptions
from rollforge.environments import ENVIRONMENTS
from rollforge.environments.base import open_environment
from rollforge.errors import UsageError
from rollforge.records import PARAMS_KEY

NAMES = {
    "gym": "gym:http://127.0.0.1:1?via=resources",
    "openenv": "openenv:http://127.0.0.1:1?episodes=3",
    "reasoning-gym": "reasoning-gym:gcd?size=3",
    "textarena": "textarena:GuessTheNumber-v0?episodes=3",
    "verifiers": "verifiers:word_env?count=3",
}
"""A name of each member; the packages of the last two are only in an environment of their own."""

ELSEWHERE = ("textarena", "verifiers")


def test_every_member_has_a_row_here() -> None:
    assert set(NAMES) == set(ENVIRONMENTS.names())


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_a_missing_package_is_said_with_the_command_that_installs_it(kind: str) -> None:
    try:
        environment = open_environment(NAMES[kind])
    except UsageError as error:
        assert kind in ELSEWHERE, error
        assert "pip install" in (error.hint or "")
        return
    rows = environment.rows(2)
    agent = environment.agent(AgentOptions())
    assert environment.verifier is not None or agent is not None
    if rows is None:
        return
    first, second = list(rows), list(environment.rows(2) or ())
    assert first == second, "the same rows each time: a run can be resumed"
    assert all(PARAMS_KEY in row for row in first)
