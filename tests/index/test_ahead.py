"""Work done ahead in threads comes back in order, not further ahead than said, and with its errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from rollforge.index.ahead import mapped


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    def slow_first(number: int) -> int:
        time.sleep(0.002 if number % threads == 0 else 0)
        return number * number

    assert list(mapped(slow_first, range(40), threads)) == [number * number for number in range(40)]


def test_items_are_taken_only_a_few_ahead_of_the_results() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield number

    for result in mapped(lambda number: number, items(), 3):
        assert taken <= result + 1 + 3


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_comes_in_place_of_its_result_and_ends_the_work(threads: int) -> None:
    done = []

    def work(number: int) -> int:
        if number == 4:
            raise ValueError("the fifth")
        done.append(number)
        return number

    results = mapped(work, range(1000), threads)
    assert [next(results) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="the fifth"):
        next(results)
    assert len(done) <= 4 + threads


def test_two_are_at_work_at_once_and_nobody_when_the_caller_has_enough() -> None:
    together = threading.Barrier(2, timeout=30)

    def meet(number: int) -> int:
        if number < 2:
            together.wait()
        return number

    before = threading.active_count()
    results = mapped(meet, range(1000), 2)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
