"""The foreman: units of a lost worker go on at once, whoever is free and whoever is not."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from rollforge.errors import IncompleteError
from rollforge.executors.base import ExecutorOptions, Hand, Introduction, Message, WorkerLost
from rollforge.executors.foreman import Assignment, Foreman, Progress
from rollforge.executors.processes import Processes

MINE = Introduction.of_this_process()


class Order(msgspec.Struct, array_like=True):
    """What this step says to its workers."""

    units: list[Assignment]
    is_last: bool


class Answer(msgspec.Struct, array_like=True):
    """What they say."""

    done: list[int] = []
    has_ended: bool = False


class BusyTalk:
    """A step whose workers are never hungry again after their first unit."""

    def __init__(self) -> None:
        self.lost_units: list[int] = []

    def opening(self, workers: int) -> Message:
        return b"open"

    def orders(self, name: str, units: list[Assignment], *, is_last: bool) -> Message:
        return msgspec.msgpack.encode(Order(units, is_last))

    def report(self, name: str, answer: Message) -> Progress:
        said = msgspec.msgpack.decode(answer, type=Answer)
        return Progress(done=said.done, is_hungry=False, has_ended=said.has_ended)

    def lost(self, name: str, units: list[int], reason: str) -> None:
        self.lost_units += units


class HungryTalk(BusyTalk):
    """A step whose workers always want more."""

    def report(self, name: str, answer: Message) -> Progress:
        said = msgspec.msgpack.decode(answer, type=Answer)
        return Progress(done=said.done, is_hungry=len(said.done) < 2, has_ended=said.has_ended)


class LongWorker:
    """Works on its first unit until it is given another one; `dies` after its first."""

    def __init__(self, name: str, *, dies: bool) -> None:
        self.name = name
        self.taken: list[Assignment] = []
        self._dies = dies

    async def ask(self, message: Message) -> Message:
        await asyncio.sleep(0)
        if message == b"open":
            return msgspec.msgpack.encode(MINE)
        order = msgspec.msgpack.decode(message, type=Order)
        if self._dies and self.taken:
            raise WorkerLost(f"{self.name} is gone")
        self.taken += order.units
        done = [one.unit for one in self.taken] if len(self.taken) > 1 else []
        return msgspec.msgpack.encode(Answer(done, has_ended=order.is_last))

    async def close(self) -> None:
        pass


class GivenWorkers:
    """An executor with these workers, and `later` one that finds room at the third attempt."""

    def __init__(self, *hands: LongWorker, later: LongWorker | None = None) -> None:
        self._hands = hands
        self._later = later
        self.attempts = 0

    async def start(self, target: str) -> list[Hand]:
        return [*self._hands]

    async def replace(self, lost: Hand) -> Hand | None:
        self.attempts += 1
        return self._later if self.attempts == 3 else None

    async def close(self) -> None:
        pass


async def test_a_unit_of_a_lost_worker_does_not_wait_until_another_worker_has_nothing_to_do() -> None:
    dying, busy, talk = LongWorker("dying", dies=True), LongWorker("busy", dies=False), BusyTalk()
    async with asyncio.timeout(20):
        await Foreman(GivenWorkers(dying, busy), "a:Worker", range(2), talk, MINE).run()
    assert talk.lost_units == [0]
    assert busy.taken == [Assignment(1), Assignment(0, is_lost=True)]


async def test_a_replacement_is_asked_for_until_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only worker dies, and a node joins the cluster later."""
    monkeypatch.setattr("rollforge.executors.foreman.AGAIN_S", 0.01)
    dying, fresh = LongWorker("dying", dies=True), LongWorker("fresh", dies=False)
    executor = GivenWorkers(dying, later=fresh)
    foreman = Foreman(executor, "a:Worker", range(2), HungryTalk(), MINE)
    async with asyncio.timeout(20):
        await foreman.run()
    assert executor.attempts == 3 and foreman.left == 0
    assert [one.unit for one in fresh.taken] == [0, 1]


class SlowWorker(LongWorker):
    """Takes a moment to answer about its first unit, or never does."""

    def __init__(self, *, seconds: float, is_stopped: bool = False) -> None:
        super().__init__("slow", dies=False)
        self._seconds, self._is_stopped = seconds, is_stopped

    async def ask(self, message: Message) -> Message:
        if message != b"open" and self._seconds:
            if self._is_stopped:
                time.sleep(self._seconds)
            await asyncio.sleep(0.01 if self._is_stopped else self._seconds)
            self._seconds = 0.0
        return await super().ask(message)


async def test_only_silence_while_this_process_runs_makes_a_worker_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rollforge.executors.foreman.SILENT_S", 0.2)
    monkeypatch.setattr("rollforge.executors.foreman.SLICE_S", 0.02)
    monkeypatch.setattr("rollforge.executors.foreman.ALONE_S", 0.05)
    monkeypatch.setattr("rollforge.executors.foreman.AGAIN_S", 0.01)
    foreman = Foreman(
        GivenWorkers(SlowWorker(seconds=1.0, is_stopped=True)), "a:Worker", range(2), HungryTalk(), MINE
    )
    async with asyncio.timeout(20):
        await foreman.run()
        assert foreman.left == 0
        with pytest.raises(IncompleteError, match="all workers are lost"):
            await Foreman(
                GivenWorkers(SlowWorker(seconds=60)), "a:Worker", range(2), HungryTalk(), MINE
            ).run()


class NeverOpens(LongWorker):
    """Dies before it has introduced itself."""

    async def ask(self, message: Message) -> Message:
        await asyncio.sleep(0)
        raise WorkerLost(f"{self.name} is gone")


async def test_a_worker_that_dies_while_it_starts_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.executors.foreman.AGAIN_S", 0.01)
    fresh = LongWorker("fresh", dies=False)
    dying, first = LongWorker("dying", dies=True), NeverOpens("first", dies=True)
    foreman = Foreman(GivenWorkers(first, dying, later=fresh), "a:Worker", range(2), HungryTalk(), MINE)
    async with asyncio.timeout(20):
        await foreman.run()
    assert foreman.left == 0 and [one.unit for one in fresh.taken] == [0, 1]


async def test_workers_that_all_die_while_they_start_end_the_work() -> None:
    hands = NeverOpens("first", dies=True), NeverOpens("second", dies=True)
    async with asyncio.timeout(20):
        with pytest.raises(IncompleteError, match="first did not start: first is gone"):
            await Foreman(GivenWorkers(*hands), "a:Worker", range(2), BusyTalk(), MINE).run()


async def test_without_room_for_anybody_the_work_ends_as_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.executors.foreman.AGAIN_S", 0.01)
    monkeypatch.setattr("rollforge.executors.foreman.ALONE_S", 0.05)
    foreman = Foreman(GivenWorkers(LongWorker("dying", dies=True)), "a:Worker", range(2), BusyTalk(), MINE)
    async with asyncio.timeout(20):
        with pytest.raises(IncompleteError, match="all workers are lost, and 2 parts"):
            await foreman.run()


class SlowToReplace(GivenWorkers):
    """Makes replacements that never become ready, and says when one is given up."""

    def __init__(self, *hands: LongWorker) -> None:
        super().__init__(*hands)
        self.under_way = 0
        self.left_at_close = -1

    async def replace(self, lost: Hand) -> Hand | None:
        self.under_way += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.under_way -= 1
        return None

    async def close(self) -> None:
        self.left_at_close = self.under_way


async def test_no_replacement_is_under_way_when_an_error_ends_the_work() -> None:
    class Failing(LongWorker):
        async def ask(self, message: Message) -> Message:
            if message != b"open":
                await asyncio.sleep(0.1)
                raise RuntimeError("broken")
            return await super().ask(message)

    executor = SlowToReplace(LongWorker("dying", dies=True), Failing("failing", dies=False))
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match="broken"):
            await Foreman(executor, "a:Worker", range(2), BusyTalk(), MINE).run()
    assert executor.left_at_close == 0


async def test_processes_replaced_at_once_have_names_of_their_own() -> None:
    executor = Processes(ExecutorOptions(workers=2))
    try:
        hands = await executor.start("tests.executors.echo_worker:EchoWorker")
        fresh = await asyncio.gather(*(executor.replace(hand) for hand in hands))
        names = [hand.name for hand in (*hands, *fresh) if hand is not None]
        assert len(set(names)) == len(names) == 4
    finally:
        await executor.close()
