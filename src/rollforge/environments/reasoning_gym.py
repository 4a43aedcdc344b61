"""Tasks that reasoning-gym generates, judged by its own scorers: `reasoning-gym:FAMILY[?size=100&seed=0&…]`.

Further options are the family's own settings. Extra: `reasoning-gym`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rollforge.environments.base import EnvironmentSpec, NamedVerifier
from rollforge.records import JsonFields
from rollforge.verifiers.reasoning_gym import tasks

SIZE = 100
"""Tasks, where neither `size` nor `--limit` says how many."""


class ReasoningGymTasks:
    """One family of generated tasks; one model call answers each."""

    verifier: NamedVerifier | None = NamedVerifier("reasoning_gym")

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._family = spec.name
        self._size = spec.whole_number("size", 0)
        self._seed = spec.whole_number("seed", 0)
        self._config = {key: value for key, value in spec.options.items() if key not in ("size", "seed")}

    def rows(self, limit: int | None) -> Iterator[JsonFields]:
        yield from tasks(self._family, self._size or limit or SIZE, self._seed, **self._config)

    def agent(self, options: object) -> None:
        return None
