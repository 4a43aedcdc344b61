"""Prepare against the plain scripts people copy from the docs, which load everything and convert nothing.

CPU seconds and peak memory of each part, in a process of its own, as ratios within one run. The limits: from a built index, sft and
dpo with conversion at most 1/4 of the script's CPU and a raw copy 1/12; memory at most 1/20.

    python -m benchmarks.prepare --tasks 6250 --samples 16
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.limits import share
from benchmarks.limits import show as show_limits


def script_sft(rollouts: Path, out: Path) -> int:
    """Filter by threshold, the plain way."""
    with rollouts.open() as file:
        rows = [json.loads(line) for line in file]
    kept = [row for row in rows if row["reward"] is not None and row["reward"] >= 0.95]
    with out.open("w") as file:
        for row in kept:
            file.write(json.dumps(row) + "\n")
    return len(kept)


def script_dpo(rollouts: Path, out: Path) -> int:
    """Pair best with worst within a prompt, the plain way."""
    with rollouts.open() as file:
        rows = [json.loads(line) for line in file]
    by_prompt: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        if row["reward"] is not None:
            by_prompt[json.dumps(row["responses_create_params"]["input"])].append(row)
    pairs = []
    for group in by_prompt.values():
        group.sort(key=lambda row: row["reward"], reverse=True)
        for place in range(len(group) // 2):
            gap = group[place]["reward"] - group[-(place + 1)]["reward"]
            if gap >= 0.2:
                pairs.append({"chosen": group[place], "rejected": group[-(place + 1)], "reward_gap": gap})
    with out.open("w") as file:
        for pair in pairs:
            file.write(json.dumps(pair) + "\n")
    return len(pairs)


def rows_written(words: tuple[str, ...], folder: Path) -> int:
    """How many rows the part has written."""
    if words[0] == "script":
        with (folder / "script.jsonl").open("rb") as file:
            return sum(1 for _ in file)
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    return int(sum(file["rows"] for file in manifest["files"]))


def command_of(words: tuple[str, ...], folder: Path) -> list[str]:
    """The script, or the command a person would type."""
    if words[0] == "script":
        return [sys.executable, "-m", "benchmarks.prepare", "--folder", str(folder), "--script", words[1]]
    ours = [sys.executable, "-m", "rollforge", "prepare", words[1], str(folder), "--to", words[2]]
    return [*ours, "-o", str(folder / "out"), "--json"]


class Way(NamedTuple):
    """One way of making a dataset."""

    words: tuple[str, ...]
    limit: str = ""
    is_from_text: bool = False


SCRIPTS = {f"script {recipe}": Way(("script", recipe)) for recipe in ("sft", "dpo")}
OURS = {"sft → trl, from text": Way(("ours", "sft", "trl"), "", is_from_text=True)} | {
    f"{recipe} → {exporter}, from the index": Way(("ours", recipe, exporter), limit)
    for recipe, exporter, limit in (
        ("sft", "trl", "1/4"), ("dpo", "trl", "1/4"), ("sft", "chat", "1/4"), ("sft", "gym", "1/12"), ("dpo", "gym", "1/12"),
    )
}  # fmt: skip


def measure(folder: Path, way: Way) -> dict[str, float]:
    """One run into a place where nothing is yet, with compiled modules as an installation has them."""
    if way.is_from_text:
        shutil.rmtree(folder / "rollouts_index", ignore_errors=True)
    shutil.rmtree(folder / "out", ignore_errors=True)
    (folder / "script.jsonl").unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    with (folder / "errors.txt").open("w+") as errors:
        child = subprocess.Popen(
            command_of(way.words, folder), stdout=subprocess.DEVNULL, stderr=errors, env=environment
        )
        _, status, used = os.wait4(child.pid, 0)
        if status:
            errors.seek(0)
            raise SystemExit(errors.read())
    cost = {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss / 1024}
    return cost | {"rows": rows_written(way.words, folder)}


def main() -> None:
    """Measure all parts and print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=6250)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--script", choices=["sft", "dpo"])
    chosen = parser.parse_args()
    if chosen.script:
        script = {"sft": script_sft, "dpo": script_dpo}[chosen.script]
        script(chosen.folder / "rollouts.jsonl", chosen.folder / "script.jsonl")
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size = ["--tasks", str(chosen.tasks), "--samples", str(chosen.samples)]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.rows", str(folder / "rollouts.jsonl"), *size], check=True
        )
        compare(folder, chosen.repeats)


def compare(folder: Path, repeats: int) -> None:
    """The table: script, ours from text, ours from the index.

    The ways take turns, so that what slows the machine down for a while slows all of them; the cheapest run of each counts, because
    other work only ever adds.
    """
    gigabytes = (folder / "rollouts.jsonl").stat().st_size / 1e9
    print(f"{gigabytes:.2f} GB of rollouts")
    measure(folder, Way(("ours", "sft", "chat")))  # so that all modules are compiled
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(repeats):
        for name, way in (SCRIPTS | OURS).items():
            found[name].append(measure(folder, way))
    costs = {
        name: {key: min(one[key] for one in several) for key in several[0]} for name, several in found.items()
    }
    print(f"{'what':<34}{'rows':>8}{'CPU s':>9}{'MB':>7}{'CPU ratio':>11}{'MB ratio':>10}{'limit':>8}")
    for name in SCRIPTS:
        show(name, costs[name])
    limits = []
    for name, way in OURS.items():
        script = costs[f"script {way.words[1]}"]
        show(name, costs[name], script, way.limit)
        if way.limit:
            limits.append(
                share(
                    f"{name}, CPU", costs[name]["cpu_s"], script["cpu_s"], float(way.limit.removeprefix("1/"))
                )
            )
            limits.append(share(f"{name}, memory", costs[name]["peak_mb"], script["peak_mb"], 20))
    show_limits(limits)


def show(
    name: str, found: dict[str, float], against: dict[str, float] | None = None, limit: str = ""
) -> None:
    """One line of the table."""
    line = f"{name:<34}{found['rows']:>8,.0f}{found['cpu_s']:>9.2f}{found['peak_mb']:>7.0f}"
    if against:
        cpu, memory = against["cpu_s"] / found["cpu_s"], against["peak_mb"] / found["peak_mb"]
        line += f"{'1/' + format(cpu, '.1f'):>11}{'1/' + format(memory, '.1f'):>10}{limit:>8}"
    print(line, flush=True)


if __name__ == "__main__":
    main()
