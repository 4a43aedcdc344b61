"""Symbolic links and damaged inputs around a dataset: nothing outside the folder is written or deleted, and mistakes have messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rollforge.assembly.reports import write_report
from rollforge.errors import DataError, RollforgeError, UsageError
from rollforge.steps.prepare import prepare, prepare_again, read_manifest, trace
from rollforge.view.book import Book
from rollforge.view.dataset import DatasetBook
from tests.builders import make_rollout, write_rows


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [make_rollout(task, k, float(k), text=f"{task}.{k}") for task in range(4) for k in range(2)]
    return write_rows(tmp_path / "run" / "rollouts.jsonl", rows).parent


@pytest.mark.parametrize("name", ["train.jsonl", "manifest.json", "README.md", "lineage.parquet"])
def test_a_link_inside_an_earlier_dataset_is_replaced_and_its_target_stays(
    name: str, run: Path, tmp_path: Path
) -> None:
    out, outside = tmp_path / "data", tmp_path / "outside"
    prepare("sft", run, to="chat", out=out)
    outside.write_bytes((out / name).read_bytes())
    before = outside.read_bytes()
    (out / name).unlink()
    (out / name).symlink_to(outside)
    prepare("sft", run, to="chat", out=out, min_reward=0.0)
    assert outside.read_bytes() == before and not (out / name).is_symlink()


def test_a_planted_link_with_the_name_of_a_left_over_folder_is_not_followed(
    run: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("stay")
    for kind in ("partial", "old"):
        (tmp_path / f".data.{kind}-99999999").symlink_to(outside)
    prepare("sft", run, to="chat", out=tmp_path / "data")
    assert (outside / "precious").read_text() == "stay"
    assert (tmp_path / "data" / "train.jsonl").is_file() and not (tmp_path / "data").is_symlink()


@pytest.mark.parametrize("damage", [b"", b"{", b'{"recipe": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_manifest_has_a_message(damage: bytes, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "data"
    prepare("sft", run, to="chat", out=out)
    (out / "manifest.json").write_bytes(damage)
    with pytest.raises(RollforgeError, match="manifest"):
        read_manifest(out)
    with pytest.raises(RollforgeError, match="manifest"):
        prepare_again(out, out=tmp_path / "again")


@pytest.mark.parametrize(
    ("recipe", "option", "text"),
    [
        ("sft", {"chosen_where": "reward > 0"}, "has no such sides"),
        ("grpo", {"rejected_where": "reward > 0"}, "has no such sides"),
        ("dpo", {"ground_truth": "answer"}, "rows have none"),
        ("sft", {"tokenizer": "tokenizer.json"}, "only read with --max-tokens"),
        ("dpo", {"chosen_where": "reward > 7"}, "holds for no rollout"),
        ("dpo", {"rejected_where": "reward > 7"}, "holds for no rollout"),
        ("sft", {"where": "reward > 7"}, "where does not hold"),
        ("grpo", {"ground_truth": "no_such_field"}, "no_such_field"),
        ("sft", {"balance": "no_such_field"}, "neither a column"),
        ("sft", {"verifier": "no_such_verifier"}, "no_such_verifier"),
    ],
)
def test_an_option_that_matches_nothing_says_so(
    recipe: str, option: dict[str, str], text: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=text):
        prepare(recipe, run, to="chat", out=tmp_path / "data", **option)


@pytest.mark.parametrize("name", ["../private.json", "/etc/passwd", "..", ".", "", "a/../../b", "a\0b"])
def test_a_manifest_that_names_a_file_outside_the_dataset_is_refused(
    name: str, run: Path, tmp_path: Path
) -> None:
    """A report is sent to others, so a stranger's dataset must not put a file of this machine into it."""
    out = tmp_path / "data"
    prepare("sft", run, to="chat", out=out)
    (tmp_path / "private.json").write_text('{"messages": "private words"}\n')
    manifest = json.loads((out / "manifest.json").read_text())
    manifest["files"][0]["path"] = name
    (out / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="path"):
        write_report([str(out)], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(DataError, match="path"):
        read_manifest(out)


def change_column(path: Path, name: str, values: list[Any]) -> None:
    table = pq.read_table(path)
    repeated = pa.array((values * table.num_rows)[: table.num_rows])
    pq.write_table(table.set_column(table.column_names.index(name), name, repeated), path)


@pytest.mark.parametrize("name", ["../private.json", "/etc/passwd", ".."])
def test_a_lineage_that_names_a_file_outside_the_dataset_is_refused(
    name: str, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "data"
    prepare("sft", run, to="chat", out=out)
    (tmp_path / "private.json").write_text('{"messages": "private words"}\n')
    change_column(out / "lineage.parquet", "file", [name])
    with pytest.raises(DataError, match="no file of the dataset"):
        DatasetBook(str(out)).open(0, [])


@pytest.mark.parametrize(
    "values", [[["a"]], [{"a": 1}], ["0 OR 1=1"], [None], [b"\xff\xfe"], [1e300], [-(2**62)]], ids=repr
)
@pytest.mark.parametrize(
    ("file", "column"),
    [
        ("lineage.parquet", "file"),
        ("lineage.parquet", "line"),
        ("lineage.parquet", "run"),
        ("lineage.parquet", "task"),
        ("lineage.parquet", "rollout"),
        ("lineage.parquet", "reward"),
        ("fates.parquet", "fate"),
        ("fates.parquet", "run"),
        ("fates.parquet", "task"),
    ],
)
def test_values_of_another_type_in_a_dataset_have_a_message(
    file: str, column: str, values: list[Any], run: Path, tmp_path: Path
) -> None:
    """The viewer, the report and `show --example` read them."""
    out = tmp_path / "data"
    prepare("sft", run, to="chat", out=out)
    change_column(out / file, column, values)
    for read in (
        lambda: DatasetBook(str(out)).open(0, [Book(str(run))]),
        lambda: write_report([str(out)], tmp_path / "report.html"),
        lambda: trace(f"{out / 'train.jsonl'}:1"),
    ):
        try:
            read()
        except RollforgeError as error:
            assert error.hint
