"""Batches drawn from several buffers in given shares, such as expert data beside fresh rollouts.

Shares that do not divide are paid out over time: each draw credits every buffer with its share and serves the largest credits
first, so over many batches the shares are exact. The state is a dict of counts that a trainer keeps in its own checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rollforge.buffer.batch import Batch
from rollforge.buffer.buffer import Buffer
from rollforge.buffer.sample_metrics import sample_metrics
from rollforge.buffer.samplers import Sampler
from rollforge.errors import UsageError
from rollforge.experience import Experience


class MixedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of several buffers, in the order of the mixture."""

    batches: dict[str, Batch]

    @property
    def experiences(self) -> list[Experience]:
        return [experience for batch in self.batches.values() for experience in batch.experiences]

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.batches.values())

    def metrics(self) -> dict[str, float]:
        """`sample/*` over the whole batch, and each buffer's share of it."""
        first = next(iter(self.batches.values()))
        waited = max(batch.waited for batch in self.batches.values())
        numbers = sample_metrics(self.experiences, version=first.version, now=first.claimed_at, waited=waited)
        for name, batch in self.batches.items():
            numbers[f"sample/share/{name}"] = len(batch) / len(self)
        return numbers


class Mixture:
    """Several buffers with weights."""

    def __init__(self, parts: Mapping[str, tuple[Buffer, float]]) -> None:
        if not parts or any(weight <= 0 for _, weight in parts.values()):
            raise UsageError(
                "a mixture needs buffers with weights above 0", hint="for example {buffer: 0.7, other: 0.3}"
            )
        total = sum(weight for _, weight in parts.values())
        self._buffers = {name: buffer for name, (buffer, _) in parts.items()}
        self._shares = {name: weight / total for name, (_, weight) in parts.items()}
        self._served = dict.fromkeys(parts, 0)

    @property
    def state(self) -> dict[str, int]:
        """Experiences served per buffer so far: keep it in the trainer's checkpoint and hand it to
        `restore`."""
        return dict(self._served)

    def restore(self, state: Mapping[str, int]) -> None:
        """Continue from a `state`."""
        self._served = {name: int(state.get(name, 0)) for name in self._served}

    def split(self, count: int) -> dict[str, int]:
        """Number of experiences that the next batch takes from each buffer."""
        total = sum(self._served.values())
        taken = dict.fromkeys(self._served, 0)
        for position in range(count):
            owed = {
                name: self._shares[name] * (total + position + 1) - self._served[name] - taken[name]
                for name in taken
            }
            taken[max(owed, key=owed.__getitem__)] += 1
        return taken

    def claim(
        self,
        count: int,
        *,
        sampler: str | Sampler = "fifo",
        version: int | None = None,
        timeout: float | None = None,
    ) -> MixedBatch | None:
        """Claim one batch over all buffers; None if a buffer cannot provide its part, and then nothing stays claimed."""
        batches: dict[str, Batch] = {}
        for name, part in self.split(count).items():
            if not part:
                continue
            batch = self._buffers[name].claim(part, sampler=sampler, version=version, timeout=timeout)
            if batch is None:
                self._each(batches, "give_back")
                return None
            batches[name] = batch
        for name, batch in batches.items():
            self._served[name] += len(batch)
        return MixedBatch(batches=batches)

    def acknowledge(self, batch: MixedBatch) -> None:
        """Mark the batch as used in every buffer."""
        self._each(batch.batches, "acknowledge")

    def give_back(self, batch: MixedBatch) -> None:
        """Return the unused batch to its buffers."""
        self._each(batch.batches, "give_back")
        for name, part in batch.batches.items():
            self._served[name] -= len(part)

    def _each(self, batches: Mapping[str, Batch], action: str) -> None:
        for name, batch in batches.items():
            method: Any = getattr(self._buffers[name], action)
            method(batch)
