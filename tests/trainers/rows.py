"""The rows that a prepared folder holds, read with nothing that could change them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq


def written(place: Path, split: str) -> list[dict]:
    """Of one split, in the order of its files."""
    rows: list[dict] = []
    for path in sorted(place.glob(f"{split}*.jsonl")):
        rows += [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    for path in sorted(place.glob(f"{split}*.parquet")):
        rows += pq.read_table(path).to_pylist()
    return rows
