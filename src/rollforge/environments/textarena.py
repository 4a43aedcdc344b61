"""Games of TextArena: `textarena:GAME[?episodes=100&seed=0&players=1]`.

The game's observation is the prompt, each answer a move. With several players, the model plays all of them, each from that
player's observations; rollout and reward are those of player 0. A game without a reward is unjudged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from rollforge.agents.base import AgentOptions, Preparation, Trajectory
from rollforge.endpoint import Model
from rollforge.environments.base import ROW_KEY, EnvironmentSpec, NamedVerifier, missing_package
from rollforge.environments.episode import Episode
from rollforge.errors import Failure, UsageError
from rollforge.records import PARAMS_KEY, JsonFields, Task, Verdict
from rollforge.registry import did_you_mean

EPISODES = 100


class TextArena:
    """One game, with one episode per seed."""

    verifier: NamedVerifier | None = None

    def __init__(self, spec: EnvironmentSpec) -> None:
        spec.take(episodes=EPISODES, seed=0, players=1)
        self._game = spec.name
        self._episodes = spec.whole_number("episodes", 0)
        self._seed = spec.whole_number("seed", 0)
        self._players = spec.whole_number("players", 1, least=1)
        names = _library().envs.registration.ENV_REGISTRY
        if self._game not in names:
            raise UsageError(
                f"TextArena has no game {self._game!r}{did_you_mean(self._game, list(names))}",
                hint='see them all: python -c "import textarena; print(sorted(textarena.envs.registration.ENV_REGISTRY))"',
            )

    def rows(self, limit: int | None) -> Iterator[JsonFields]:
        for number in range(self._episodes or limit or EPISODES):
            yield {PARAMS_KEY: {"input": []}, ROW_KEY: {"game": self._game, "seed": self._seed + number}}

    def agent(self, options: AgentOptions) -> TextArenaAgent:
        return TextArenaAgent(options, self._players)


class TextArenaAgent:
    """Plays one episode per rollout."""

    name = "textarena"

    def __init__(self, options: AgentOptions, players: int) -> None:
        self._players, self._max_turns = players, options.max_turns
        self._model: Model | None = None

    async def prepare(self) -> Preparation:
        from importlib.metadata import version

        return Preparation(
            needs=(f"{ROW_KEY}.game",),
            judges=True,
            may_lack_prompt=True,
            fingerprint={
                "environment": f"textarena {version('textarena')}",
                "players": self._players,
                "max_turns": self._max_turns,
            },
        )

    async def start(self, model: Model) -> None:
        self._model = model

    async def close(self) -> None:
        """Do nothing: every episode closes its own game."""

    async def run(self, task: Task, sample: int) -> Trajectory:
        assert self._model is not None, "the agent has not been started"
        game = await asyncio.to_thread(self._begin, task[ROW_KEY])
        episodes: dict[int, Episode] = {}
        try:
            return await self._play(game, episodes, task, sample)
        except (Failure, asyncio.CancelledError) as error:
            if 0 in episodes:
                episodes[0].leave_on(error)
            raise
        finally:
            await asyncio.to_thread(_end, game)

    def _begin(self, row: dict[str, Any]) -> Any:
        game = _library().make(str(row["game"]))
        game.reset(num_players=self._players, seed=int(row["seed"]))
        return game

    async def _play(self, game: Any, episodes: dict[int, Episode], task: Task, sample: int) -> Trajectory:
        assert self._model is not None
        incomplete = None
        while True:
            player, seen = await asyncio.to_thread(game.get_observation)
            text = seen if isinstance(seen, str) else "\n".join(str(part) for part in seen)
            if player in episodes:
                episodes[player].hear(text)
            else:
                episodes[player] = Episode(self._model, task.params, text, sample)
            if 0 in episodes and episodes[0].turns >= self._max_turns:
                incomplete = "max_turns"
                break
            move, _ = await episodes[player].ask()
            is_done, _ = await asyncio.to_thread(game.step, move)
            if is_done:
                break
        if 0 not in episodes:
            raise Failure("agent", "agent", "the game ended before player 0 moved")
        rewards, facts = await asyncio.to_thread(game.close)
        own = facts.get(0, {}) if isinstance(facts, dict) else {}
        reward = rewards.get(0) if isinstance(rewards, dict) else None
        numbers = {name: value for name, value in own.items() if isinstance(value, bool | int | float)}
        verdict = None if reward is None else Verdict(reward=float(reward), numbers=numbers)
        why = (
            "the turn limit came before the end of the game"
            if incomplete
            else "the game gave player 0 no reward"
        )
        return episodes[0].finish(
            verdict, f"textarena:{task[ROW_KEY]['game']}", why_unjudged=why, incomplete=incomplete
        )


def _end(game: Any) -> None:
    """Close a game that did not end; a finished game is already closed."""
    state = getattr(game, "state", None)
    if state is not None and not getattr(state, "done", True):
        game.close()


def _library() -> Any:
    try:
        import textarena
        import textarena.envs.registration
    except ImportError as error:
        raise missing_package("textarena", "pip install textarena==0.7.4") from error
    return textarena
