"""Writes train.jsonl and heldout.jsonl: sums and differences of small numbers.

A held-out task has no mirror in training: all tasks of a pair of numbers (a + b, b + a, a - b) are on one side. For tasks of your
own, write the two files yourself; see README.md.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

LARGEST = 12


def pairs() -> list[tuple[int, int]]:
    return [(a, b) for a in range(2, LARGEST + 1) for b in range(1, a)]


def tasks_of(pair: tuple[int, int], chance: random.Random) -> list[dict[str, str]]:
    """One sum, in one of its two orders, and one difference."""
    a, b = pair
    first, second = chance.sample(pair, 2)
    return [
        {"prompt": f"What is {first} + {second}?", "expected_answer": str(a + b), "pair": f"{a} {b}"},
        {"prompt": f"What is {a} - {b}?", "expected_answer": str(a - b), "pair": f"{a} {b}"},
    ]


def main(train_pairs: int, heldout_pairs: int, seed: int, folder: Path) -> None:
    chance = random.Random(seed)
    drawn = pairs()
    chance.shuffle(drawn)
    parts = {"train": drawn[:train_pairs], "heldout": drawn[train_pairs : train_pairs + heldout_pairs]}
    for name, part in parts.items():
        rows = [row for pair in part for row in tasks_of(pair, chance)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{folder / name}.jsonl: {len(rows)} tasks of {len(part)} pairs")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
