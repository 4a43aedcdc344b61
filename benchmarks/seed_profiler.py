"""The profiler people have today, written anew from its description: everything in memory, pandas, one apply per task.

It is the baseline that `benchmarks.profile` measures against, and needs pandas, orjson and wandb, whose histogram the original keeps
for every field of every task.

    python -m benchmarks.seed_profiler materialized_inputs.jsonl rollouts.jsonl out-stem
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

TASK, ROLLOUT = "_ng_task_index", "_ng_rollout_index"


def describe(frame: Any) -> Any:
    """All statistics of one group, stacked."""
    from pandas import DataFrame
    from wandb import Histogram

    def bins(column: Any) -> Any:
        known = column.dropna()
        return None if known.empty else Histogram(known)

    spread = frame.std()
    if spread.isna().all():
        whole = frame.columns[frame.notna().all()]
        spread[whole] = spread[whole].fillna(0)
    parts = [
        frame.mean(),
        frame.max(),
        frame.min(),
        frame.median(),
        spread,
        frame.apply(bins, axis=0, result_type="reduce"),
    ]
    return DataFrame(parts, index=["mean", "max", "min", "median", "std", "histogram"]).stack(
        future_stack=True
    )


def grouped(frame: Any, key: str) -> list[dict[str, Any]]:
    """One dict per group, without what is undefined."""
    found = frame.groupby(key).apply(describe, include_groups=False)
    found.columns = found.columns.map("/".join)
    records = found.reset_index().to_dict("records")
    return [{k: v for k, v in record.items() if v is not None and v == v} for record in records]


def main() -> None:
    import orjson
    from pandas import DataFrame

    inputs, rollouts, stem = sys.argv[1:4]
    with Path(inputs).open("rb") as file:
        rows = [orjson.loads(line) for line in file]
    with Path(rollouts).open("rb") as file:
        results = [orjson.loads(line) for line in file]
    results.sort(key=lambda result: (result[TASK], result[ROLLOUT]))
    numbers, first_row = [], {}
    for row, result in zip(rows, results, strict=False):
        merged = result | (result["response"].get("usage") or {})
        kept: dict[str, Any] = {"agent_name": row["agent_ref"]["name"]}
        for name, value in merged.items():
            if isinstance(value, bool | int | float):
                kept[name] = int(value) if isinstance(value, bool) else value
        numbers.append(kept)
        first_row.setdefault(row[TASK], row)
    frame = DataFrame.from_records(numbers)
    tasks = grouped(frame.drop(columns=[ROLLOUT, "agent_name"]), TASK)
    agents = grouped(frame.drop(columns=[ROLLOUT, TASK]), "agent_name")
    with Path(f"{stem}_reward_profiling.jsonl").open("wb") as file:
        for record in tasks:
            sample = {k: v for k, v in first_row[record[TASK]].items() if k not in (TASK, ROLLOUT)}
            kept = {k: v for k, v in record.items() if not k.startswith("histogram") and k != TASK}
            file.write(orjson.dumps(kept | {"sample": sample}) + b"\n")
    plain = [{k: v for k, v in agent.items() if not k.startswith("histogram")} for agent in agents]
    Path(f"{stem}_agent_metrics.json").write_bytes(orjson.dumps(plain))


if __name__ == "__main__":
    main()
