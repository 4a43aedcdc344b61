"""This module chooses which waiting experiences a trainer gets next.

A sampler is a pure function of what waits, the seed and how many draws came before, so a resumed trainer
continues the same sequence and the same seed gives the same batches. It sees columns, never bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollforge.errors import UsageError
from rollforge.registry import did_you_mean

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """What waits in the buffer, oldest first; NaN where a number is not known."""

    ids: IntArray
    model_version: FloatArray
    priority: FloatArray
    difficulty: FloatArray
    uses: IntArray


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """One request: how many, and the state a sampler may use."""

    count: int
    seed: int = 0
    number: int = 0
    """Draws made from this buffer before, under this sampler."""
    version: int | None = None
    """The model version the trainer is at."""

    def generator(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.number])


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What a sampler decided."""

    ids: list[int]
    stale: list[int] = []
    """Waiting experiences that no future draw should see: taken out of the buffer and counted."""


class Sampler(msgspec.Struct, frozen=True, kw_only=True):
    """A named way of choosing, with its numbers."""

    name: str
    choose: Callable[[Waiting, Draw], Choice]
    columns: frozenset[str] = frozenset()
    """Which columns of `Waiting` it reads; empty means the ids in order are enough."""
    order: str | None = None
    """When plain SQL order does (`id`, `id desc`), the buffer need not look at all that waits."""


def _first(waiting: Waiting, draw: Draw) -> Choice:
    return Choice(ids=waiting.ids[: draw.count].tolist())


def _uniform(waiting: Waiting, draw: Draw) -> Choice:
    count = min(draw.count, len(waiting.ids))
    return Choice(ids=draw.generator().choice(waiting.ids, size=count, replace=False).tolist())


def fifo() -> Sampler:
    """Oldest first."""
    return Sampler(name="fifo", choose=_first, order="id")


def newest() -> Sampler:
    """Newest first, as Trinity-RFT reads its tables."""
    return Sampler(name="newest", choose=_first, order="id desc")


def uniform() -> Sampler:
    """Every waiting experience alike, without replacement."""
    return Sampler(name="uniform", choose=_uniform, columns=frozenset({"id"}))


def staleness(limit: int = 1, *, drop: bool = True) -> Sampler:
    """Oldest first among those made by one of the last `limit` + 1 model versions. Older ones leave the
    buffer and are counted (`drop`), or wait for a replay. An unknown version counts as fresh."""

    def choose(waiting: Waiting, draw: Draw) -> Choice:
        if draw.version is None:
            raise UsageError(
                "the sampler 'staleness' needs the trainer's version", hint="claim(…, version=step)"
            )
        is_stale = waiting.model_version < draw.version - limit
        fresh = waiting.ids[~is_stale][: draw.count].tolist()
        return Choice(ids=fresh, stale=waiting.ids[is_stale].tolist() if drop else [])

    return Sampler(name="staleness", choose=choose, columns=frozenset({"model_version"}))


def priority(decay: float = 2.0) -> Sampler:
    """Highest `priority` first, less `decay` for every use; between equals the newer model version, then the
    older row."""

    def choose(waiting: Waiting, draw: Draw) -> Choice:
        score = waiting.priority - decay * waiting.uses
        version = np.nan_to_num(waiting.model_version, nan=-1.0)
        order = np.lexsort((waiting.ids, -version, -score))
        return Choice(ids=waiting.ids[order][: draw.count].tolist())

    return Sampler(name="priority", choose=choose, columns=frozenset({"priority", "model_version", "uses"}))


def balanced(bands: int = 5) -> Sampler:
    """As many from every band of difficulty as there are, oldest first within each; unknown difficulty is a
    band of its own."""

    def choose(waiting: Waiting, draw: Draw) -> Choice:
        band = np.clip(np.floor(np.nan_to_num(waiting.difficulty, nan=-1.0) * bands), -1, bands - 1).astype(
            np.int64
        )
        rank = np.zeros(len(band), dtype=np.int64)
        for value in np.unique(band):
            rank[band == value] = np.arange(int((band == value).sum()))
        shuffle = draw.generator().permutation(
            bands + 1
        )  # whose turn it is first when the count does not divide
        order = np.lexsort((shuffle[band], rank))
        return Choice(ids=waiting.ids[order][: draw.count].tolist())

    return Sampler(name="balanced", choose=choose, columns=frozenset({"difficulty"}))


SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "balanced": balanced,
    "fifo": fifo,
    "newest": newest,
    "priority": priority,
    "staleness": staleness,
    "uniform": uniform,
}


def find_sampler(sampler: str | Sampler, **options: Any) -> Sampler:
    """The sampler called `sampler`, or itself."""
    if isinstance(sampler, Sampler):
        return sampler
    if sampler not in SAMPLERS:
        raise UsageError(
            f"there is no sampler {sampler!r}{did_you_mean(sampler, SAMPLERS)}",
            hint=f"known: {', '.join(SAMPLERS)}",
        )
    return SAMPLERS[sampler](**options)
