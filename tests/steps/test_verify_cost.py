"""A judge of its own price: `verify` writes what every verdict cost, totals follow, and a budget holds."""

from __future__ import annotations

from math import fsum
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.simulate import SimulatedServer, SimulateOptions
from rollforge.steps.metrics import summarize_run
from rollforge.steps.status import read_status
from rollforge.steps.verify import SpreadVerification, Verification, VerifyOptions
from rollforge.steps.verify.tally import VerifySummary
from rollforge.store import RunFiles, read_manifest
from rollforge.store.costs import CostFacts
from tests.steps.test_collect import collect, read_rows, write_tasks


async def collected(folder: Path, server: SimulatedServer, **more: Any) -> Path:
    write_tasks(folder, 6)
    await collect(folder, server, samples=3, **more)
    return folder / "run"


async def judged(run: Path, server: SimulatedServer, **more: Any) -> VerifySummary:
    settings = {"model": "judge", "base_url": server.base_url, "rubric": "Is it right?"}
    return await Verification(VerifyOptions(run=run, verifier="judge", options=settings, **more)).run()


def costs(run: Path) -> list[float]:
    rows = read_rows(RunFiles(run).verdicts)
    paid = [(row["judge_input_tokens"] + 2 * row["judge_output_tokens"]) / 1e6 for row in rows]
    assert [row["_rf"]["judge_cost"] for row in rows] == pytest.approx(paid)
    return paid


def everywhere(run: Path) -> list[CostFacts]:
    manifest, metrics, status = read_manifest(RunFiles(run)), summarize_run(run), read_status(run)
    assert manifest is not None and manifest.cost and metrics.cost and status.cost
    return [manifest.cost, metrics.cost, status.cost]


async def test_a_later_judge_is_counted_apart_in_every_place(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions()) as server:
        run = await collected(tmp_path, server, price="3/15")
        before = read_status(run).cost
        summary = await judged(run, server, judge_price="1/2")
        again = await judged(run, server, judge_price="1/2", is_fresh=True)
    paid = costs(run)
    assert before is not None and before.judges is None and len(paid) == 36
    assert summary.cost is not None and again.cost is not None
    assert summary.cost.session == pytest.approx(fsum(paid[:18])), "what this verification paid"
    assert again.cost.total == pytest.approx(fsum(paid)), "every verdict was paid, repeated ones too"
    for found in everywhere(run):
        assert found.judges == pytest.approx(fsum(paid))
        assert found.rollouts == before.rollouts
        assert found.total == pytest.approx((before.total or 0) + fsum(paid))
        assert found.judge_price and "$1 in, $2 out" in found.judge_price


async def test_a_run_without_a_price_has_judges_that_cost_something_and_rollouts_that_are_unknown(
    tmp_path: Path,
) -> None:
    async with SimulatedServer(SimulateOptions()) as server:
        run = await collected(tmp_path, server)
        await judged(run, server, judge_price="1/2")
    for found in everywhere(run):
        assert found.judges == pytest.approx(fsum(costs(run)))
        assert found.rollouts is None and found.unknown_rollouts == 18


async def test_an_unknown_price_of_the_judge_is_null_and_said(tmp_path: Path) -> None:
    pytest.importorskip("genai_prices")
    async with SimulatedServer(SimulateOptions()) as server:
        run = await collected(tmp_path, server)
        summary = await judged(run, server, judge_price="no-such-model")
    assert summary.cost is not None and summary.cost.session is None and summary.cost.unknown == 18
    assert any("not known" in note for note in summary.notes)
    assert {row["_rf"]["judge_cost"] for row in read_rows(RunFiles(run).verdicts)} == {None}


async def test_without_a_judge_price_nothing_is_said_about_costs(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions()) as server:
        run = await collected(tmp_path, server)
        summary = await judged(run, server)
    assert summary.cost is None and read_status(run).cost is None
    assert all("_rf" not in row for row in read_rows(RunFiles(run).verdicts))


async def test_a_budget_stops_the_judge_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions()) as server:
        run = await collected(tmp_path, server)
        summary = await judged(run, server, judge_price="1/2", max_cost=0.004)
        spent = fsum(costs(run))
        assert summary.is_over_budget and summary.state == "incomplete"
        assert summary.rollouts == 18 and summary.owed == 18 - summary.judged > 0
        assert 0.002 < spent <= 0.004, "it comes near to the budget and never exceeds it"
        more = await judged(run, server, judge_price="1/2", max_cost=1.0)
    assert more.state == "done" and not more.is_over_budget and more.judged == 18
    assert len(costs(run)) == 18, "nothing is judged, or paid, twice"


async def test_workers_that_share_a_verification_count_the_same(tmp_path: Path) -> None:
    async with SimulatedServer(SimulateOptions()) as server:
        run = await collected(tmp_path, server)
        settings = {"model": "judge", "base_url": server.base_url, "rubric": "Is it right?"}
        options = VerifyOptions(run=run, verifier="judge", options=settings, judge_price="1/2")
        summary = await SpreadVerification(options, on="local", workers=2).run()
    assert summary.cost is not None and summary.judged == 18
    assert summary.cost.session == summary.cost.total == pytest.approx(fsum(costs(run)))
    assert everywhere(run)[0].judges == summary.cost.total


@pytest.mark.parametrize("given", [{"max_cost": 1.0}, {"max_cost": -1.0, "judge_price": "1/2"}])
def test_a_budget_that_cannot_be_kept_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--max-cost"):
        Verification(VerifyOptions(run=tmp_path, verifier="exact", **given))


async def test_status_reads_no_text_while_the_manifest_counts_every_line(
    tmp_path: Path,
) -> None:
    async with SimulatedServer(SimulateOptions()) as server:
        run = await collected(tmp_path, server, price="3/15")
        result = await judged(run, server, judge_price="1/2")
    assert result.state == "done"
    known = read_status(run)
    files = RunFiles(run)
    text = files.rollouts.read_bytes()
    files.rollouts.write_bytes(b"x" * (len(text) - 1) + b"\n")  # equally long, and nobody could read it
    assert read_status(run).cost == known.cost and read_status(run).finished == 18
    files.rollouts.write_bytes(
        text + text.splitlines(keepends=True)[0]
    )  # a line more: everything is counted anew
    longer = read_status(run).cost
    assert longer is not None and known.cost is not None and longer.rollouts is not None
    assert longer.rollouts > (known.cost.rollouts or 0)
