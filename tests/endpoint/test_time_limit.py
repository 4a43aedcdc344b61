"""One timer for many awaits: each runs out on its own, and a cancellation from elsewhere stays one."""

from __future__ import annotations

import asyncio

import pytest

from rollforge.endpoint.time_limit import TimeLimit


async def test_what_takes_too_long_raises_a_timeout_that_names_the_cancellation() -> None:
    with pytest.raises(TimeoutError) as raised, TimeLimit(0.01):
        await asyncio.sleep(60)
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)


async def test_work_in_time_is_left_alone_and_leaves_nothing_behind() -> None:
    limit = TimeLimit(60)
    with limit:
        await asyncio.sleep(0)
    assert not limit._begun and not limit._expired


async def test_each_of_many_runs_out_after_its_own_time() -> None:
    limit = TimeLimit(0.05)
    loop = asyncio.get_running_loop()

    async def wait(before: float) -> float:
        await asyncio.sleep(before)
        began = loop.time()
        with pytest.raises(TimeoutError), limit:
            await asyncio.sleep(60)
        return loop.time() - began

    took = await asyncio.gather(*(wait(number * 0.01) for number in range(8)))
    assert min(took) >= 0.045


async def test_it_can_be_used_again_by_the_same_task() -> None:
    limit = TimeLimit(0.01)
    for _ in range(3):
        with pytest.raises(TimeoutError), limit:
            await asyncio.sleep(60)
    with limit:
        await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_a_cancellation_from_elsewhere_stays_one() -> None:
    limit = TimeLimit(60)

    async def wait() -> None:
        with limit:
            await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not limit._begun


async def test_a_cancellation_beside_a_timeout_wins() -> None:
    limit = TimeLimit(0.01)

    async def wait() -> None:
        with limit:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.02)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


@pytest.mark.parametrize(("outer_s", "inner_s", "first"), [(0.01, 60, "outer"), (60, 0.01, "inner")])
async def test_the_shorter_of_two_nested_limits_is_the_one_that_runs_out(
    outer_s: float, inner_s: float, first: str
) -> None:
    ended = []
    try:
        with TimeLimit(outer_s):
            try:
                with TimeLimit(inner_s):
                    await asyncio.sleep(60)
            except TimeoutError:
                ended.append("inner")
    except TimeoutError:
        ended.append("outer")
    assert ended == [first]
