"""A folder with every kind of file that rollforge reads, the commands that read each, and seeded damage to one file at a time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rollforge.review.labels import Label, LabelFile
from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from rollforge.store import RunFiles
from tests.hostile.fork_server import Case
from tests.programs.running import ASK

Words = tuple[str, ...]

NOBODY = ("--base-url", "http://127.0.0.1:9/v1", "--api", "chat", "--retries", "0", "--attempts", "1")
"""A server that refuses every connection at once."""


def of_run(run: str, *resuming: str) -> tuple[Words, ...]:
    """Commands that read a run; a resumed run reads all of it again before it asks a server that refuses."""
    resume = (
        "collect",
        "-i",
        "tasks.jsonl",
        "-o",
        run,
        "-m",
        "simulated",
        *NOBODY,
        "--progress",
        "none",
        *resuming,
    )
    return (
        ("status", run), ("metrics", run), ("metrics", run, "--labels"), ("profile", run), ("show", run),
        ("check", run), ("validate", f"{run}/rollouts.jsonl"), ("query", run, "select count(*) from rollouts"),
        ("query", run, "select count(*) from failures"),
        ("prepare", "sft", run, "-o", "new", "--to", "trl"), ("prepare", "dpo", run, "-o", "new", "--to", "trl", "--force"),
        ("report", run, "-o", "report.html"), ("experiences", run, "-o", "new.jsonl"),
        ("verify", run, "--diff", "recorded", "math"), ("merge", run),
        ("verify", run, "--verifier", "exact", "--verify-workers", "0"),
        (*resume, "--dry-run"), resume,
    )  # fmt: skip


OF_DATASET = (
    ("validate", "data/train.jsonl"),
    ("prepare", "--from", "data/manifest.json", "-o", "new", "--to", "trl"), ("report", "data", "-o", "r.html"),
    ("prepare", "sft", "run", "-o", "data", "--to", "trl"),
    ("prepare", "sft", "run", "-o", "new", "--to", "trl", "--decontaminate", "data/train.jsonl"),
)  # fmt: skip
OF_TASKS = (
    ("validate", "tasks.jsonl"), ("collect", "-i", "tasks.jsonl", "-o", "new", "-m", "x", "--dry-run"),
    ("verify", "run", "--verifier", "exact", "--tasks", "tasks.jsonl", "--verify-workers", "0", "--fresh"),
)  # fmt: skip
OF_BUFFER = (("experiences", "run", "--buffer", "buffer.db"), ("claim", "buffer.db"))
BATCHED = (
    "--batch",
    "--batch-size",
    "5",
    "--batch-poll",
    "0.1",
    "-k",
    "2",
    "--no-verify",
    "--deadline",
    "2s",
)
PROGRAM = ("--agent", "program:/bin/true", "--sandbox", "off", "--no-verify")
SHARDED = ("--shard", "0/2", "--verifier", "exact", "-k", "2")

READER_BY_FILE: dict[str, tuple[Words, ...]] = {
    **{
        f"run/rollouts{part}": of_run("run", "--verifier", "exact", "-k", "4", "--step-size", "2")
        for part in (".jsonl", "_tasks.jsonl", "_failures.jsonl", "_verdicts.jsonl", "_run.json", "_metrics.jsonl", "_labels.jsonl")
    },
    "run/rollouts_index/*": of_run("run", "--verifier", "exact", "-k", "4", "--step-size", "2"),
    **{f"data/{name}": OF_DATASET for name in ("train.jsonl", "manifest.json", "lineage.parquet", "README.md")},
    "tasks.jsonl": OF_TASKS,
    "buffer.db": OF_BUFFER,
    "sharded/shards/plan.json": of_run("sharded", *SHARDED),
    "sharded/shards/*/*": of_run("sharded", *SHARDED),
    "sharded/rollouts_*.json*": of_run("sharded", *SHARDED),
    "batched/rollouts_batches.jsonl": of_run("batched", *BATCHED),
    "programs/rollouts_calls.jsonl": of_run("programs", *PROGRAM),
    "programs/rollouts.jsonl": of_run("programs", *PROGRAM),
}  # fmt: skip
"""By file, or glob of files: the commands that read it."""

BITS = (
    b"\xff\xfe", b"\0\0\0\0", b"[" * 5000, b'"\\ud800"', b"9" * 400, b"NaN", b"{}", b"\n\n", b"null", b"-1", b"1e999", b"",
    b'{"a":' * 3000, b"[]", b'""', b"true", b"18446744073709551616", b"\xed\xa0\x80", b"-0.0", b"\r\n", b"\x1b[2J",
)  # fmt: skip


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage bytes as crashes and strangers do: cut, overwrite, insert, repeat, shuffle lines, change a value's type."""
    for _ in range(chance.choice((1, 1, 1, 3))):
        at = chance.randrange(len(data) + 1)
        bit = chance.choice(BITS)
        match chance.randrange(7):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + bit + data[at:]
            case 2:
                data = data[:at] + bit + data[at + len(bit) :]
            case 3:
                data = data + data[at:] + bit
            case 4:
                lines = data.splitlines(keepends=True)
                chance.shuffle(lines)
                data = b"".join(lines)
            case 5:
                number = chance.choice((b"0", b"1", b"true", b"null", b'"text"'))
                data = data.replace(number, bit, 1)
            case _:
                data = _change_a_value(data, at, bit)
    return data


def _change_a_value(data: bytes, at: int, bit: bytes) -> bytes:
    """Replace the value behind a colon near `at`, so that the line stays JSON and a field has another type."""
    colon = data.find(b":", at)
    ends = [end for mark in (b",", b"}") if (end := data.find(mark, colon)) >= 0]
    return data if colon < 0 or not ends else data[: colon + 1] + bit + data[min(ends) :]


def make_whole(whole: Path) -> None:
    """Make one run of each kind, a dataset, a buffer and the tasks."""
    whole.mkdir()
    (whole / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in example_tasks(6, 0, "math")))
    agent = whole.with_name("agent.py")
    agent.write_text(ASK + "ask(user('hello'))\n")
    with (
        SimulatedProcess(SimulateOptions(faults=("500=0.2",))) as failing,
        SimulatedProcess(SimulateOptions()) as server,
    ):
        first = (
            "collect",
            "-i",
            "tasks.jsonl",
            "-m",
            "simulated",
            "--max-failures",
            "100%",
            "--progress",
            "none",
        )
        again = ("--retries", "0", "--attempts", "1")
        _run(
            whole,
            *first,
            *again,
            "--base-url",
            failing.base_url,
            "-o",
            "run",
            "--verifier",
            "exact",
            "-k",
            "4",
            "--step-size",
            "2",
        )
        first = (*first, "--base-url", server.base_url)
        _run(whole, *first, "-o", "sharded", *SHARDED)
        _run(whole, *first, "-o", "batched", *BATCHED[:-2], "--deadline", "60s")
        program = f"program:{Path(sys.executable).resolve()} {agent}"
        _run(whole, *first, "-o", "programs", "--agent", program, "--sandbox", "off", "--no-verify")
    for words in (
        ("verify", "run", "--verifier", "math"), ("profile", "run"), ("profile", "sharded"),
        ("prepare", "sft", "run", "-o", "data", "--to", "trl", "--force"), ("experiences", "run", "--buffer", "buffer.db"),
    ):  # fmt: skip
        _run(whole, *words)
    batches = whole / "batched" / "rollouts_batches.jsonl"
    batches.write_bytes(b"".join(batches.read_bytes().splitlines(keepends=True)[:-2]))  # one is still open
    for name in ("programs", "batched"):  # and something is owed
        rollouts = whole / name / "rollouts.jsonl"
        rollouts.write_bytes(b"".join(rollouts.read_bytes().splitlines(keepends=True)[:-2]))
    labels = LabelFile(RunFiles(whole / "run"))
    for number in range(24):
        labels.add(
            Label(
                task=number // 4,
                rollout=number % 4,
                label="agree",
                reward=1.0,
                who="a",
                queue="random",
                seed=0,
            )
        )


def _run(folder: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "rollforge", *words], cwd=folder, check=False, capture_output=True, timeout=300
    )


def files_to_damage(whole: Path) -> dict[str, list[str]]:
    """The files behind each name of the table."""
    found = {
        name: sorted(str(path.relative_to(whole)) for path in whole.glob(name) if path.is_file())
        for name in READER_BY_FILE
    }
    lacking = [name for name, files in found.items() if not files]
    assert not lacking, f"nothing to damage: {lacking}"
    return found


def cases(whole: Path, count: int, seed: int) -> Iterator[Case]:
    """The same cases for the same folder and seed; each file kind as often as any other, every command in turn."""
    chance = random.Random(seed)
    files = files_to_damage(whole)
    for number in range(count):
        kind = chance.choice(list(READER_BY_FILE))
        file = chance.choice(files[kind])
        data = mutate((whole / file).read_bytes(), chance)
        (words,) = chance.choices(
            READER_BY_FILE[kind], [12 if is_quick(words) else 1 for words in READER_BY_FILE[kind]]
        )
        yield Case(number=number, words=list(words), file=file, data=data.hex())


def is_quick(words: Words) -> bool:
    """Whether a command takes a few hundredths of a second, so that many more can be tried."""
    return words[0] in ("status", "validate", "merge", "verify", "claim") or "--dry-run" in words
