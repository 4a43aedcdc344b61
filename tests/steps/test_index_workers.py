"""Workers that index: one with a large part answers while it works."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rollforge.executors.foreman import Assignment
from rollforge.index import index_units
from rollforge.steps import indexing
from rollforge.steps.indexing import IndexOpening, IndexOrders, IndexReport, IndexWorker
from tests.builders import make_rollout, write_rows


async def test_a_worker_answers_while_it_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "ANSWER_EVERY_S", 0.0)
    run = tmp_path / "rollouts.jsonl"
    write_rows(run, [make_rollout(task) for task in range(200)])
    worker, units = IndexWorker(), index_units(run)
    await worker.handle(msgspec.msgpack.encode(IndexOpening(folder=str(Path.cwd()), units=units)))

    async def ask(*units: int) -> IndexReport:
        orders = IndexOrders(units=[Assignment(unit) for unit in units])
        return msgspec.msgpack.decode(await worker.handle(msgspec.msgpack.encode(orders)), type=IndexReport)

    report = await ask(0)
    assert report.done == [] and not report.is_hungry
    while not report.done:
        report = await ask()
    assert report.done == [0] and report.is_hungry
    assert any((tmp_path / "rollouts_index").iterdir())
