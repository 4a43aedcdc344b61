"""A recipe from an installed package works in every command, without an edit in rollforge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.testing import Shape, healthy_run

MODULE = '''
"""Recipes of my own."""

from dataclasses import replace

from rollforge.recipes.base import Candidates, RecipeOptions, Selection, recipe
from rollforge.recipes.pairing import select_pairs


@recipe("pair")
def widest(candidates: Candidates, options: RecipeOptions) -> Selection:
    """One pair per task: the best answer against the worst."""
    return select_pairs(candidates, replace(options, strategy="best", max_pairs=1))


@recipe("pair", like="rm")
def judge(candidates, options):
    """Pairs for a reward model."""
    return select_pairs(candidates, options)


@recipe("pair", like="sft")
def odd(candidates, options):
    """Claims to be like a recipe of another kind."""


def plain(candidates, options):
    """Declares no kind."""
'''

ENTRY_POINTS = """[rollforge.recipes]
widest = my_recipes:widest
judge = my_recipes:judge
odd = my_recipes:odd
plain = my_recipes:plain
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and a package as pip installs it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "site").mkdir()
    (folder / "site" / "my_recipes.py").write_text(MODULE)
    info = folder / "site" / "my_recipes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-recipes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    healthy_run(Shape(tasks=60, samples=6), seed=3).write(folder / "run")
    return folder


def call(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "rollforge", *words],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(place / "site")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_it_is_listed_with_its_first_line(place: Path) -> None:
    listed = json.loads(call(place, "list", "recipes", "--json").stdout)["members"]
    assert {one["name"]: one["summary"] for one in listed}["widest"].startswith("One pair per task")


def test_check_asks_what_the_recipe_it_is_like_would_be_asked(place: Path) -> None:
    own, dpo = (
        json.loads(call(place, "check", "run", "--for", name, "--json").stdout) for name in ("widest", "dpo")
    )
    assert own["recipe"] == "widest" and own["findings"] == dpo["findings"]
    assert own["recipes"]["widest"] == dpo["recipes"]["dpo"]


def test_prepare_writes_its_examples_for_every_trainer_of_the_kind(place: Path) -> None:
    done = call(place, "prepare", "widest", "run", "--to", "trl", "-o", "data", "--json")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    assert manifest["recipe"] == "widest" and manifest["kind"] == "pair" and manifest["check"]["ok"]
    rows = [json.loads(line) for line in (place / "data" / "train.jsonl").read_text().splitlines()]
    assert rows and all({"chosen", "rejected"} <= row.keys() for row in rows)
    assert "DPOTrainer" in (place / "data" / "README.md").read_text()
    again = call(place, "prepare", "--from", "data/manifest.json", "-o", "again")
    assert again.returncode == 0, again.stderr
    assert (place / "again" / "train.jsonl").read_bytes() == (place / "data" / "train.jsonl").read_bytes()


def test_the_recipe_it_is_like_decides_which_trainers_take_it(place: Path) -> None:
    refused = call(place, "prepare", "judge", "run", "--to", "axolotl", "--dry-run")
    assert refused.returncode == 2
    assert "axolotl cannot take judge data; it takes sft, dpo" in refused.stderr
    assert "exporters that take judge: " in refused.stderr and "verl" in refused.stderr


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", "the recipe 'plain' declares no kind of example"),
        ("odd", "the recipe 'odd' makes pair examples like 'sft', which is no such recipe"),
        ("widset", "there is no recipe 'widset'; did you mean 'widest'?"),
    ],
)
def test_a_mistake_in_it_is_named(place: Path, name: str, text: str) -> None:
    for words in (["prepare", name, "run", "--to", "trl", "--dry-run"], ["check", "run", "--for", name]):
        refused = call(place, *words)
        assert refused.returncode == 2 and text in " ".join(refused.stderr.split()), refused.stderr
