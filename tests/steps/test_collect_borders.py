"""Collecting: numbers that decide what is said or done, each at its border and one step beside it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rollforge.endpoint.batch_lines import RequestId
from rollforge.errors import Failure, UsageError
from rollforge.steps.collect import live as live_module
from rollforge.steps.collect import machinery
from rollforge.steps.collect.batch import rounds
from rollforge.steps.collect.batch.batch_options import BatchOptions
from rollforge.steps.collect.batch.results import BatchResults
from rollforge.steps.collect.bottleneck import Load, bottleneck, human_seconds
from rollforge.steps.collect.collect_options import Allowance, CollectOptions, check_bounds
from rollforge.steps.collect.cost_meter import CostMeter, UsableGroups
from rollforge.steps.collect.live import Live, _histogram
from rollforge.steps.collect.schedule import SampleRequest
from rollforge.steps.collect.shards.allotment import Allotment
from rollforge.steps.collect.shards.shard_worker import shares
from rollforge.store import Ledger


def blamed(
    *, slots: int = 100, verify_slots: int = 100, load: dict[str, Any] | None = None, **seconds: float
) -> str:
    live = Live(expected=100, finished=0)
    live.fresh = 100
    for name, value in seconds.items():
        setattr(live, name, value)
    fields: dict[str, Any] = {"elapsed_s": 10.0, "cpu_s": 1.0, "lag_s": 0.0, "commit_s": 0.0}
    return bottleneck(
        live, Load(**fields | {"model_slots": slots, "verify_slots": verify_slots} | (load or {}))
    )


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({"elapsed_s": 0.0}, "unknown"), ({"commit_s": 5.0}, "model"), ({"commit_s": 5.1}, "disk: 51%"),
        ({"rate_wait_s": {"requests": 30.0}}, "model"), ({"rate_wait_s": {"requests": 31.0}}, "limited by"),
        ({"cpu_s": 8.5}, "model"), ({"cpu_s": 8.6}, "client"), ({"lag_s": 0.05}, "model"), ({"lag_s": 0.06}, "client"),
    ],
)  # fmt: skip
def test_a_machine_is_blamed_above_its_share(load: dict[str, Any], said: str) -> None:
    assert blamed(model_s=100.0, load=load).startswith(said)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ({"timeout_s": 50.0}, "model"), ({"timeout_s": 51.0}, "time-outs"), ({"tool_start_s": 50.0}, "model"),
        ({"tool_start_s": 51.0}, "tools: 51% of a rollout's time goes into starting"), ({"tool_s": 50.0}, "model"),
        ({"tool_s": 51.0}, "tools: 51% of a rollout's time is spent"), ({"verify_s": 100.0}, "model"),
        ({"verify_s": 101.0}, "verifier"), ({"verify_wait_s": 100.0}, "model"), ({"verify_wait_s": 101.0}, "verifier"),
    ],
)  # fmt: skip
def test_a_part_of_a_rollout_is_blamed_above_its_share(seconds: dict[str, float], said: str) -> None:
    assert blamed(model_s=100.0, **seconds).startswith(said)


@pytest.mark.parametrize(
    ("slots", "verify_slots", "verify_s", "said"),
    [
        (16, 128, 100.0, "model: 44% of a rollout's time is spent waiting for the model, whose 16 slots are taken"),
        (17, 128, 100.0, "verifier"), (16, 20, 100.0, "model"), (16, 19, 100.0, "verifier"),
        (16, 128, 80.0, "model: 50% of a rollout's time is spent waiting for the model"),
    ],
)  # fmt: skip
def test_the_fuller_slots_are_blamed_from_half_full_on(
    slots: int, verify_slots: int, verify_s: float, said: str
) -> None:
    told = blamed(slots=slots, verify_slots=verify_slots, model_s=80.0, verify_s=verify_s)
    assert told.startswith(said) and (("taken" in told) is (said.startswith("model") and verify_s > 80.0))


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00099, "990 µs"), (0.001, "1 ms"), (0.0994, "99 ms"), (0.1, "0.1 s")]
)
def test_durations_change_their_unit_at_a_millisecond_and_a_tenth(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(("budget", "may_exceed"), [(None, False), (400, True), (401, False)])
def test_rollouts_in_flight_are_reckoned_at_one_and_a_half_times_the_mean(
    budget: int | None, may_exceed: bool
) -> None:
    live = Live(expected=9, finished=0)
    live.tokens, live.tokens_elsewhere = 60, 40
    live.tokens_per_rollout.add(0, 100.0)
    assert live.may_exceed_tokens(budget, pending=2, prompt_bytes=0, max_output=None) is may_exceed


@pytest.mark.parametrize(("max_output", "budget"), [(90, 300), (None, 3030), ("90", 3030)])
def test_before_the_first_rollout_a_prompt_and_the_longest_answer_are_reckoned(
    max_output: object, budget: int
) -> None:
    live = Live(expected=9, finished=0)
    for one, may_exceed in ((budget, True), (budget + 1, False)):
        assert live.may_exceed_tokens(one, pending=2, prompt_bytes=40, max_output=max_output) is may_exceed


def test_recent_rewards_are_the_last_hundred_of_two_hundred() -> None:
    live = Live(expected=9, finished=0)
    for number in range(199):
        live.judged_elsewhere(number, float(number >= 100))
    assert live._recent_mean() is None
    live.judged_elsewhere(199, 0.0)
    assert live._recent_mean() == 0.99
    assert _histogram([1.0, 1.0]) == () == _histogram([]) and _histogram([0.0, 1.0, 0.5]) == (
        1,
        0,
        0,
        0,
        1,
        0,
        0,
        1,
    )


def test_rates_are_of_the_last_minute_and_of_at_least_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(live_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    live = Live(expected=9, finished=0)
    assert live.rates() == (None, None)
    for clock.now, live.fresh, live.tokens in ((40.0, 10, 100), (70.0, 30, 200), (100.0, 40, 700)):
        rates = live.rates()
        live.tick()
    assert rates == (0.5, 10.0)
    for after, rate in ((0.4, 50 / 200.4), (0.5, 10 / 0.5)):
        live = Live(expected=9, finished=0)
        live.started = 0.0
        live._window.clear()
        live._window.append((200.0, 40, 400))
        clock.now, live.fresh, live.tokens = 200.0 + after, 50, 500
        assert live.rates()[0] == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "failed", "settled", "is_exceeded"),
    [
        ("2", 2, 2, False), ("2", 3, 3, True), ("0", 1, 1, True), ("10%", 5, 50, False), ("10%", 6, 50, True),
        ("0.1", 40, 49, False),
        ("0", 0, 0, False), ("100%", 50, 50, False), ("0.0", 1, 50, True),
    ],
)  # fmt: skip
def test_more_failures_than_allowed_stop_a_run(
    text: str, failed: int, settled: int, is_exceeded: bool
) -> None:
    assert Allowance.parse(text).is_exceeded(failed, settled) is is_exceeded


@pytest.mark.parametrize("text", ["101%", "1.5", "-1", "x", ""])
def test_an_allowance_is_a_count_or_a_share(text: str) -> None:
    with pytest.raises(UsageError, match="neither a count nor a share"):
        Allowance.parse(text)


@pytest.mark.parametrize(("value", "said"), [(1, None), (9, None), (0, "at least 1"), (10, "at most 9")])
def test_a_number_is_within_its_bounds(value: float, said: str | None) -> None:
    if said is None:
        check_bounds("-k", value, 1, 9)
        return
    with pytest.raises(UsageError, match=said):
        check_bounds("-k", value, 1, 9)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, None), ({"min_gap": 0.0, "min_spread": 0.0}, None), ({"min_gap": -0.1}, "0 or more"),
        ({"min_spread": -0.1}, "0 or more"),
        ({"band": (0.5, 0.5)}, None), ({"band": (0.6, 0.5)}, "above the second"), ({"verifier": None}, "nothing judges"),
        ({"no_verify": True}, "nothing judges"), ({"verifier": None, "agent": "x"}, None),
        ({"goal": None, "min_gap": -1.0}, None),
    ],
)  # fmt: skip
def test_a_goal_needs_something_that_judges_and_numbers_that_can_be(
    more: dict[str, Any], said: str | None
) -> None:
    fields = {"input": "t.jsonl", "out": "run", "model": "m", "goal": "dpo=5", "verifier": "exact"}
    options = CollectOptions(**fields | more)
    if said is None:
        options._check_goal()
        return
    with pytest.raises(UsageError, match=said):
        options._check_goal()


def test_a_rate_limit_halves_the_shares_once_in_five_seconds_and_they_grow_after_ten() -> None:
    allotment = Allotment("1-64")
    one: Any = SimpleNamespace(is_hungry=True, in_flight=1)
    assert (
        allotment.share("a", {"a": one}, 0.0) is None
        and allotment.share("a", {"a": one, "b": one}, 0.0) == 32
    )
    allotment.workers = 2
    assert allotment.share("a", {"a": one}, 100.0) == 32
    for now, halved in ((101.0, 16), (105.9, 16), (106.0, 8)):
        allotment.rate_limited(now)
        assert allotment.share("a", {"a": one}, now) == halved
    assert [allotment.share("a", {"a": one}, now) for now in (116.0, 116.1, 126.1, 126.2)] == [8, 10, 10, 13]
    fixed = Allotment("64")
    fixed.workers = 2
    fixed.rate_limited(100.0)
    assert fixed.share("a", {}, 100.0) == 32


def test_a_worker_without_work_has_no_share_until_it_asks() -> None:
    allotment = Allotment("1-60")
    allotment.workers = 2
    idle: Any = SimpleNamespace(is_hungry=True, in_flight=0)
    busy: Any = SimpleNamespace(is_hungry=False, in_flight=1)
    assert allotment.share("a", {"a": busy, "b": busy}, 0.0) == 30
    assert allotment.share("a", {"a": busy, "b": idle}, 0.0) == 60
    assert allotment.share("b", {"a": busy, "b": idle}, 0.0) == 30
    allotment.lost("b")
    assert allotment.share("a", {"a": busy}, 0.0) == 60


@pytest.mark.parametrize(
    ("limit", "workers", "each"), [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (1, 3, [1, 1, 1]), (8, 3, [3, 3, 2])]
)
def test_a_number_is_divided_as_evenly_as_possible(limit: int, workers: int, each: list[int]) -> None:
    assert shares(limit, workers) == each


def test_the_last_two_thousand_rewards_are_shown() -> None:
    live = Live(expected=9, finished=0)
    for number in range(2_001):
        live.judged_elsewhere(number, float(number > 0))
    assert _histogram(list(live._recent_rewards)) == () and len(live._recent_rewards) == 2_000


@pytest.mark.parametrize(
    ("kind", "status", "partial", "cost"),
    [
        ("transient", 400, None, 0.0), ("transient", 399, None, None), ("transient", None, None, None),
        ("permanent", None, None, 0.0),
        ("transient", 500, {"output": [{}]}, None), ("transient", 500, {"output": []}, 0.0),
    ],
)  # fmt: skip
def test_a_refused_request_costs_nothing(
    kind: Any, status: int | None, partial: object, cost: float | None
) -> None:
    failure = Failure("model", kind, "no", status=status)
    failure.partial = partial
    meter: Any = object.__new__(CostMeter)
    assert meter.of_failure(failure) == cost


def test_the_cost_of_a_usable_group_has_an_interval_from_two_groups_on() -> None:
    groups = UsableGroups()
    assert groups.cost() is None
    groups.add(1.0, is_usable=True)
    assert groups.cost() == (1.0, None, None)
    groups.add(3.0, is_usable=False)
    ratio, low, high = groups.cost() or pytest.fail()
    assert ratio == 4.0 and low is not None and high is not None and low <= 4.0 < high


@pytest.mark.parametrize(
    ("wanted", "soft", "high", "is_capped"),
    [
        ("8", 136, 8, False),
        ("8", 135, 7, True),
        ("4-8", 135, 7, True),
        ("auto", 135, 7, False),
        ("8", -1, 8, False),
        ("8", 5, 1, True),
    ],
)
def test_concurrency_is_capped_by_the_connections_that_may_be_open(
    wanted: str, soft: int, high: int, is_capped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = SimpleNamespace(
        RLIMIT_NOFILE=7,
        RLIM_INFINITY=-1,
        getrlimit=lambda _: (soft, soft),
        setrlimit=lambda *_: pytest.fail(),
    )
    monkeypatch.setattr(machinery, "resource", system)
    notes: list[str] = []
    assert machinery._affordable(wanted, notes).high == high and bool(notes) is is_capped


@pytest.mark.parametrize(
    ("name", "is_known"),
    [
        (RequestId("r", 1, 1, 999), True), (RequestId("r", 1, 1, 1000), False), (RequestId("r", 1, 2, 0), False),
        (RequestId("r", 2, 1, 0), False), (RequestId("s", 1, 1, 0), False), (None, False), (RequestId("r", 0, 0, 0), True),
    ],
)  # fmt: skip
def test_a_result_is_of_the_runs_tasks_samples_and_a_thousand_attempts(
    name: RequestId | None, is_known: bool
) -> None:
    plan: Any = SimpleNamespace(ledger=Ledger(np.arange(2), 2))
    assert (BatchResults(plan, "r", max_response_bytes=5)._key(name) is not None) is is_known


def test_a_results_line_beyond_the_longest_is_one_line(tmp_path: Path) -> None:
    plan: Any = SimpleNamespace(ledger=Ledger(np.arange(2), 2))
    results = BatchResults(plan, "r", max_response_bytes=5)
    results._longest = 10
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"x" * 9 + b"\n" + b"y" * 15 + b"\n\n" + b"z" * 10)
    results.add(path)
    assert (results.report.lines, results.report.unreadable) == (3, 3)


@pytest.mark.parametrize(
    ("failures", "more", "notice"),
    [
        (5, {}, "the verifier failed 5 times: boom"), (4, {}, "busy"), (4, {"down": 1}, "1 endpoints down"),
        (5, {"down": 2}, "waiting for u"),
        (5, {"has_answered": False}, "the verifier failed 5 times: boom"),
        (5, {"has_answered": False, "last_failure": "refused"}, "nothing answered yet; last failure: refused"),
    ],
)  # fmt: skip
def test_a_verifier_that_fails_once_in_twenty_verdicts_is_named(
    failures: int, more: dict[str, Any], notice: str
) -> None:
    states = ["open"] * more.get("down", 0) + ["closed"] * (2 - more.get("down", 0))
    points = [SimpleNamespace(url="u", breaker=SimpleNamespace(state=state)) for state in states]
    client = SimpleNamespace(
        has_answered=more.get("has_answered", True),
        last_failure=more.get("last_failure", ""),
        endpoints=points,
        is_draining=False,
    )
    live = Live(expected=9, finished=0)
    live.judged = 100
    for _ in range(failures):
        live.verifier_failed("boom")
    engine = SimpleNamespace(live=live, notice="busy", watch=SimpleNamespace(signals={}))
    running: Any = SimpleNamespace(client=client, engine=engine)
    assert machinery.Machinery._notice(running) == notice


@pytest.mark.parametrize(
    ("size", "most_bytes", "lines"),
    [
        (4, 99, [4, 2]),
        (5, 99, [4, 2]),
        (3, 99, [2, 2, 2]),
        (9, 20, [4, 2]),
        (9, 19, [2, 2, 2]),
        (9, 1, [2, 2, 2]),
        (1, 99, [1] * 6),
        (6, 30, [6]),
    ],
)
def test_a_file_of_requests_holds_whole_groups_up_to_its_limits(
    size: int, most_bytes: int, lines: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "MOST_BYTES", most_bytes)
    asks = deque(SampleRequest(position, [0, 1], "first") for position in range(3))
    engine = SimpleNamespace(
        next_ask=lambda: asks.popleft() if asks else None, put_back=asks.appendleft, begin=lambda count: None
    )
    writing: Any = SimpleNamespace(
        _pending=np.full(6, -1), _engine=engine, _is_pending=lambda position, sample: False, _may_exceed_budget=lambda *_: False,
        _writer=SimpleNamespace(lines=lambda position, samples: [b"12345"] * len(samples)),
        _options=SimpleNamespace(batch_size=size), _plan=SimpleNamespace(ledger=Ledger(np.arange(3), 2)),
    )  # fmt: skip
    made = []
    while some := rounds.BatchRounds._next_file(writing)[1]:
        made.append(len(some))
    assert made == lines


def test_a_budget_is_waited_for_only_while_requests_are_open() -> None:
    engine = SimpleNamespace(may_cost_too_much=lambda count: count >= 6)
    running: Any = SimpleNamespace(_engine=engine)
    asked = [
        rounds.BatchRounds._may_exceed_budget(running, open_, more)
        for open_, more in ((0, 9), (1, 5), (1, 4))
    ]
    assert asked == [False, True, False]


def test_answers_come_from_batches_in_each_of_three_modes_alone() -> None:
    assert not BatchOptions().uses_batches and not BatchOptions(batch=True).is_offline
    assert BatchOptions(batch=True).uses_batches
    for offline in (BatchOptions(write_batch="requests.jsonl"), BatchOptions(read_batch=("results.jsonl",))):
        assert offline.uses_batches and offline.is_offline
