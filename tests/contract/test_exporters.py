"""What every exporter promises: each recipe it names comes out, is read back, loads again, and has a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from rollforge.errors import UsageError
from rollforge.exporters import EXPORTERS
from rollforge.exporters.base import Exporter, load_exporter
from rollforge.exporters.columns import RowTables, conversation, field, messages, prompt
from rollforge.recipes import RECIPES
from rollforge.recipes.base import load_recipe
from rollforge.steps.prepare import prepare
from tests.prepare_runs import mixed_run

COLUMNS: dict[str, dict[str, list[str]]] = {
    "atif": {"sft": ["schema_version", "session_id", "agent", "steps", "extra"]},
    "axolotl": {"sft": ["messages", "tools"], "dpo": ["messages", "chosen", "rejected"]},
    "chat": {
        "sft": ["messages", "tools", "reward"],
        "kto": ["prompt", "completion", "label", "tools", "reward"],
    },
    "gym": {"dpo": ["chosen", "rejected", "reward_gap"], "kto": ["rollout", "label"]},
    "llama-factory": {"sft": ["conversations", "system", "tools"]},
    "nemo-rl": {"sft": ["messages", "tools"], "dpo": ["context", "completions"]},
    "openrlhf": {"sft": ["messages"], "dpo": ["prompt", "chosen", "rejected", "margin"]},
    "trl": {
        "sft": ["messages", "tools"],
        "dpo": ["prompt", "chosen", "rejected", "tools", "margin"],
        "kto": ["prompt", "completion", "label", "tools"],
    },
    "verl": {
        "rm": ["prompt", "chosen", "rejected"],
        "grpo": ["data_source", "prompt", "ability", "reward_model", "extra_info"],
    },
}
"""One row per member: columns of some recipes. A new exporter needs its row here."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_run(tmp_path_factory.mktemp("run"), tasks=12, samples=4)


def test_every_member_has_a_row() -> None:
    assert set(COLUMNS) == set(EXPORTERS.names())


@pytest.mark.parametrize("name", EXPORTERS.names())
def test_a_member_declares_what_it_takes(name: str) -> None:
    exporter = load_exporter(name)
    assert exporter.name == name and exporter.recipes and set(exporter.recipes) <= set(RECIPES.names())
    assert exporter.container in exporter.containers
    kinds = {load_recipe(recipe).kind for recipe in exporter.recipes}
    has_tables = exporter.is_raw or all(kind in exporter.columns for kind in kinds if kind != "prompt")
    assert has_tables and (exporter.__doc__ or "").strip()


@pytest.mark.parametrize(
    ("name", "recipe"),
    [(name, recipe) for name in EXPORTERS.names() for recipe in load_exporter(name).recipes],
)
def test_every_recipe_comes_out_the_same_twice_and_every_row_has_the_same_columns(
    name: str, recipe: str, run: Path, tmp_path: Path
) -> None:
    for place in ("one", "two"):
        made = prepare(recipe, run, to=name, out=tmp_path / place, min_reward=0.4, split=(0.7, 0.3))
    files = [file.path for file in made.files]
    assert all(
        (tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes() for path in files
    )
    rows = [row for path in files for row in rows_of(tmp_path / "one" / path)]
    assert len(rows) == made.counts.examples["written"] > 0
    if name != "gym" or recipe not in ("sft", "ppo", "grpo"):
        assert len({tuple(row) for row in rows}) == 1
    if recipe in COLUMNS[name]:
        assert list(rows[0]) == COLUMNS[name][recipe]
    assert "```" in (tmp_path / "one" / "README.md").read_text().partition("## Load it")[2]


@pytest.mark.parametrize("name", EXPORTERS.names())
def test_a_recipe_that_a_member_cannot_take_is_refused_with_those_it_can(
    name: str, run: Path, tmp_path: Path
) -> None:
    for recipe in set(RECIPES.names()) - set(load_exporter(name).recipes):
        with pytest.raises(UsageError, match="it takes") as refused:
            prepare(recipe, run, to=name, out=tmp_path / "data")
        assert refused.value.hint


def rows_of(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class MyTrainer(Exporter):
    """The exporter of another package, whose columns have other names than ours."""

    name = "my-trainer"
    recipes = ("sft", "dpo")
    columns: ClassVar[RowTables] = {
        "demonstration": {"messages": conversation, "score": field("reward", float | None)},
        "pair": {"prompt": prompt, "good": messages("chosen"), "bad": messages("rejected")},
    }

    def snippet(self, *args: Any, **options: Any) -> str:
        return "read the lines"


def test_an_exporter_of_another_package_names_its_columns_as_it_likes(
    monkeypatch: pytest.MonkeyPatch, run: Path, tmp_path: Path
) -> None:
    monkeypatch.setattr("rollforge.registry._plugins", lambda family: {"my-trainer": f"{__name__}:MyTrainer"})
    for recipe, names in (("sft", ["messages", "score"]), ("dpo", ["prompt", "good", "bad"])):
        out = tmp_path / recipe
        assert prepare(recipe, run, to="my-trainer", out=out, min_reward=0.4).files
        assert list(json.loads((out / "train.jsonl").read_text().splitlines()[0])) == names
        assert "read the lines" in (out / "README.md").read_text()
