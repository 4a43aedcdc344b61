"""The experience buffer: append, claim, acknowledge, give back.

An experience is waiting, claimed or done, and every change of state is one committed transaction. A
killed trainer loses nothing (its claims come back) and sees nothing twice (what it acknowledged is done for
good; an acknowledgement that comes after the lease was lost is refused). A full buffer makes the producer
wait, or evicts by a stated rule and counts.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollforge.buffer.batch import ON_FULL, Batch, BufferFull, BufferOptions, LeaseLost
from rollforge.buffer.database import Database, Row, connect
from rollforge.buffer.owner import is_dead, own_name
from rollforge.buffer.samplers import Draw, Query, Sampler, Waiting, find_sampler
from rollforge.errors import DataError, UsageError
from rollforge.experience import Experience, from_bytes, to_bytes
from rollforge.records import from_json, to_json
from rollforge.registry import did_you_mean

WAITING, CLAIMED, DONE, EVICTED = 0, 1, 2, 3
COUNTERS = ("waiting", "claimed", "done", "appended", "acknowledged", "duplicates", "evicted", "stale")

_INSERT = (
    "insert into experiences"
    " (uid, task, taskset, model_version, reward, difficulty, priority, created, state, uses, body)"
    " values (?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?) on conflict (uid) do nothing"
)
_RENEW = (
    "update experiences set task = ?, taskset = ?, model_version = ?, reward = ?, difficulty = ?, priority = ?, body = ?"
    " where uid = ? and state = 0"
)
_COUNT = (
    "insert into counters (name, value) values (?, ?)"
    " on conflict (name) do update set value = counters.value + excluded.value"
)
_FREE = "update experiences set state = 0 where id {ids}"
_USED = "update experiences set uses = uses + 1, state = 2, body = null where uses + 1 >= ? and id {ids}"
_USED_BEFORE = "update experiences set uses = uses + 1, state = 0 where state = 1 and id {ids}"
RESTART_PATIENCE_S = 60.0
"""How long an append waits for a database that is unreachable."""
_POLL_SECONDS = 0.02
_LONGEST_POLL_SECONDS = 0.5


def open_buffer(address: str | Path, **options: Any) -> Buffer:
    """The buffer at a path or a `postgresql://` URL, made if it is not there. Options are those of
    `BufferOptions`."""
    return Buffer(connect(address), BufferOptions(**options))


class Buffer:
    """A buffer in one database. One object per process; several processes may share the database."""

    def __init__(self, database: Database, options: BufferOptions) -> None:
        if options.capacity is not None and options.capacity < 1:
            raise UsageError(
                f"a buffer of capacity {options.capacity} holds nothing",
                hint="set a capacity of at least 1, or none for no limit",
            )
        if options.on_full not in ON_FULL:
            near = did_you_mean(options.on_full, list(ON_FULL))
            raise UsageError(
                f"on_full={options.on_full!r} is not known{near}", hint=f"known: {', '.join(ON_FULL)}"
            )
        if options.max_uses < 1:
            raise UsageError(
                f"max_uses must be at least 1, not {options.max_uses}",
                hint="max_uses=1 lets every experience be used once",
            )
        self.options = options
        self._database = database
        self._owner = own_name()

    def append(self, experiences: Iterable[Experience], *, timeout: float | None = None) -> int:
        """Store experiences durably and return how many were new. An experience with a stored `id` is not stored again and needs
        no room; while it waits, the newest version replaces it.

        Raises:
            BufferFull: the buffer stayed full for `timeout` seconds (None waits for ever).
        """
        rows = [self._row(experience) for experience in experiences]
        deadline = None if timeout is None else time.monotonic() + timeout
        added = 0
        while True:
            rows, new = self._append_some(rows)
            added += new
            if not rows:
                return added
            if deadline is not None and time.monotonic() >= deadline:
                raise BufferFull(
                    f"the buffer is full ({self.options.capacity}): {len(rows)} experiences stayed outside",
                    hint="let the trainer catch up, raise capacity, or open it with on_full='evict-oldest'",
                )
            time.sleep(_POLL_SECONDS)

    def known_tasks(self, prefix: str) -> list[str]:
        """Names of tasks that begin with `prefix` and whose experiences wait, are claimed, or were used."""
        sql = "select distinct task from experiences where substr(task, 1, ?) = ?"
        return [row[0] for row in self._database.rows(sql, (len(prefix), prefix))]

    def _append_some(self, rows: list[Row]) -> tuple[list[Row], int]:
        """Append rows while there is room; returns the remaining rows and how many were new.

        A server that restarts is waited for. Trying again is safe: what did arrive is known by its id.
        """
        given_up_at = time.monotonic() + RESTART_PATIENCE_S
        while True:
            try:
                with self._database.transaction():
                    unknown = self._without_known(rows)
                    taken = self._make_room(len(unknown))
                    new = self._insert(unknown[:taken])
                return unknown[taken:], new
            except self._database.operational_error as error:
                if not self._database.retryable(error) or time.monotonic() >= given_up_at:
                    raise
                time.sleep(_LONGEST_POLL_SECONDS)

    def _row(self, experience: Experience) -> Row:
        if math.isnan(experience.priority):
            raise UsageError(
                f"experience {experience.id} has a priority that is no number",
                hint="leave the priority out, or set a finite number",
            )
        created = self.options.clock() if experience.created is None else experience.created
        return (
            experience.id,
            experience.task,
            experience.taskset,
            experience.model_version,
            experience.reward,
            experience.difficulty,
            experience.priority,
            created,
            experience.uses,
            to_bytes(experience),
        )

    def _without_known(self, rows: list[Row]) -> list[Row]:
        """The rows whose ids are new. A known row that still waits is updated, since its group may have grown."""
        sql = "select uid from experiences where uid {ids}"
        stored_ids = {row[0] for row in self._database.rows(sql, (), [row[0] for row in rows])}
        again = [row for row in rows if row[0] in stored_ids]
        self._database.many(_RENEW, [(*row[1:7], row[9], row[0]) for row in again])
        self._add({"duplicates": len(again)})
        return [row for row in rows if row[0] not in stored_ids]

    def _make_room(self, wanted: int) -> int:
        """How many rows may be inserted now, after evicting if `on_full` says so."""
        capacity = self.options.capacity
        if capacity is None or not wanted:
            return wanted
        counters = self.counters()
        free = max(capacity - counters["waiting"] - counters["claimed"], 0)
        if self.options.on_full == "wait" or free >= wanted:
            return min(free, wanted)
        order = "id" if self.options.on_full == "evict-oldest" else "priority, id"
        surplus = min(wanted, capacity) - free
        sql = f"select id from experiences where state = 0 order by {order} limit ?"
        ids = [row[0] for row in self._database.rows(sql, (surplus,))]
        self._drop(ids, "evicted")
        return free + len(ids)

    def _drop(self, ids: Sequence[int], counter: str) -> None:
        if ids:
            self._database.change("update experiences set state = 3, body = null where id {ids}", (), ids)
            self._add({counter: len(ids), "waiting": -len(ids)})

    def _insert(self, rows: Sequence[Row]) -> int:
        if not rows:
            return 0
        added = self._database.many(_INSERT, rows)
        self._add({"appended": added, "waiting": added, "duplicates": len(rows) - added})
        return added

    def claim(
        self,
        count: int,
        *,
        sampler: str | Sampler = "fifo",
        version: int | None = None,
        timeout: float | None = None,
        partial: bool = False,
    ) -> Batch | None:
        """Take `count` experiences under a lease; None when that many do not come.

        It waits until there are enough, the producer has called `finish` (then the rest comes as a smaller
        batch), or `timeout` seconds have passed (then None, or with `partial` what there is).
        """
        if count < 1:
            raise UsageError(f"a claim takes at least 1 experience, not {count}", hint="claim(1) or more")
        chosen = find_sampler(sampler)
        started, pause = time.monotonic(), _POLL_SECONDS
        while True:
            waited = time.monotonic() - started
            is_late = timeout is not None and waited >= timeout
            is_last = is_late or self.is_finished
            takes_less = self.is_finished or (partial and is_late)
            batch = self._try_claim(count, chosen, version, waited, takes_less=takes_less)
            if batch is not None or is_last:
                return batch
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_SECONDS)

    def _try_claim(
        self, count: int, sampler: Sampler, version: int | None, waited: float, *, takes_less: bool
    ) -> Batch | None:
        now = self.options.clock()
        token = uuid.uuid4().hex
        with self._database.transaction():
            self._take_back(now)
            draws = f"draws:{sampler.name}"
            draw = Draw(count=count, seed=self.options.seed, number=self._counter(draws), version=version)
            self._drop_stale(sampler, draw)
            ids = self._choose(sampler, draw)
            if len(ids) < count and not (takes_less and ids):
                return None
            self._database.change("update experiences set state = 1 where id {ids}", (), ids)
            until = now + self.options.lease_seconds
            claim = (token, self._owner, until, to_json(ids).decode())
            self._database.change("insert into claims values (?, ?, ?, ?)", claim)
            self._add({draws: 1, "waiting": -len(ids), "claimed": len(ids)})
            sql = "select id, uses, created, body from experiences where id {ids}"
            rows = self._database.rows(sql, (), ids)
            counters = self.counters()
        experience_by_id = {row[0]: _experience(row) for row in rows}
        if len(experience_by_id) < len(ids):
            raise DataError(
                f"the buffer is damaged: {len(ids) - len(experience_by_id)} of {len(ids)} claimed experiences cannot be found",
                hint="fill another one from the run: rollforge experiences RUN --buffer NEW.db",
            )
        return Batch(
            token=token,
            ids=ids,
            experiences=[experience_by_id[row] for row in ids],
            version=version,
            waited=waited,
            claimed_at=now,
            counters=counters,
        )

    def _choose(self, sampler: Sampler, draw: Draw) -> list[int]:
        if sampler.query is not None:
            return self._ids(sampler.query(draw), draw.count)
        assert sampler.choose is not None
        names = sorted(sampler.columns)
        wanted = ", ".join(["id", *names])
        rows = self._database.rows(f"select {wanted} from experiences where state = 0 order by id")
        columns = list(zip(*rows, strict=True)) if rows else [()] * (len(names) + 1)
        numbers = {
            name: np.array(column, dtype=np.float64) for name, column in zip(names, columns[1:], strict=True)
        }
        return sampler.choose(Waiting(ids=np.array(columns[0], dtype=np.int64), columns=numbers), draw)

    def _drop_stale(self, sampler: Sampler, draw: Draw) -> None:
        if sampler.stale is not None:
            self._drop(self._ids(sampler.stale(draw), None), "stale")

    def _ids(self, query: Query, limit: int | None) -> list[int]:
        sql = f"select id from experiences where state = 0 and {query.where} order by {query.order}"
        values = query.values if limit is None else (*query.values, limit)
        return [row[0] for row in self._database.rows(sql if limit is None else f"{sql} limit ?", values)]

    def acknowledge(self, batch: Batch) -> None:
        """Mark the batch as used: it is not served again, or below `max_uses` waits for its next use.

        Raises:
            LeaseLost: the lease ran out and the experiences went back; nothing was acknowledged.
        """
        with self._database.transaction():
            self._end_claim(batch)
            done = self._database.change(_USED, (self.options.max_uses,), batch.ids)
            if done < len(batch.ids):
                self._database.change(_USED_BEFORE, (), batch.ids)
            count = len(batch.ids)
            self._add({"acknowledged": count, "claimed": -count, "done": done, "waiting": count - done})

    def give_back(self, batch: Batch) -> None:
        """Return an unused batch to the buffer, at its old position."""
        with self._database.transaction():
            self._end_claim(batch)
            self._free(batch.ids)

    def renew(self, batch: Batch) -> None:
        """Extend the lease: for steps that take longer than `lease_seconds`."""
        until = self.options.clock() + self.options.lease_seconds
        with self._database.transaction():
            if not self._database.change("update claims set until = ? where token = ?", (until, batch.token)):
                raise _lease_lost(batch)

    def _end_claim(self, batch: Batch) -> None:
        if not self._database.change("delete from claims where token = ?", (batch.token,)):
            raise _lease_lost(batch)

    def _take_back(self, now: float) -> None:
        """Return claims to waiting if their lease ran out or their claimant on this machine is dead."""
        for token, owner, until, ids in self._database.rows("select token, owner, until, ids from claims"):
            if until < now or (owner != self._owner and is_dead(owner)):
                self._database.change("delete from claims where token = ?", (token,))
                self._free(from_json(ids))

    def _free(self, ids: Sequence[int]) -> None:
        self._database.change(_FREE, (), ids)
        self._add({"claimed": -len(ids), "waiting": len(ids)})

    def finish(self) -> None:
        """Declare that nothing more will be appended: claims then take the rest instead of waiting for full batches."""
        with self._database.transaction():
            self._add({"finished": 1})

    @property
    def is_finished(self) -> bool:
        """Whether the producer called `finish`."""
        return self._counter("finished") > 0

    def counters(self) -> dict[str, int]:
        """Numbers waiting, claimed and done now; appended, acknowledged, duplicate, evicted and stale since the buffer was made."""
        count_by_name = dict.fromkeys(COUNTERS, 0)
        for name, value in self._database.rows("select name, value from counters"):
            if name in count_by_name:
                count_by_name[name] = int(value)
        return count_by_name

    def __len__(self) -> int:
        """Number of waiting experiences."""
        return self._counter("waiting")

    def _counter(self, name: str) -> int:
        rows = self._database.rows("select value from counters where name = ?", (name,))
        return int(rows[0][0]) if rows else 0

    def _add(self, delta_by_counter: dict[str, int]) -> None:
        self._database.many(_COUNT, [(name, delta) for name, delta in delta_by_counter.items() if delta])

    def close(self) -> None:
        """Close the connection. Claims of this process last until it exits or their lease runs out."""
        self._database.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _lease_lost(batch: Batch) -> LeaseLost:
    return LeaseLost(
        f"the lease on {len(batch)} experiences ran out; they went back to the buffer",
        hint="give longer leases (lease_seconds), or call renew during long steps",
    )


def _experience(row: Row) -> Experience:
    try:
        experience = from_bytes(bytes(row[3]))
    except (TypeError, ValueError, DataError) as error:  # a body of another type, or of other bytes
        raise DataError(
            f"the buffer is damaged: experience {row[0]!r}: {error}",
            hint="fill another one from the run: rollforge experiences RUN --buffer NEW.db",
        ) from error
    experience.uses, experience.created = row[1], row[2]
    return experience
