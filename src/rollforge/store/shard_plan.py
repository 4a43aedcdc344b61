"""The plan of a sharded run: the tasks of each shard, and the shard that `--shard` names."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rollforge.errors import DataError, ResumeRefused, UsageError
from rollforge.records import JsonObject
from rollforge.runtime.typed_decoding import decode_json
from rollforge.store.reading import UNREADABLE, reason_of
from rollforge.store.shard_storage import ShardStorage

if TYPE_CHECKING:
    import numpy as np

_Record = TypeVar("_Record")

PLAN = "plan.json"

MOST_SHARDS = 4096

ROLLOUTS_PER_SHARD = 2_000

FEWEST_SHARDS = 32
"""Number of shards of a small run, so that some workers can share it; one per task if it has fewer."""


class ShardRange(msgspec.Struct, frozen=True, array_like=True):
    """Range of task positions: the first, and the one after the last."""

    first: int
    end: int

    def __len__(self) -> int:
        return self.end - self.first


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`plan.json`: settings fixed when the run was made."""

    version: int = 1
    run: str
    """The run's id."""
    created: float
    fingerprint: JsonObject
    tasks: int
    samples: int
    first_number: int = 0
    """Slurm array number of the first shard."""
    tasks_bytes: int
    """Length of `rollouts_tasks.jsonl`."""
    tasks_sha256: str
    ranges: list[ShardRange]

    def __len__(self) -> int:
        return len(self.ranges)

    @property
    def digest(self) -> str:
        """Digest that differs between runs, and between settings of one run."""
        return hashlib.sha256(
            msgspec.json.encode([self.run, self.fingerprint, self.tasks_sha256], order="sorted")
        ).hexdigest()[:16]

    def expected(self, shard: int) -> int:
        """Number of rollouts of one shard."""
        return len(self.ranges[shard]) * self.samples

    def shard_of(self, positions: np.ndarray) -> np.ndarray:
        """Shard number of each position."""
        import numpy as np  # most commands that know of shards need no arrays

        return np.searchsorted([one.end for one in self.ranges], positions, side="right")


def even_ranges(tasks: int, count: int) -> list[ShardRange]:
    """Contiguous ranges of nearly equal size; some are empty if there are more shards than tasks."""
    bounds = [tasks * number // count for number in range(count + 1)]
    return [ShardRange(first, end) for first, end in itertools.pairwise(bounds)]


def default_count(tasks: int, samples: int) -> int:
    """Default number of shards, which depends only on the run, not on the workers."""
    wanted = max(-(-tasks * samples // ROLLOUTS_PER_SHARD), FEWEST_SHARDS)
    return max(1, min(wanted, tasks, MOST_SHARDS))


class ShardChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The shard that `--shard` names, and the number of shards."""

    number: int
    count: int
    first: int = 0
    """Number of the first shard, because arrays may start from any number."""
    is_array: bool = False
    is_whole: bool = True
    """False for a partial, resubmitted array, from which the number of shards cannot be derived."""

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str] = os.environ) -> ShardChoice:
        """Parse `I/N`, counted from 0, or `slurm`, the current task of a Slurm array.

        Raises:
            UsageError: the text is neither, or no Slurm array is running.
        """
        if text.strip() == "slurm":
            return cls._of_array(environment)
        match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        if match is None:
            raise UsageError(
                f"--shard {text!r} is not understood", hint="write I/N with I from 0 to N-1, or slurm"
            )
        choice = cls(number=int(match[1]), count=int(match[2]))
        _check_count(choice.count)
        _check_number(choice.number, choice.count)
        return choice

    @classmethod
    def _of_array(cls, environment: Mapping[str, str]) -> ShardChoice:
        try:
            number, count, least = (int(environment[f"SLURM_ARRAY_TASK_{name}"]) for name in _ARRAY)
            most = int(environment.get("SLURM_ARRAY_TASK_MAX", max(number, least + count - 1)))
        except KeyError as error:
            raise UsageError(
                f"--shard slurm: {error.args[0]} is not set",
                hint="submit it as an array: sbatch --array=0-63 …; elsewhere give --shard I/N",
            ) from None
        except ValueError as error:
            raise UsageError(
                f"--shard slurm: {error}", hint="the SLURM_ARRAY_TASK_* variables hold whole numbers"
            ) from None
        _check_count(count)
        return cls(number=number, count=count, first=least, is_array=True, is_whole=most - least + 1 == count)

    def number_in(self, plan: ShardPlan) -> int:
        """The shard's number in an existing plan; refused if the plan has another number of shards."""
        if self.is_array:
            _check_number(self.number - plan.first_number, len(plan))
            return self.number - plan.first_number
        if self.count != len(plan):
            raise ResumeRefused(
                f"the run was made with {len(plan):,} shards, not {self.count:,}; that number is fixed",
                keys=("shards",),
                hint=f"give --shard I/{len(plan)}, or another -o for a new run",
            )
        return self.number

    def check_new(self) -> None:
        """Refuse to derive the number of shards from a partial array."""
        if not self.is_whole:
            raise UsageError(
                "--shard slurm: the run does not exist yet, and this array has gaps, so the number of shards is not known",
                hint="submit the whole array first (--array=0-63); parts of it may be submitted again later",
            )


_ARRAY = ("ID", "COUNT", "MIN")


def _check_count(count: int) -> None:
    if not 1 <= count <= MOST_SHARDS:
        raise UsageError(
            f"--shard: there can be 1 to {MOST_SHARDS:,} shards, not {count:,}", hint="--shard 0/16"
        )


def _check_number(shard: int, count: int) -> None:
    if not 0 <= shard < count:
        raise UsageError(
            f"--shard: there is no shard {shard} of {count}",
            hint=f"shards are numbered from 0 to {count - 1}",
        )


def read_plan(storage: ShardStorage) -> ShardPlan | None:
    """The plan of a sharded run, or None."""
    data = storage.read(PLAN)
    return None if data is None else decode_record(data, ShardPlan, PLAN)


def create_plan(storage: ShardStorage, plan: ShardPlan) -> bool:
    """Create the plan; False if another process was first."""
    return storage.create(PLAN, msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n")


def decode_record(data: bytes, kind: type[_Record], name: str) -> _Record:
    """Decode a file of `shards/`; a damaged one raises an error with its name."""
    try:
        return decode_json(data, kind)
    except UNREADABLE as error:
        raise DataError(
            f"shards/{name}: {reason_of(error)}", hint="restore the file; rollforge never changes it"
        ) from error


def array_text(numbers: list[int]) -> str:
    """Ascending numbers in Slurm's array syntax: `0-3,17`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
