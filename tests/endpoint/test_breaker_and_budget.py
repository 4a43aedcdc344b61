"""An outage costs a few requests, and retries a share of the fresh ones."""

from __future__ import annotations

from rollforge.endpoint.breaker import LONGEST_PAUSE_S, Breaker, RetryBudget


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    while breaker.state == "closed":
        breaker.fail(now)
    return breaker


def test_it_opens_after_a_run_of_failures_and_lets_one_request_probe() -> None:
    breaker = opened()
    assert breaker.wait_s(0.5) > 0
    assert breaker.wait_s(1.0) == 0.0
    breaker.begin()
    assert breaker.wait_s(1.0) == float("inf"), "one probe at a time"
    breaker.succeed()
    assert breaker.state == "closed" and breaker.wait_s(1.0) == 0.0


def test_failed_probes_wait_twice_as_long_each_time_up_to_a_bound() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(10):
        now += breaker.wait_s(now)
        assert breaker.wait_s(now) == 0.0
        breaker.begin()
        breaker.fail(now)
        waits.append(breaker.wait_s(now))
    assert waits[:4] == [2.0, 4.0, 8.0, 16.0] and waits[-1] == LONGEST_PAUSE_S


def test_failures_between_answers_do_not_open_it() -> None:
    breaker = Breaker()
    for _ in range(200):
        breaker.fail(0.0)
        breaker.succeed()
    assert breaker.state == "closed"


def test_an_address_where_nothing_listens_opens_it_at_once() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.fail(0.0, is_unreachable=True)
    assert breaker.state == "open"


def test_a_cancelled_probe_lets_another_one_try() -> None:
    breaker = opened()
    assert breaker.wait_s(2.0) == 0.0
    breaker.begin()
    breaker.release()
    assert breaker.wait_s(2.0) == 0.0


def test_retries_never_exceed_their_share_of_fresh_requests() -> None:
    budget = RetryBudget(0.2, head_start=10)
    granted = 0
    for _ in range(1000):
        budget.count_fresh()
        granted += budget.take()
    assert granted == budget.spent <= 0.2 * (10 + 1000)
    assert budget.denied == 1000 - granted


def test_a_budget_of_nothing_grants_nothing() -> None:
    budget = RetryBudget(0.0)
    budget.count_fresh()
    assert not budget.take()
