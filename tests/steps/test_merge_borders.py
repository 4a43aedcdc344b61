"""Merging shards: numbers that decide what is said or done, each at its border and one step beside it."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rollforge.steps import merge
from rollforge.steps.merge import _EarlyDisk, _Merger
from rollforge.store.rollout_parts import RunPart, _part
from tests.store.test_shards import make_plan


def row(task: int, sample: int, is_ours: bool = True) -> bytes:
    key = b'"_ng_task_index":%d,"_ng_rollout_index":%d' % (task, sample)
    return b"{%s}\n" % key if is_ours else b'{"a":1,%s}\n' % key


def merged(folder: Path, ids: list[int], *shards: list[bytes]) -> tuple[_Merger, list[bytes]]:
    merger = _Merger(make_plan(tasks=len(ids), samples=2, shards=len(shards)), np.array(ids))
    parts = []
    for number, lines in enumerate(shards):
        path = folder / f"{number}.jsonl"
        path.write_bytes(b"".join(lines))
        parts.append([RunPart(path=path, length=path.stat().st_size, index=folder)] if lines else [])
    target = io.BytesIO()
    merger.write(parts, target)
    return merger, target.getvalue().splitlines(keepends=True)


@pytest.mark.parametrize("held", [1 << 20, 0])
def test_rows_of_shards_are_written_once_in_order_of_their_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(merge, "HELD_BYTES", held)
    monkeypatch.setattr(merge, "BLOCK", 50)
    first = [
        row(1, 1),
        row(0, 0, is_ours=False),
        row(0, 1),
        row(1, 1),
        row(0, 2),
        row(9, 0),
        b"torn\n",
        b"\n",
        row(-1, 0),
    ]
    second = [row(3, 1, is_ours=False), row(2, 0), row(2, 1), b'{"a":"' + b"x" * 200 + b'"}\n']
    made, lines = merged(tmp_path, [0, 1, 2, 3], first, second)
    assert lines == [
        row(0, 0, is_ours=False),
        row(0, 1),
        row(1, 1),
        row(2, 0),
        row(2, 1),
        row(3, 1, is_ours=False),
    ]
    assert (made.written, made.missing, made.doubled) == (6, 2, 1)
    assert [(one.task, one.rollout, one.shard) for one in made.gaps] == [(1, 0, 0), (3, 0, 1)]
    assert [(one.task, one.rollout, one.shard) for one in made.doubles] == [(1, 1, 0)]
    assert made.unreadable >= 1


def test_shards_whose_tasks_do_not_ascend_are_merged_at_once(tmp_path: Path) -> None:
    made, lines = merged(tmp_path, [5, 3], [row(5, 0), row(5, 1)], [row(3, 1), row(3, 0)])
    assert lines == [row(3, 0), row(3, 1), row(5, 0), row(5, 1)] and made.missing == 0
    made, lines = merged(tmp_path, [3, 5], [row(3, 1)], [])
    assert (lines, made.written, made.missing) == ([row(3, 1)], 1, 3)


def test_twenty_gaps_are_named_and_all_are_counted(tmp_path: Path) -> None:
    made, _ = merged(tmp_path, list(range(11)), [row(0, 0)])
    assert (len(made.gaps), made.missing) == (20, 21)


@pytest.mark.parametrize(("written", "syncs"), [(3, 0), (4, 1)])
def test_a_growing_file_is_synced_early_from_a_size_on(
    written: int, syncs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    done = SimpleNamespace(done=lambda: True, result=lambda: None)
    pool = SimpleNamespace(submit=lambda act, handle: asked.append(handle) or done)
    monkeypatch.setattr(merge, "SYNCED_BYTES", 4)
    file: Any = SimpleNamespace(tell=lambda: written, fileno=lambda: 7)
    disk = _EarlyDisk(cast("Any", pool), file)
    for _ in range(2):
        disk.begin()
    assert asked == [7] * syncs


@pytest.mark.parametrize(
    ("files", "length"), [({"rollouts": 5}, 5), ({"rollouts": 0}, None), ({}, None), ({"failures": 5}, None)]
)
def test_an_epoch_that_wrote_nothing_has_no_part(
    tmp_path: Path, files: dict[str, int], length: int | None
) -> None:
    counted = {kind: SimpleNamespace(length=size, name=f"{kind}.jsonl") for kind, size in files.items()}
    run: Any = SimpleNamespace(rollouts=tmp_path / "rollouts.jsonl", shards=tmp_path)
    (tmp_path / "rollouts.jsonl").write_text("12345")
    part = _part(
        run, "rollouts", 0, cast("Any", SimpleNamespace(number=1, end=SimpleNamespace(files=counted)))
    )
    assert (part.length if part else None) == length
    assert _part(run, "rollouts", 0, cast("Any", SimpleNamespace(number=1, end=None))) is None
