"""Costs are a function of the rows and failures on disk: exact after a resume, null where unknown, and a budget holds."""

from __future__ import annotations

from math import fsum
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import Exit, UsageError
from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.steps.collect.cost_meter import UsableGroups
from rollforge.steps.metrics import summarize_run
from rollforge.steps.status import read_status
from rollforge.store import RunFiles, read_manifest
from rollforge.store.costs import read_costs
from tests.steps.test_collect import collect, grid, keys, read_rows, write_tasks

PRICE = "3/15,cached=1.5,reasoning=20"


def by_hand(row: dict[str, Any]) -> float:
    usage = row["response"]["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    reasoning = usage["output_tokens_details"]["reasoning_tokens"]
    return (
        (usage["input_tokens"] - cached) * 3
        + cached * 1.5
        + (usage["output_tokens"] - reasoning) * 15
        + reasoning * 20
    ) / 1e6


async def test_every_row_has_its_cost_and_every_place_the_same_total(tmp_path: Path) -> None:
    write_tasks(tmp_path, 8)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(tmp_path, server, samples=3, price=PRICE)
    files = RunFiles(tmp_path / "run")
    rows = read_rows(files.rollouts)
    assert [row["_rf"]["cost"] for row in rows] == pytest.approx([by_hand(row) for row in rows])
    manifest, metrics = read_manifest(files), summarize_run(tmp_path / "run")
    assert manifest is not None and manifest.cost is not None and result.cost is not None
    assert metrics.cost is not None
    totals = {result.cost.total, manifest.cost.total, metrics.cost.total}
    status = read_status(tmp_path / "run").cost
    assert status is not None and totals == {status.total}
    assert status.total == pytest.approx(fsum(map(by_hand, rows)), abs=1e-9)
    assert metrics.cost.per_rollout == pytest.approx(fsum(map(by_hand, rows)) / 24)


async def test_without_a_price_nothing_is_said_about_costs(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(tmp_path, server)
    assert result.cost is None and read_status(tmp_path / "run").cost is None
    assert all("cost" not in row["_rf"] for row in read_rows(RunFiles(tmp_path / "run").rollouts))


async def test_an_unknown_price_is_null_and_said(tmp_path: Path) -> None:
    pytest.importorskip("genai_prices", reason="the extra prices is not installed")
    write_tasks(tmp_path, 2)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(tmp_path, server, price="auto")
    assert result.cost is not None
    assert (result.cost.total, result.cost.rollouts, result.cost.unknown_rollouts) == (None, None, 2)
    assert any("price of simulated is not known" in note for note in result.notes)
    assert [row["_rf"]["cost"] for row in read_rows(RunFiles(tmp_path / "run").rollouts)] == [None, None]


async def test_a_budget_needs_a_price(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with pytest.raises(UsageError, match="--max-cost needs to know"):
        await collect(tmp_path, max_cost=1.0)


@pytest.mark.parametrize("concurrency", ["1", "64"])
async def test_the_budget_stops_between_groups_and_is_exceeded_by_less_than_one(
    tmp_path: Path, concurrency: str
) -> None:
    write_tasks(tmp_path, 30)
    async with SimulatedServer(SimulateOptions()) as server:
        settings: dict[str, Any] = {"samples": 4, "price": PRICE, "concurrency": concurrency}
        result = await collect(tmp_path, server, max_cost=0.05, **settings)
        rows = read_rows(RunFiles(tmp_path / "run").rollouts)
        assert (result.ending, result.exit_code) == ("cost", Exit.BUDGET_REACHED)
        costs: dict[int, float] = {}
        for row in rows:
            costs[row["_ng_task_index"]] = costs.get(row["_ng_task_index"], 0.0) + row["_rf"]["cost"]
        assert keys(rows) == grid(len(costs), 4), "only whole groups"
        assert 0.05 <= sum(costs.values()) < 0.05 + 2 * max(costs.values())
        again = await collect(tmp_path, server, max_cost=0.05, **settings)
        assert (again.exit_code, again.fresh) == (Exit.BUDGET_REACHED, 0), "what was spent before counts"
        whole = await collect(tmp_path, server, **settings)
    rows = read_rows(RunFiles(tmp_path / "run").rollouts)
    assert whole.cost is not None and whole.exit_code == Exit.DONE
    assert whole.cost.total == pytest.approx(fsum(map(by_hand, rows)), abs=1e-9)


async def test_a_run_in_pieces_costs_exactly_what_its_files_say(tmp_path: Path) -> None:
    write_tasks(tmp_path, 20)
    async with SimulatedServer(SimulateOptions(faults=("500=0.2", "filtered=0.1"))) as server:
        for pilot in (10, 20, None):
            result = await collect(
                tmp_path, server, samples=2, price=PRICE, pilot=pilot, retries=0, max_failures="100%"
            )
            tally = read_costs(RunFiles(tmp_path / "run"))
            assert result.cost is not None and result.cost.total == tally.dollars
    failures = read_rows(RunFiles(tmp_path / "run").failures)
    by_class = {row["class"]: row["_rf"]["cost"] for row in failures}
    assert by_class["transient"] == 0.0, "a 500 generated nothing"
    assert by_class["refused"] > 0, "a filtered answer was paid for"
    assert result.cost.failures == pytest.approx(fsum(row["_rf"]["cost"] for row in failures), abs=1e-9)


async def test_a_session_without_a_price_leaves_no_total_that_looks_complete(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6)
    async with SimulatedServer(SimulateOptions()) as server:
        priced = await collect(tmp_path, server, samples=2, price=PRICE)
        result = await collect(tmp_path, server, samples=4)
    status = read_status(tmp_path / "run").cost
    assert priced.cost is not None and result.cost is not None and status is not None
    assert result.cost.total == status.total == priced.cost.total
    assert result.cost.unknown_rollouts == status.unknown_rollouts == 12


async def test_a_torn_answer_may_have_been_paid_and_counts_as_unknown(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)
    async with SimulatedServer(SimulateOptions(faults=("torn=1,content_length=right",))) as server:
        result = await collect(tmp_path, server, price=PRICE, retries=0, attempts=1, max_failures="100%")
    assert result.cost is not None
    assert (result.cost.total, result.cost.unknown_failures) == (None, 4)


async def test_judges_are_counted_apart(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)
    async with SimulatedServer(SimulateOptions()) as server:
        result = await collect(
            tmp_path,
            server,
            price="3/15",
            judge_price="1/2",
            verifier="judge",
            verifier_options={"model": "judge", "base_url": server.base_url, "rubric": "Is it right?"},
        )
    rows = read_rows(RunFiles(tmp_path / "run").rollouts)
    paid = [
        (row["judge_input_tokens"] + 2 * row["judge_output_tokens"]) / 1e6
        for row in rows
        if "judge_input_tokens" in row
    ]
    assert result.cost is not None and paid
    assert [row["_rf"]["judge_cost"] for row in rows if "judge_input_tokens" in row] == pytest.approx(paid)
    assert result.cost.judges is not None and result.cost.judges >= fsum(paid) - 1e-9
    assert result.cost.total == pytest.approx((result.cost.rollouts or 0) + result.cost.judges)


async def test_a_pilot_forecasts_the_cost_with_an_interval(tmp_path: Path) -> None:
    write_tasks(tmp_path, 60)
    async with SimulatedServer(SimulateOptions()) as server:
        pilot = await collect(tmp_path, server, samples=4, price=PRICE, pilot=80)
        forecast = pilot.forecast
        assert forecast is not None and forecast.cost is not None and pilot.cost is not None
        assert forecast.cost.low is not None and forecast.cost.high is not None
        assert forecast.cost_per_usable_group is not None
        whole = await collect(tmp_path, server, samples=4, price=PRICE)
    assert whole.cost is not None and whole.cost.total is not None and pilot.cost.total is not None
    rest = whole.cost.total - pilot.cost.total
    assert forecast.cost.low <= rest <= forecast.cost.high
    metrics = summarize_run(tmp_path / "run").cost
    assert metrics is not None and metrics.per_usable_group is not None
    low, high = forecast.cost_per_usable_group.low, forecast.cost_per_usable_group.high
    assert low is not None and high is not None and low <= metrics.per_usable_group <= high


async def test_hours_in_flight_cost_what_the_files_say(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    async with SimulatedServer(SimulateOptions(latency=0.05)) as server:
        result = await collect(tmp_path, server, price_per_hour=3600.0)
    tally = read_costs(RunFiles(tmp_path / "run"))
    assert (
        result.cost is not None and result.cost.total == pytest.approx(tally.active_s) and tally.active_s > 0
    )
    assert result.cost.rollouts is None


def test_dollars_per_usable_group_have_an_interval_over_tasks() -> None:
    groups = UsableGroups()
    assert groups.cost() is None
    for number in range(100):
        groups.add(1.0, is_usable=number % 4 == 0)
    found = groups.cost()
    assert found is not None and found[1] is not None and found[2] is not None
    value, low, high = found
    assert value == 4.0 and low < 4.0 < high and high - low < 3.0
