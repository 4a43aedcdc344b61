"""Samplers: which waiting experiences a trainer gets next.

A sampler is a pure function of the waiting experiences, the seed and the number of earlier draws, so a resumed trainer continues
the same sequence and the same seed gives the same batches. It sees columns, never bodies.
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
    """Columns of the waiting experiences, oldest first; NaN for an unknown number."""

    ids: IntArray
    columns: dict[str, FloatArray]


class Draw(msgspec.Struct, frozen=True, kw_only=True):
    """One request for experiences, and the state that a sampler may use."""

    count: int
    seed: int = 0
    number: int = 0
    """Number of earlier draws from this buffer with this sampler."""
    version: int | None = None
    """The trainer's current model version."""

    def generator(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.number])


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A selection that runs inside the database, without loading all waiting experiences."""

    order: str
    where: str = "1 = 1"
    values: tuple[float, ...] = ()
    """Values of the `?` placeholders, those of `where` first."""


class Sampler(msgspec.Struct, frozen=True, kw_only=True):
    """A named selection rule: a query, or a function over the columns of waiting experiences."""

    name: str
    query: Callable[[Draw], Query] | None = None
    stale: Callable[[Draw], Query] | None = None
    """Selects waiting experiences that no later draw should return: they are removed and counted."""
    choose: Callable[[Waiting, Draw], list[int]] | None = None
    columns: frozenset[str] = frozenset()
    """Columns of `Waiting` that `choose` reads, in addition to the ids."""


def fifo() -> Sampler:
    """Oldest first."""
    return Sampler(name="fifo", query=lambda _: Query(order="id"))


def newest() -> Sampler:
    """Newest first, as Trinity-RFT reads its tables."""
    return Sampler(name="newest", query=lambda _: Query(order="id desc"))


def uniform() -> Sampler:
    """Uniformly at random, without replacement."""

    def choose(waiting: Waiting, draw: Draw) -> list[int]:
        count = min(draw.count, len(waiting.ids))
        chosen: list[int] = draw.generator().choice(waiting.ids, size=count, replace=False).tolist()
        return chosen

    return Sampler(name="uniform", choose=choose)


def staleness(limit: int = 1, *, drop: bool = True) -> Sampler:
    """Oldest first among those made by one of the last `limit` + 1 model versions. Older ones leave the buffer and
    are counted (`drop`), or wait for a replay. An unknown version counts as fresh."""

    def oldest(draw: Draw) -> int:
        if draw.version is None:
            raise UsageError(
                "the sampler 'staleness' needs the trainer's version", hint="claim(…, version=step)"
            )
        return draw.version - limit

    def fresh(draw: Draw) -> Query:
        return Query(where="coalesce(model_version, ?) >= ?", values=(oldest(draw), oldest(draw)), order="id")

    def stale(draw: Draw) -> Query:
        return Query(where="model_version < ?", values=(oldest(draw),), order="id")

    return Sampler(name="staleness", query=fresh, stale=stale if drop else None)


def priority(decay: float = 2.0) -> Sampler:
    """Highest `priority` first, minus `decay` per use; ties go to the newer model version, then to the older row."""
    order = "priority - ? * uses desc, coalesce(model_version, -1) desc, id"
    return Sampler(name="priority", query=lambda _: Query(order=order, values=(decay,)))


def balanced(bands: int = 5) -> Sampler:
    """Equally many from every difficulty band that has experiences, oldest first within each; unknown difficulty is a band."""

    def choose(waiting: Waiting, draw: Draw) -> list[int]:
        band = np.clip(
            np.floor(np.nan_to_num(waiting.columns["difficulty"], nan=-1.0) * bands), -1, bands - 1
        ).astype(np.int64)
        rank = np.zeros(len(band), dtype=np.int64)
        for value in np.unique(band):
            rank[band == value] = np.arange(int((band == value).sum()))
        shuffle = draw.generator().permutation(
            bands + 1
        )  # whose turn it is first when the count does not divide
        order = np.lexsort((shuffle[band], rank))
        chosen: list[int] = waiting.ids[order][: draw.count].tolist()
        return chosen

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
    """The sampler with this name; a `Sampler` is returned unchanged."""
    if isinstance(sampler, Sampler):
        return sampler
    if sampler not in SAMPLERS:
        raise UsageError(
            f"there is no sampler {sampler!r}{did_you_mean(sampler, SAMPLERS)}",
            hint=f"known: {', '.join(SAMPLERS)}",
        )
    return SAMPLERS[sampler](**options)
