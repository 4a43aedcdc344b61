"""Distributes numbered units of work to workers until all are done, even if workers are lost.

It knows units only by number; the step defines units and messages (`Talk`). A lost worker's unit is assigned again and marked as
lost, so that its next owner need not wait for a heartbeat to expire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

import msgspec

from rollforge.errors import IncompleteError
from rollforge.executors.base import Executor, Hand, Introduction, Message, WorkerLost, refuse_differences
from rollforge.runtime.typed_decoding import decode_msgpack

logger = logging.getLogger(__name__)

SILENT_S = 120.0
"""Workers answer at least every few seconds; one that is silent for this long counts as lost."""
SLICE_S = 5.0
"""Silence is counted in slices of this length: when this process is stopped for hours, only one of them passes."""
OPENING_S = 600.0
"""Timeout for opening a run: a large verifier may load for minutes."""
AGAIN_S = 3.0
"""Pause before a unit that another process owns is tried again."""
IDLE_S = 0.2
ALONE_S = 60.0
"""When all workers are lost: time limit for the first replacement to start."""


class Assignment(msgspec.Struct, frozen=True, array_like=True):
    """A unit to work on."""

    unit: int
    is_lost: bool = False
    """Whether its previous owner is known to have ended."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Effect of a worker's report on its units."""

    done: list[int] = []
    """Units that are finished, or that this session gives up."""
    again: list[int] = []
    """Units that another process owns, to be tried again later."""
    is_hungry: bool = False
    """Whether the worker can start another unit now."""
    has_ended: bool = False


class Talk(Protocol):
    """The messages of one step, between foreman and workers."""

    def opening(self, workers: int) -> Message:
        """The first message: what to open."""
        ...

    def orders(self, name: str, units: list[Assignment], *, is_last: bool) -> Message:
        """The next message to a worker, or the final one."""
        ...

    def report(self, name: str, answer: Message) -> Progress:
        """Interpret a worker's report."""
        ...

    def lost(self, name: str, units: list[int], reason: str) -> None:
        """Handle a lost worker; its units are assigned again."""
        ...


class Foreman:
    """Runs one step's units on one executor's workers."""

    def __init__(
        self, executor: Executor, target: str, units: Iterable[int], talk: Talk, mine: Introduction
    ) -> None:
        self._executor = executor
        self._target = target
        self._talk = talk
        self._mine = mine
        self._waiting: deque[Assignment] = deque(Assignment(unit) for unit in units)
        self._later: list[tuple[float, int]] = []
        self._held: dict[str, set[int]] = {}
        self._count = 0
        self._is_stopping = False
        self._over = asyncio.Event()
        self.is_shut = asyncio.Event()
        """Whether all workers have ended."""

    @property
    def left(self) -> int:
        """Units that are not done."""
        return len(self._waiting) + len(self._later) + sum(map(len, self._held.values()))

    @property
    def has_waiting(self) -> bool:
        """Whether some units have not been started."""
        return bool(self._waiting or self._later)

    @property
    def workers(self) -> int:
        """Number of active workers."""
        return len(self._held)

    def stop(self) -> None:
        """Assign no more units; running units end as the step's messages define."""
        self._is_stopping = True

    async def run(self) -> None:
        """Return when every unit is done, or the work was stopped and all workers have ended."""
        if not self.left:
            self.is_shut.set()
            return
        try:
            hands = await self._executor.start(self._target)
            self._count = len(hands)
            opened = await asyncio.gather(*(self._opened(hand) for hand in hands))
            introductions = {
                hand.name: one
                for hand, one in zip(hands, opened, strict=True)
                if isinstance(one, Introduction)
            }
            refuse_differences(self._mine, introductions)
            async with asyncio.TaskGroup() as group:
                for hand, one in zip(hands, opened, strict=True):
                    self._held[hand.name] = set()
                    if isinstance(one, Introduction):
                        group.create_task(self._attend(hand, group))
                    elif introductions:
                        group.create_task(self._replace(hand, group, str(one)))
                    else:
                        raise one
        except BaseExceptionGroup as group_of_errors:
            raise _first(group_of_errors) from None
        finally:
            await self._executor.close()
            self.is_shut.set()
        if self.left and not self._is_stopping:
            raise IncompleteError(
                f"all workers are lost, and {self.left:,} parts of the work are not done",
                hint="the same command resumes; see what is owed: rollforge status RUN",
            )

    async def _opened(self, hand: Hand) -> Introduction | IncompleteError:
        """The worker's introduction, or the error of a worker that is lost before it has introduced itself."""
        try:
            return await self._open(hand)
        except IncompleteError as error:
            return error

    async def _open(self, hand: Hand) -> Introduction:
        try:
            async with asyncio.timeout(OPENING_S):
                answer = await hand.ask(self._talk.opening(self._count))
        except (WorkerLost, TimeoutError) as error:
            raise IncompleteError(
                f"{hand.name} did not start: {error or 'no answer'}", hint="its stderr says why"
            ) from error
        return decode_msgpack(answer, Introduction)

    async def _attend(self, hand: Hand, group: asyncio.TaskGroup) -> None:
        """Exchange messages with one worker until it ends or is lost."""
        is_hungry, has_ended = True, False
        try:
            while not has_ended:
                units = [] if self._is_stopping else self._next(is_hungry=is_hungry)
                self._held[hand.name].update(one.unit for one in units)
                is_last = not units and not self._held[hand.name] and self._is_over()
                answer = await _answer(hand, self._talk.orders(hand.name, units, is_last=is_last))
                progress = self._talk.report(hand.name, answer)
                self._held[hand.name].difference_update(progress.done, progress.again)
                self._later += [(time.monotonic() + AGAIN_S, unit) for unit in progress.again]
                is_hungry, has_ended = progress.is_hungry, progress.has_ended
                if is_hungry and not self._waiting:
                    await asyncio.sleep(IDLE_S)
        except (WorkerLost, TimeoutError) as error:
            await self._replace(hand, group, str(error) or f"{hand.name} was silent for {SILENT_S:.0f} s")
            return
        del self._held[hand.name]
        if self._is_over():
            self._over.set()

    def _is_over(self) -> bool:
        """Whether no unit will be assigned any more: none waits, and no worker holds one that could become lost."""
        return self._is_stopping or self.left == 0

    def _next(self, *, is_hungry: bool) -> list[Assignment]:
        """At most one unit for the worker that asks: the next one if it is hungry; a lost one in any case, since a busy
        worker may stay busy for minutes.
        """
        if not is_hungry and not (self._waiting and self._waiting[0].is_lost):
            return []
        now = time.monotonic()
        for entry in [one for one in self._later if one[0] <= now]:
            self._later.remove(entry)
            self._waiting.append(Assignment(entry[1]))
        return [self._waiting.popleft()] if self._waiting else []

    async def _replace(self, hand: Hand, group: asyncio.TaskGroup, reason: str) -> None:
        units = sorted(self._held.pop(hand.name))
        logger.warning("%s; %d units are handed out again", reason, len(units))
        self._waiting.extendleft(Assignment(unit, is_lost=True) for unit in reversed(units))
        self._talk.lost(hand.name, units, reason)
        closing = group.create_task(_closed(hand))
        if self._is_over():
            await closing
            return
        while (fresh := await self._replacement(hand)) is not None:
            try:
                refuse_differences(self._mine, {fresh.name: await self._open(fresh)})
            except IncompleteError as error:  # it died as well; the executor says when to give up
                logger.warning("%s", error)
                continue
            self._held[fresh.name] = set()
            group.create_task(self._attend(fresh, group))
            return

    async def _replacement(self, lost: Hand) -> Hand | None:
        """A replacement for a lost worker, as soon as there is room: a new node may join hours later.

        None when the work is over, when the executor cannot provide more workers, or when no worker is left and none can be
        started for `ALONE_S`.
        """
        alone_since = time.monotonic()
        while not self._is_over():
            making = asyncio.create_task(self._executor.replace(lost))
            over = asyncio.create_task(self._over.wait())
            try:
                await asyncio.wait({making, over}, return_when=asyncio.FIRST_COMPLETED)
            finally:  # also when another worker's error ends the work: no attempt outlives the executor
                over.cancel()
                if not making.done():
                    making.cancel()
                    await asyncio.wait({making})
            if making.cancelled():
                return None
            try:
                fresh = making.result()
            except WorkerLost as error:
                logger.warning("%s", error)
                return None
            now = time.monotonic()
            alone_since = now if self._held else alone_since
            if fresh is not None or now - alone_since > ALONE_S:
                return fresh
            await asyncio.sleep(AGAIN_S)
        return None


async def _answer(hand: Hand, message: Message) -> Message:
    """The worker's answer.

    Raises:
        TimeoutError: it was silent for `SILENT_S`, in which this process ran.
    """
    asking = asyncio.ensure_future(hand.ask(message))
    try:
        for _ in range(max(1, round(SILENT_S / SLICE_S))):
            await asyncio.wait({asking}, timeout=SLICE_S)
            if asking.done():
                return asking.result()
        raise TimeoutError
    finally:
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking})


async def _closed(hand: Hand) -> None:
    try:
        await hand.close()
    except (WorkerLost, OSError) as error:
        logger.debug("%s: %s", hand.name, error)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of an exception group."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
