"""Selects the rollouts of a run to judge: those without a verdict, filtered by the options."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from itertools import chain

import msgspec

from rollforge.errors import UsageError
from rollforge.rollouts import Rollout, RolloutReader
from rollforge.steps.verify.tally import RolloutRewards
from rollforge.steps.verify.verdicts import Key, KeySet, read_verdicts
from rollforge.steps.verify.verify_options import SampleSize, VerifyOptions
from rollforge.store import RunFiles
from rollforge.store.reading import bounded_lines
from rollforge.store.rollout_parts import parts_of
from rollforge.verifiers.running.ready_verifier import RunningJudge


class Chooser:
    """Decides for each rollout whether to judge it."""

    def __init__(self, options: VerifyOptions, files: RunFiles, judge: RunningJudge) -> None:
        self._options = options
        self._files = files
        self._judge = judge
        self._sample = SampleSize.parse(options.sample) if options.sample else None
        self._largest_hash: int | None = None
        self._picked: KeySet | None = None
        self._reward_by_number: dict[int, float] = {}
        self._done = KeySet()
        self._failed = KeySet()
        self._judged = KeySet()
        self._seen = KeySet()
        self._rewards: RolloutRewards | None = None
        self.already = self.already_judged = self.already_unjudged = 0

    def read(self, rewards: RolloutRewards) -> None:
        """Read earlier verdicts. Their rewards are added to `rewards` when their rollouts are read."""
        self._rewards = rewards
        for row, _ in chain.from_iterable(
            read_verdicts(part.path) for part in parts_of(self._files).verdicts
        ):
            if row.verifier != self._judge.name:
                continue
            if row.error is not None:
                self._failed.add(row.key)
                self._judged.remove(row.key)
                self._done.remove(row.key)
                continue
            self._failed.remove(row.key)
            self._judged.add(row.key)
            if row.fingerprint == self._judge.fingerprint and not self._options.is_fresh:
                self._done.add(row.key)
                self._remember(row.key, row.reward)
        if self._options.where:
            self._picked = self._matching(self._options.where)
        if self._sample is not None and self._sample.count is not None:
            self._largest_hash = self._hash_of_sample(self._sample.count)

    def _remember(self, key: Key, reward: float | None) -> None:
        if reward is None:
            self._reward_by_number.pop(number_of(key), None)
        else:
            self._reward_by_number[number_of(key)] = reward

    def is_wanted(self, rollout: Rollout) -> bool:
        """Whether to judge a rollout now; an already judged one is only counted."""
        if not self._is_picked(rollout):
            return False
        if rollout.key in self._done:
            self._count_again(rollout.key)
            return False
        return True

    def is_group_wanted(self, group: list[Rollout]) -> bool:
        """Whether to judge a group now: as a whole, if any of its rollouts is owed."""
        if any(self._is_picked(rollout) and rollout.key not in self._done for rollout in group):
            return True
        for rollout in group:
            self.is_wanted(rollout)
        return False

    def _is_picked(self, rollout: Rollout) -> bool:
        if self._picked is not None and rollout.key not in self._picked:
            return False
        if not self._is_sampled(rollout.key):
            return False
        return not self._options.is_failed_only or self._has_failed(rollout)

    def _count_again(self, key: Key) -> None:
        if key in self._seen:
            return
        self._seen.add(key)
        self.already += 1
        reward = self._reward_by_number.get(number_of(key))
        if reward is None:
            self.already_unjudged += 1
        else:
            self.already_judged += 1
            if self._rewards is not None:
                self._rewards.add_rollout(key, reward)

    def _has_failed(self, rollout: Rollout) -> bool:
        """Whether this verifier's verdict failed, in a later verification or during the collection."""
        if rollout.key in self._failed or rollout.key in self._judged:
            return rollout.key in self._failed
        return rollout.reward is None and rollout.own.verifier in (None, self._judge.name)

    def _is_sampled(self, key: Key) -> bool:
        if self._sample is None:
            return True
        if self._sample.share is not None:
            return hash_of(key) < self._sample.share * 2**64
        return self._largest_hash is None or hash_of(key) <= self._largest_hash

    def _hash_of_sample(self, count: int) -> int | None:
        """Hash threshold below which exactly `count` rollouts of the run lie; None if it has no more."""
        keys = KeySet()
        smallest: list[int] = []
        for rollout in RolloutReader(self._files.rollouts, self._files):
            if rollout.key in keys or (self._picked is not None and rollout.key not in self._picked):
                continue
            keys.add(rollout.key)
            if len(smallest) < count:
                heapq.heappush(smallest, -hash_of(rollout.key))
            else:
                heapq.heappushpop(smallest, -hash_of(rollout.key))
        return -smallest[0] if len(keys) > count else None

    def _matching(self, where: str) -> KeySet:
        try:
            from rollforge.index import open_index
        except ImportError as error:
            raise UsageError(
                "--where needs the index, which this installation lacks",
                hint="pip install rollforge again, with its dependencies",
            ) from error
        keys = KeySet()
        with open_index(self._files.name) as index:
            table = index.table(columns=["task", "rollout"], where=where)
        for task, rollout in zip(table["task"].to_pylist(), table["rollout"].to_pylist(), strict=True):
            keys.add((task, rollout))
        return keys


def number_of(key: Key) -> int:
    """The key as one integer, which takes a third of the memory of a tuple."""
    return key[0] << 24 | key[1]


def hash_of(key: Key) -> int:
    """A stable pseudo-random integer below 2**64."""
    data = b"%d:%d" % key
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def grouped(reader: RolloutReader) -> Iterator[list[Rollout]]:
    """Rollouts grouped by task, for any line order; only one group is in memory."""
    if reader.files.is_sharded:
        yield from _grouped_shards(reader)
        return
    offsets: dict[int, dict[int, tuple[int, int]]] = {}
    offset = 0
    with reader.path.open("rb") as file:
        for number, line in enumerate(bounded_lines(file), start=1):
            rollout = reader.parse(number, line)
            if rollout is not None:
                offsets.setdefault(rollout.task, {})[rollout.rollout] = (offset, number)
            offset = file.tell()
        again = RolloutReader(reader.path)
        for task, samples in offsets.items():
            group = []
            for sample in sorted(samples):
                file.seek(samples[sample][0])
                rollout = again.parse(samples[sample][1], file.readline())
                if rollout is not None:
                    group.append(msgspec.structs.replace(rollout, task=task, rollout=sample))
            if group:
                yield group


def _grouped_shards(reader: RolloutReader) -> Iterator[list[Rollout]]:
    """Groups of a sharded run: each group is in one shard, and one shard is in memory at a time."""
    held: dict[int, dict[int, Rollout]] = {}
    shard = None
    number = 0
    for part in parts_of(reader.files).rollouts:
        if part.path.parent.parent != shard:
            yield from groups_of(held)
            held, shard = {}, part.path.parent.parent
        for line in part.lines():
            number += 1
            rollout = reader.parse(number, line)
            if rollout is not None:
                held.setdefault(rollout.task, {})[rollout.rollout] = rollout
    yield from groups_of(held)


def groups_of(held: dict[int, dict[int, Rollout]]) -> Iterator[list[Rollout]]:
    """Groups of rollouts in memory, with tasks and samples ascending."""
    for task in sorted(held):
        yield [held[task][sample] for sample in sorted(held[task])]
