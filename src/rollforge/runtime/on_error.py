"""Cleans up after a block that raises: an exception, an interrupt or a cancellation. It is never swallowed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType


class OnError:
    """`with OnError(undo):` calls `undo` when the block raises."""

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        """Nothing is done before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._undo()


class OnErrorAwait:
    """`async with OnErrorAwait(undo):` awaits `undo(error)` when the block raises."""

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[BaseException], Awaitable[object]]) -> None:
        self._undo = undo

    async def __aenter__(self) -> None:
        """Nothing is done before."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._undo(error)
