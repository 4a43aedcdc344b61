"""A server made with the openenv package, in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import running

CODE = """
import sys

import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int


class Seen(Observation):
    hint: str = ""


class Game(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.number = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.number = seed or 0
        return Seen(hint="Guess a number.", done=False, reward=None)

    def step(self, action, **kwargs):
        is_right = action.number == self.number
        return Seen(hint="right" if is_right else "wrong", done=is_right, reward=float(is_right))

    @property
    def state(self):
        return State(step_count=0)


app = create_app(Game, Guess, Seen, max_concurrent_envs=int(sys.argv[2]))
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


@contextmanager
def openenv_server(python: Path, folder: Path, *, sessions: int) -> Iterator[str]:
    """The address of a running server."""
    (folder / "game.py").write_text(CODE)
    words = [str(python), str(folder / "game.py")]
    with running(lambda port: [*words, str(port), str(sessions)], folder / "game.log") as port:
        yield f"http://127.0.0.1:{port}"
