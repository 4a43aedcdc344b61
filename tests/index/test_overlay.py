"""Overlays: which rows count, and how many of the others are named."""

from __future__ import annotations

from pathlib import Path

from rollforge.index import open_index
from rollforge.index.overlay import MAX_DUPLICATES
from tests.builders import make_rollout, write_rows


def test_at_most_ten_thousand_duplicates_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    rows = [make_rollout(task, 0) for task in range(10_001)]
    write_rows(tmp_path / "rollouts.jsonl", rows * 2)
    with open_index(tmp_path / "rollouts.jsonl") as index:
        assert (len(index.duplicates), index.duplicate_count, len(index)) == (10_000, 10_001, 10_001)
    assert MAX_DUPLICATES == 10_000
