"""Resume of a large run: time until work can be dispatched, against one scan of its keys, and what a finished rollout holds.

The floor is a bare loop that decodes nothing but the two keys of each line. Both run in processes of their own, in turn.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import tempfile
import time
import tracemalloc
from pathlib import Path

from benchmarks.collect import measure_part

SAMPLES = 8
PROMPT_CHARACTERS = 2000
ANSWER_CHARACTERS = 5200
KINDS = ("floor", "resume", "held")


def write_run(folder: Path, rows: int) -> None:
    """A run in which every rollout but the last group's is finished: about 8 KB a row."""
    from benchmarks.fast_server import response_body

    filler = ("Consider the following statement carefully before you answer. " * 40)[:PROMPT_CHARACTERS]
    tasks = rows // SAMPLES + 1
    with (folder / "tasks.jsonl").open("w") as file:
        for task in range(tasks):
            file.write(json.dumps({"prompt": f"{task}: {filler}", "expected_answer": "42"}) + "\n")
    plan = make_plan(folder)
    plan.manifest.write(plan.files)
    params = json.dumps({"input": [{"role": "user", "content": filler, "type": "message"}]})
    rest = (
        f',"agent_ref":{{"name":"model_call"}},"reward":1.0,"responses_create_params":{params},'
        f'"response":{response_body(ANSWER_CHARACTERS).decode()},'
        '"_rf":{"started":1700000000.0,"seconds":1.5,"endpoint":"http://127.0.0.1/v1","requests":1}}\n'
    )
    with plan.files.rollouts.open("w", buffering=4 << 20) as file:
        for number in range(rows):
            task, rollout = divmod(number, SAMPLES)
            file.write(f'{{"_ng_task_index":{task},"_ng_rollout_index":{rollout}{rest}')


def make_plan(folder: Path):  # type: ignore[no-untyped-def]
    from rollforge.steps.collect.collect_options import CollectOptions
    from rollforge.steps.collect.plan import make_plan

    options = CollectOptions(
        input=str(folder / "tasks.jsonl"),
        out=str(folder / "run"),
        model="fast",
        samples=SAMPLES,
        verifier="exact",
    )
    return make_plan(options, needs=(), verifier_fingerprint=None, version="0", command=[])


def scan_keys(path: Path) -> int:
    """The floor: one pass that decodes the two keys of each line and keeps nothing."""
    import msgspec

    class Keys(msgspec.Struct):
        task: int = msgspec.field(name="_ng_task_index")
        rollout: int = msgspec.field(name="_ng_rollout_index")

    decode = msgspec.json.Decoder(Keys).decode
    count = 0
    with path.open("rb", buffering=4 << 20) as file:
        for line in file:
            decode(line)
            count += 1
    return count


def part(kind: str, folder: Path) -> None:
    """One measured part in a process of its own; prints one JSON line."""
    import rollforge.steps.collect.plan  # noqa: F401  (imports are not part of resuming)

    rollouts = folder / "run" / "rollouts.jsonl"
    if kind == "held":
        tracemalloc.start()
    resident = resident_bytes()
    cpu, wall = time.process_time(), time.monotonic()
    kept = scan_keys(rollouts) if kind == "floor" else make_plan(folder)
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    gc.collect()
    found = {"cpu_s": cpu, "wall_s": wall, "resident": resident_bytes() - resident}
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if kind == "held":
        found["held"], found["held_peak"] = tracemalloc.get_traced_memory()
    if kind != "floor":
        found["finished"], found["owed"] = kept.ledger.finished, kept.owed(3)
    print(json.dumps(found))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure(kind: str, folder: Path) -> dict[str, float]:
    return measure_part("resume", kind, str(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs=2)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--million", action="store_true", help="a run of a million rows (8 GB on disk)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the run is made (default: a temporary folder)")
    words = parser.parse_args()
    if words.part:
        part(words.part[0], Path(words.part[1]))
        return
    rows = 1_000_000 if words.million else words.rows
    with tempfile.TemporaryDirectory(dir=words.folder) as name:
        folder = Path(name)
        write_run(folder, rows)
        size = (folder / "run" / "rollouts.jsonl").stat().st_size
        floors, ours = [], []
        for _ in range(words.rounds):
            floors.append(measure("floor", folder))
            ours.append(measure("resume", folder))
        held = measure("held", folder)
    assert ours[0]["finished"] == rows, ours[0]
    floor_cpu, our_cpu = min(f["cpu_s"] for f in floors), min(o["cpu_s"] for o in ours)
    floor_wall, our_wall = min(f["wall_s"] for f in floors), min(o["wall_s"] for o in ours)
    print(
        f"resume of {rows:,} rows ({size / 1e9:.2f} GB): ready to dispatch in {our_cpu:.2f} CPU-s, "
        f"{our_cpu / floor_cpu:.2f}× one scan of the keys ({floor_cpu:.2f} CPU-s); wall {our_wall / floor_wall:.2f}×"
    )
    print(
        f"held per finished rollout: {held['held'] / rows:.1f} bytes (peak while reading {held['held_peak'] / rows:.1f}); "
        f"resident growth {min(o['resident'] for o in ours) / rows:.0f} bytes, peak {min(o['peak_mb'] for o in ours):.0f} MB"
    )


if __name__ == "__main__":
    main()
