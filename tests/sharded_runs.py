"""A small finished run of shards, made without collecting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from rollforge.store.shard_plan import ShardPlan, create_plan, even_ranges
from rollforge.store.shard_storage import DiskStorage
from rollforge.store.shards import take


def write_sharded_run(
    run: Path, line: Callable[[int, int], bytes], *, tasks: int, samples: int, shards: int
) -> Path:
    """Write a run whose rows, of `line(task, sample)`, are in the order of samples within each shard."""
    run.mkdir()
    task_lines = "".join(f'{{"_ng_task_index":{task}}}\n' for task in range(tasks))
    (run / "rollouts_tasks.jsonl").write_text(task_lines)
    (run / "rollouts_run.json").write_text(json.dumps({"rollforge": "0"}))
    storage = DiskStorage(run / "shards")
    plan = ShardPlan(
        run="r", created=1.0, fingerprint={}, tasks=tasks, samples=samples, tasks_bytes=len(task_lines), tasks_sha256="",
        ranges=even_ranges(tasks, shards),
    )  # fmt: skip
    create_plan(storage, plan)
    for shard, within in enumerate(plan.ranges):
        lease = take(storage, plan, shard)
        assert lease is not None
        path = shard_rollouts(run, shard)
        path.parent.mkdir(parents=True)
        keys = [(task, sample) for sample in range(samples) for task in range(within.first, within.end)]
        path.write_bytes(b"".join(line(*key) for key in keys))
        lease.end("complete", finished=len(keys))
    return run


def shard_rollouts(run: Path, shard: int) -> Path:
    """The rollouts of a shard's first epoch."""
    return run / "shards" / f"{shard:05d}" / "e1" / "rollouts.jsonl"
