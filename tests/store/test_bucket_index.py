"""The index of a bucket run: built once, downloaded by other machines; a few lines come by ranges, without the rest of the text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.object_stores import Store, seaweed_store
from tests.store.test_bucket import COLLECT, Shell

obstore = pytest.importorskip("obstore", reason="obstore is not installed: pip install 'rollforge[cloud]'")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with seaweed_store(tmp_path_factory.mktemp("weed")) as running:
        yield running


@pytest.fixture
def shell(tmp_path: Path, store: Store) -> Shell:
    return Shell(tmp_path, store)


def keys(shell: Shell, prefix: str) -> list[str]:
    return [one["path"] for batch in obstore.list(shell.store(), prefix) for one in batch]


def bundles(shell: Shell, prefix: str) -> list[str]:
    return [key for key in keys(shell, prefix) if key.endswith(".bundle")]


def parts_on(shell: Shell, machine: str) -> list[Path]:
    return sorted((shell.folder / machine).rglob("*_index/**/*.parquet")) + sorted(
        (shell.folder / machine).rglob("index/**/*.parquet")
    )


@pytest.mark.parametrize("way", ["", "--shard 0/1"])
def test_a_second_machine_downloads_the_index_and_only_the_lines_it_shows(shell: Shell, way: str) -> None:
    name = "shards" if way else "one"
    run = f"s3://data/{name}/run"
    shell.run(f"{COLLECT} -o {run} -k 3 {way}")
    shell.run(f"metrics {run}", machine="first")
    made = bundles(shell, f"{name}/run/")
    assert any("/rollouts-" in key for key in made)
    here = json.loads(shell.run(f"show {run} --limit 2 --json", machine="first").stdout)
    there = json.loads(shell.run(f"show {run} --limit 2 --json", machine="second").stdout)
    assert there == here
    (text,) = list((shell.folder / "second").rglob("rollouts.jsonl"))
    assert text.stat().st_blocks == 0, "a placeholder: no text was downloaded as a whole"
    built = {path.name: path.read_bytes() for path in parts_on(shell, "first")}
    assert {path.name: path.read_bytes() for path in parts_on(shell, "second")} == built
    sql = ["query", run, "select count(*), sum(reward) from rollouts", "--json"]
    answers = []
    for machine in ("first", "second"):
        shell.env["XDG_CACHE_HOME"] = str(shell.folder / machine)
        answers.append(_ask(shell, sql))
    assert answers[0] == answers[1] and answers[0]["rows"][0][0] == 60
    assert shell.run(f"metrics {run} --json", machine="second").stdout, "a full reader has a copy of its own"


def _ask(shell: Shell, words: list[str]) -> dict[str, list[list[float]]]:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "rollforge", *words],
        cwd=shell.folder,
        env=shell.env,
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, list[list[float]]] = json.loads(done.stdout)
    return answer


def test_more_rows_and_damage_make_a_new_index(shell: Shell) -> None:
    run = "s3://data/grown/run"
    shell.run(f"{COLLECT} -o {run} -k 2")
    before = bundles(shell, "grown/run/")
    shell.run(f"{COLLECT} -o {run} -k 4", machine="two")
    after = bundles(shell, "grown/run/")
    rollouts = [key for key in after if "/rollouts-" in key]
    assert len(rollouts) == 1 and rollouts[0] not in before, "one index, of the rows that are there now"
    for key in after:
        obstore.put(shell.store(), key, b"damaged")
    shown = shell.run(f"metrics {run} --json", machine="three").stdout
    assert json.loads(shown)["counts"]["finished"] == 80
