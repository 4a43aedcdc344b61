"""A dataset does not depend on the order of the lines, nor on the order of the files where their keys differ."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollforge.errors import UsageError
from rollforge.recipes import RECIPES
from rollforge.steps.prepare import prepare
from tests.builders import Row, make_rollout, write_rows

WORDS = ("one", "two two", "three three three", "one  ")
SHAPES: list[dict[str, Any]] = [
    {},
    {"per_task": 1, "max_pairs": 1},
    {"strategy": "all", "max_pairs": 2, "dedupe": "exact"},
    {"strategy": "hardest", "max_uses": 1, "dedupe": "near"},
    {"strategy": "best", "limit": 3},
    {"order": "shuffled", "split": (0.5, 0.5)},
    {"order": "easy-first", "balance": "difficulty"},
    {"dedupe_prompts": "near", "min_reward": 0.5},
]
rollouts = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0, None]), st.sampled_from(WORDS)),
    min_size=2,
    max_size=16,
)


def rows_of(given: list[tuple[int, float | None, str]], *, has_keys: bool) -> list[Row]:
    rows = []
    for number, (task, reward, text) in enumerate(given):
        row = make_rollout(task, number, reward, text=f"{text} {number if has_keys else task}")
        if not has_keys:
            del row["_ng_task_index"], row["_ng_rollout_index"]
        rows.append(row)
    return rows


def files_of(recipe: str, runs: list[Path], out: Path, options: dict[str, Any]) -> dict[str, bytes] | str:
    try:
        prepare(recipe, runs, to="chat", out=out, **options)
    except UsageError as error:
        return str(error)
    return {path.name: path.read_bytes() for path in out.glob("*.jsonl")}


@settings(max_examples=60, deadline=None)
@given(
    given=rollouts,
    recipe=st.sampled_from(RECIPES.names()),
    options=st.sampled_from(SHAPES),
    shuffle=st.randoms(use_true_random=False),
    has_keys=st.booleans(),
)
def test_a_permutation_of_the_lines_gives_the_same_bytes(
    given: list[tuple[int, float | None, str]],
    recipe: str,
    options: dict[str, Any],
    shuffle: random.Random,
    has_keys: bool,
) -> None:
    rows = rows_of(given, has_keys=has_keys)
    others = list(rows)
    shuffle.shuffle(others)
    with TemporaryDirectory() as name:
        place = Path(name)
        found = []
        for number, lines in enumerate((rows, others)):
            run = write_rows(place / f"run{number}" / "rollouts.jsonl", lines).parent
            found.append(files_of(recipe, [run], place / f"data{number}", options))
    assert found[0] == found[1]


@pytest.mark.parametrize("recipe", ["sft", "kto", "dpo"])
def test_rows_without_numbers_that_differ_in_their_reasoning_alone_are_in_no_order_of_lines(
    recipe: str, tmp_path: Path
) -> None:
    rows = []
    for number in range(24):
        row = make_rollout(number % 2, number, float(number % 3 > 0), text=f"answer {number % 3}")
        del row["_ng_task_index"], row["_ng_rollout_index"]
        thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": f"thought {number}"}]}
        row["response"]["output"].insert(0, thought)
        rows.append(row)
    made = []
    for seed in range(4):
        random.Random(seed).shuffle(rows)
        run = write_rows(tmp_path / f"run{seed}" / "rollouts.jsonl", rows).parent
        made.append(files_of(recipe, [run], tmp_path / f"data{seed}", {"dedupe": "none"}))
        made.append(files_of(recipe, [run], tmp_path / f"fewer{seed}", {}))
    assert all(files == made[0] for files in made[::2])
    assert all(files == made[1] for files in made[1::2])


@settings(max_examples=25, deadline=None)
@given(given=rollouts, recipe=st.sampled_from(RECIPES.names()), options=st.sampled_from(SHAPES))
def test_the_order_of_pooled_files_does_not_matter_where_keys_differ(
    given: list[tuple[int, float | None, str]], recipe: str, options: dict[str, Any]
) -> None:
    rows = rows_of(given, has_keys=True)
    with TemporaryDirectory() as name:
        place = Path(name)
        half = len(rows) // 2
        runs = [
            write_rows(place / f"run{number}" / "rollouts.jsonl", lines).parent
            for number, lines in enumerate((rows[:half], rows[half:]))
        ]
        one = files_of(recipe, runs, place / "one", options)
        assert one == files_of(recipe, runs[::-1], place / "other", options)


@pytest.mark.parametrize("recipe", ["sft", "kto"])
def test_rows_are_in_the_order_of_the_file_on_request(recipe: str, tmp_path: Path) -> None:
    rows = [make_rollout(task, 0, 1.0, text=f"answer {task}") for task in (3, 1, 2, 0)]
    run = write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent
    by_key = files_of(recipe, [run], tmp_path / "key", {})["train.jsonl"]  # type: ignore[index]
    by_line = files_of(recipe, [run], tmp_path / "line", {"order": "file"})["train.jsonl"]  # type: ignore[index]
    assert by_key != by_line
    assert sorted(by_key.splitlines()) == sorted(by_line.splitlines())
    assert all(f"answer {task}".encode() in line for task, line in enumerate(by_key.splitlines()))
    assert all(
        f"answer {task}".encode() in line
        for task, line in zip((3, 1, 2, 0), by_line.splitlines(), strict=True)
    )


def test_a_compressed_run_in_any_order_gives_the_same_bytes(tmp_path: Path) -> None:
    import gzip

    rows = [make_rollout(task, k, float(k), text=f"{task}.{k}") for task in range(30) for k in range(2)]
    random.Random(4).shuffle(rows)
    plain = write_rows(tmp_path / "plain" / "rollouts.jsonl", rows)
    packed = tmp_path / "packed" / "rollouts.jsonl.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for name in ("chat", "gym"):
        prepare("dpo", plain.parent, to=name, out=tmp_path / f"{name}-plain")
        prepare("dpo", packed, to=name, out=tmp_path / f"{name}-packed")
        one, other = (tmp_path / f"{name}-{kind}" / "train.jsonl" for kind in ("plain", "packed"))
        assert one.read_bytes() == other.read_bytes()
