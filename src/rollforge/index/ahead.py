"""This module has work done by other threads: a piece for each of many things, with results in order, or one piece beside our own.

It pays where the work lets go of the interpreter's lock: the compiled modules, numpy, reading and writing. Plain threads are enough:
`concurrent.futures` loads the logging of Python, for which short commands would wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Event, Thread
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def mapped(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int, *, ahead: int | None = None
) -> Iterator[Result]:
    """`function` of each item, in order.

    At most `ahead` items, by default one per thread, are taken before their turn: as many results may wait to be handed over.
    """
    if threads < 2:
        yield from map(function, items)
        return
    pieces: SimpleQueue[_Piece[Item, Result] | None] = SimpleQueue()

    def work() -> None:
        while (piece := pieces.get()) is not None:
            piece.do(function)

    team: list[Thread] = []
    pending: deque[_Piece[Item, Result]] = deque()
    try:
        for _ in range(threads):
            thread = Thread(target=work, daemon=True)
            thread.start()
            team.append(thread)
        for item in items:
            pending.append(_Piece(item))
            pieces.put(pending[-1])
            if len(pending) > (threads if ahead is None else ahead):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for piece in pending:
            piece.is_wanted = False
        for _ in team:
            pieces.put(None)
        for thread in team:
            thread.join()


def beside(function: Callable[[], Result], name: str, *, outlives_us: bool = False) -> Callable[[], Result]:
    """Let another thread, of this name, call a function now; what is returned waits for its result, whenever that is wanted.

    Python ends without waiting for it, unless it `outlives_us`.
    """
    piece: _Piece[None, Result] = _Piece(None)
    Thread(target=lambda: piece.do(lambda _: function()), name=name, daemon=not outlives_us).start()
    return piece.result


class _Piece(Generic[Item, Result]):
    """One item, and what becomes of it."""

    def __init__(self, item: Item) -> None:
        self._item = item
        self._is_done = Event()
        self._found: list[Result] = []
        self._error: BaseException | None = None
        self.is_wanted = True

    def do(self, function: Callable[[Item], Result]) -> None:
        try:
            if self.is_wanted:
                self._found.append(function(self._item))
        except BaseException as error:  # noqa: BLE001  (raised where the result is asked for)
            self._error = error
        finally:
            self._is_done.set()

    def result(self) -> Result:
        self._is_done.wait()
        if self._error is not None:
            raise self._error
        return self._found[0]
