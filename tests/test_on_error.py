"""Cleaning up after a block: after errors, interrupts and cancellations, and not after a block that ends well."""

from __future__ import annotations

import asyncio

import pytest

from rollforge.runtime.on_error import OnError, OnErrorAwait


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_whatever_ends_a_block_is_undone_and_goes_on(error: type[BaseException]) -> None:
    undone: list[str] = []
    with pytest.raises(error), OnError(lambda: undone.append("undone")):
        raise error
    assert undone == ["undone"]


def test_a_block_that_ends_well_or_returns_is_not_undone() -> None:
    undone: list[str] = []

    def result() -> int:
        with OnError(lambda: undone.append("undone")):
            return 1

    assert (result(), undone) == (1, [])


async def test_a_cancelled_block_awaits_its_undoing_with_the_error() -> None:
    errors: list[BaseException] = []

    async def undo(error: BaseException) -> None:
        await asyncio.sleep(0)
        errors.append(error)

    async def block() -> None:
        async with OnErrorAwait(undo):
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [type(error) for error in errors] == [asyncio.CancelledError]
    async with OnErrorAwait(undo):
        pass
    assert len(errors) == 1
