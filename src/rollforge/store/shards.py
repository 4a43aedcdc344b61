"""A run in shards: ownership of shards by epochs of create-only files, and the bytes that count.

A shard is a contiguous range of task positions with all their samples, fixed in `plan.json` when the run is made. A process takes
a shard by creating `eN.owner`, and then writes only into the files of that epoch. An epoch ends when `eN.end` exists, which
records the bytes that count: the owner creates it when it stops, or a successor when it takes over; only the first one succeeds.
A process believed dead may append for hours, but bytes beyond the recorded length do not count. The cost is a few rollouts
generated twice, never counted twice.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from rollforge.errors import DataError, ResumeRefused
from rollforge.records import JsonObject
from rollforge.store.shard_plan import ShardPlan, decode_record
from rollforge.store.shard_storage import Counted, ShardStorage

if TYPE_CHECKING:
    from rollforge.store.durable import DurableFile

STALE_S = 120.0
"""Heartbeat age after which an owner counts as dead; Ray needs up to 65 s to notice a hung node."""
BEAT_EVERY_S = 5.0

EndState = Literal["complete", "released", "taken over"]
"""`complete`: nothing is owed any more; `released`: the owner stopped early; `taken over`: a successor ended the epoch."""

_EPOCH = re.compile(r"e(\d+)\.(owner|end|beat)")
_Record = TypeVar("_Record")


class EpochOwner(msgspec.Struct, frozen=True, kw_only=True):
    """`eN.owner`: the process that took the shard."""

    host: str
    pid: int
    since: float
    plan: str = ""
    """Digest of its plan."""
    process: str = ""
    """Boot, namespace and start time, which distinguish this process from others with the same number; empty if unknown."""


class EpochEnd(msgspec.Struct, frozen=True, kw_only=True):
    """`eN.end`: how an epoch ended, and its valid bytes."""

    state: EndState
    at: float
    by: EpochOwner
    files: dict[str, Counted] = {}
    """`rollouts` and `failures`."""
    finished: int = 0
    """Finished rollouts of the whole shard, including earlier epochs; only the owner knows this number."""
    given_up: int = 0
    unjudged: int = 0
    """Finished rollouts of the whole shard with a null reward."""
    facts: JsonObject = {}
    """Facts that a manifest would contain: reward, failures by class, requests."""


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """`eN.beat`: heartbeat of the owner, with its progress."""

    finished: int = 0
    in_flight: int = 0
    rate: float | None = None
    failed: dict[str, int] = {}


class Epoch(msgspec.Struct, frozen=True, kw_only=True):
    """One period of ownership of a shard."""

    number: int
    owner: EpochOwner
    end: EpochEnd | None


# -- who we are -----------------------------------------------------------------------------------------------------------


def this_process(plan: str = "") -> EpochOwner:
    """The owner record of this process."""
    pid = os.getpid()
    return EpochOwner(
        host=socket.gethostname(), pid=pid, since=time.time(), plan=plan, process=_process_id(pid) or ""
    )


def _process_id(pid: int) -> str | None:
    """Boot, namespace and start time of a local process; None if it does not exist or is a zombie."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = os.readlink("/proc/self/ns/pid")  # noqa: PTH115  (no file is there to resolve)
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in ("Z", "X") else f"{boot} {space} {fields[19]}"


def is_gone(owner: EpochOwner) -> bool:
    """Whether the owner has certainly ended, as far as this machine can tell; False if only its heartbeat can show it."""
    mine = _process_id(os.getpid())
    if mine is None or not owner.process or owner.process.split()[:2] != mine.split()[:2]:
        return False
    return _process_id(owner.pid) != owner.process


# -- shards ---------------------------------------------------------------------------------------------------------------


def shard_name(shard: int) -> str:
    """Folder name of a shard."""
    return f"{shard:05d}"


def read_epochs(storage: ShardStorage, shard: int) -> list[Epoch]:
    """Epochs of a shard, oldest first."""
    folder = shard_name(shard)
    kinds: dict[int, set[str]] = {}
    for name in storage.names(folder):
        if match := _EPOCH.fullmatch(name):
            kinds.setdefault(int(match[1]), set()).add(match[2])
    epochs = []
    for number in sorted(kinds):
        owner = _read(storage, f"{folder}/e{number}.owner", EpochOwner)
        end = _read(storage, f"{folder}/e{number}.end", EpochEnd) if "end" in kinds[number] else None
        if owner is not None:
            epochs.append(Epoch(number=number, owner=owner, end=end))
    return epochs


def _read(storage: ShardStorage, name: str, kind: type[_Record]) -> _Record | None:
    data = storage.read(name)
    return None if data is None else decode_record(data, kind, name)


def read_beat(storage: ShardStorage, shard: int, epoch: int) -> tuple[Beat | None, float | None]:
    """Last heartbeat of an epoch, and its age in seconds."""
    name = f"{shard_name(shard)}/e{epoch}.beat"
    age = storage.age_s(name)
    if age is None:
        return None, storage.age_s(f"{shard_name(shard)}/e{epoch}.owner")
    beat = None
    with suppress(DataError):  # it is written without a sync, and a crash may leave it empty
        beat = _read(storage, name, Beat)
    return beat, age


def is_stale(storage: ShardStorage, shard: int, epoch: Epoch) -> bool:
    """Whether the owner of an open epoch has ended, or was silent for too long."""
    if epoch.end is not None:
        return False
    if is_gone(epoch.owner):
        return True
    _, age = read_beat(storage, shard, epoch.number)
    return age is None or age > STALE_S


def counted_files(storage: ShardStorage, shard: int, epoch: Epoch) -> dict[str, Counted]:
    """Valid files of one epoch: those in its end record; for an open one, the complete lines that exist now."""
    if epoch.end is not None:
        return epoch.end.files
    counted_by_kind = {}
    for kind in ("rollouts", "failures"):
        counted = storage.counted(f"{shard_name(shard)}/e{epoch.number}/{kind}.jsonl")
        if counted is not None:
            counted_by_kind[kind] = counted
    return counted_by_kind


class Lease:
    """Ownership of one shard: the current epoch, and the contents of earlier ones."""

    def __init__(
        self, storage: ShardStorage, shard: int, number: int, owner: EpochOwner, before: list[Epoch]
    ) -> None:
        self.storage = storage
        self.shard = shard
        self.number = number
        self.owner = owner
        self.before = before
        """Earlier epochs, all ended."""

    @property
    def folder(self) -> str:
        return f"{shard_name(self.shard)}/e{self.number}"

    def rows(self, kind: Literal["rollouts", "failures", "verdicts"]) -> DurableFile:
        """Open a file of this epoch for appending."""
        return self.storage.rows(f"{self.folder}/{kind}.jsonl")

    def earlier(self, kind: str) -> Iterator[bytes]:
        """Valid lines of earlier epochs."""
        for epoch in self.before:
            if epoch.end is not None and (counted := epoch.end.files.get(kind)) is not None:
                yield from self.storage.lines(counted)

    def beat(self, beat: Beat) -> None:
        """Write a heartbeat."""
        self.storage.replace(f"{self.folder}.beat", msgspec.json.encode(beat))

    def is_taken_over(self) -> bool:
        """Whether a successor has ended this epoch, so that further writes do not count."""
        return self.storage.read(f"{self.folder}.end") is not None

    def end(
        self,
        state: EndState,
        *,
        finished: int = 0,
        given_up: int = 0,
        unjudged: int = 0,
        facts: JsonObject | None = None,
        kinds: tuple[str, ...] = ("rollouts", "failures"),
    ) -> EpochEnd:
        """End the epoch; returns its end record, or that of a successor that was faster."""
        files = {}
        for kind in kinds:
            counted = self.storage.counted(f"{self.folder}/{kind}.jsonl")
            if counted is not None:
                files[kind] = counted
        made = EpochEnd(
            state=state, at=time.time(), by=this_process(), files=files, finished=finished, given_up=given_up,
            unjudged=unjudged, facts=facts or {},
        )  # fmt: skip
        return end_epoch(self.storage, self.shard, self.number, made)


def end_epoch(storage: ShardStorage, shard: int, number: int, end: EpochEnd) -> EpochEnd:
    """Create the end record of an epoch, or return the existing one."""
    name = f"{shard_name(shard)}/e{number}.end"
    if storage.create(name, msgspec.json.encode(end)):
        return end
    there = _read(storage, name, EpochEnd)
    assert there is not None, name
    return there


def refuse_other_plans(plan: ShardPlan, shard: int, epochs: list[Epoch]) -> None:
    """Raise for epochs with another plan, such as copied parts of another run.

    Raises:
        ResumeRefused: naming the shard and the epoch.
    """
    for epoch in epochs:
        if epoch.owner.plan != plan.digest:
            raise ResumeRefused(
                f"shard {shard}, epoch {epoch.number}: it was collected under another plan (fingerprint {epoch.owner.plan or 'none'}, "
                f"this run has {plan.digest})",
                keys=("fingerprint",),
                hint=f"remove shards/{shard_name(shard)} and collect it again",
            )


def take(storage: ShardStorage, plan: ShardPlan, shard: int, *, is_lost: bool = False) -> Lease | None:
    """Take a shard; None if another process owns it and may be alive, or was faster.

    Args:
        is_lost: The caller knows that the last owner has ended, so its heartbeat need not expire.
    """
    epochs = read_epochs(storage, shard)
    refuse_other_plans(plan, shard, epochs)
    owner = this_process(plan.digest)
    if epochs and epochs[-1].end is None:
        last = epochs[-1]
        if not is_lost and not is_stale(storage, shard, last):
            return None
        counted = counted_files(storage, shard, last)
        end = end_epoch(
            storage, shard, last.number, EpochEnd(state="taken over", at=time.time(), by=owner, files=counted)
        )
        epochs[-1] = msgspec.structs.replace(last, end=end)
    number = epochs[-1].number + 1 if epochs else 1
    if not storage.create(f"{shard_name(shard)}/e{number}.owner", msgspec.json.encode(owner)):
        return None
    return Lease(storage, shard, number, owner, epochs)


# -- how far the shards are ------------------------------------------------------------------------------------------------

ShardProgress = Literal["finished", "incomplete", "open", "stale", "owed"]
"""All rollouts are there; some failed for good; a live process works on it; its owner is gone; no process owns it."""


class ShardState(msgspec.Struct, frozen=True, kw_only=True):
    """State of one shard."""

    shard: int
    state: ShardProgress
    expected: int
    finished: int
    given_up: int = 0
    unjudged: int = 0
    epochs: int = 0
    owner: EpochOwner | None = None
    heard_s_ago: float | None = None
    """Age of the heartbeat, for an open or stale shard."""
    in_flight: int = 0
    rate: float | None = None


def shard_states(storage: ShardStorage, plan: ShardPlan) -> Iterator[ShardState]:
    """State of each shard, from its files.

    Raises:
        ResumeRefused: a shard was collected under another plan.
    """
    for shard in range(len(plan)):
        yield _state_of(storage, plan, shard)


def _state_of(storage: ShardStorage, plan: ShardPlan, shard: int) -> ShardState:
    expected, epochs = plan.expected(shard), read_epochs(storage, shard)
    refuse_other_plans(plan, shard, epochs)
    if not epochs:
        state: ShardProgress = "owed" if expected else "finished"
        return ShardState(shard=shard, state=state, expected=expected, finished=0)
    last = epochs[-1]
    if last.end is not None and last.end.state != "taken over":
        end = last.end
        state = (
            "finished" if end.finished >= expected else "incomplete" if end.state == "complete" else "owed"
        )
        return ShardState(
            shard=shard, state=state, expected=expected, finished=end.finished, given_up=end.given_up,
            unjudged=end.unjudged, epochs=len(epochs), owner=last.owner,
        )  # fmt: skip
    if last.end is None and not is_stale(storage, shard, last):
        beat, age = read_beat(storage, shard, last.number)
        return ShardState(
            shard=shard, state="open", expected=expected, finished=beat.finished if beat else 0, epochs=len(epochs),
            owner=last.owner, heard_s_ago=age, in_flight=beat.in_flight if beat else 0, rate=beat.rate if beat else None,
        )  # fmt: skip
    rows = sum(1 for epoch in epochs for _ in _rows_of(storage, shard, epoch))
    _, age = read_beat(storage, shard, last.number)
    return ShardState(
        shard=shard, state="stale" if last.end is None else "owed", expected=expected, finished=min(rows, expected),
        epochs=len(epochs), owner=last.owner, heard_s_ago=age if last.end is None else None,
    )  # fmt: skip


def _rows_of(storage: ShardStorage, shard: int, epoch: Epoch) -> Iterator[bytes]:
    counted = counted_files(storage, shard, epoch).get("rollouts")
    return iter(()) if counted is None else storage.lines(counted)
