"""An index that somebody damaged, planted or linked elsewhere is never believed, followed or the cause of a traceback."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import RollforgeError
from rollforge.index import cache, open_index
from rollforge.index.cache import trusted_folder
from tests.builders import make_rollout, write_rows

DAMAGES = 600 if "ROLLFORGE_TORTURE" in os.environ else 150


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.index.build.CHUNK", 8)
    monkeypatch.setattr("rollforge.index.jsonl.BLOCK", 2048)


def make_run(folder: Path) -> Path:
    rows = [make_rollout(n // 4, n % 4, n / 40, text=f"answer {n}", level=n % 3) for n in range(40)]
    rows.append(rows[3] | {"reward": 0.9})  # a duplicate, so that there is an overlay
    path = write_rows(folder / "rollouts.jsonl", rows)
    key = {"_ng_task_index": 1, "_ng_rollout_index": 1}
    write_rows(folder / "rollouts_verdicts.jsonl", [key | {"verifier": "v", "reward": 0.25, "at": 1.0}])
    return path


def contents(path: Path) -> list[dict[str, Any]]:
    with open_index(path) as index:
        columns = ["task", "rollout", "reward", "answer_hash", "level", "line", "offset"]
        rows: list[dict[str, Any]] = index.table(columns, order_by="task, rollout").to_pylist()
        assert [len(line) > 0 for line in index.read(list(range(5)))] == [True] * 5
    return rows


def damage(path: Path, chance: random.Random, others: list[Path]) -> None:
    data = bytearray(path.read_bytes())
    match chance.randrange(7):
        case 0 if data:
            place = chance.randrange(len(data))
            data[place] ^= 1 << chance.randrange(8)
        case 1:
            del data[chance.randrange(len(data) + 1) :]
        case 2 if data:
            place = chance.randrange(len(data))
            data[place : place + 64] = bytes(len(data[place : place + 64]))
        case 3:
            data += chance.randbytes(chance.randrange(1, 20))
        case 4:
            data = bytearray(chance.choice(others).read_bytes())
        case 5:
            path.unlink()
            return
        case _:
            data = bytearray(chance.randbytes(len(data)))
    path.write_bytes(data)


def test_a_damaged_file_of_the_index_changes_no_result(tmp_path: Path, tried: Callable[..., None]) -> None:
    path = make_run(tmp_path / "run")
    right = contents(path)
    chance = random.Random(7)
    tried(damaged_index_files=DAMAGES)
    for number in range(DAMAGES):
        folder = tmp_path / "run" / "rollouts_index"
        files = sorted(file for file in folder.rglob("*") if file.is_file() and file.stat().st_size)
        parts = [file for file in files if file.suffix in (".parquet", ".json")]
        damaged = chance.choice(parts)
        damage(damaged, chance, parts)
        assert contents(path) == right, (number, damaged.name)
        assert contents(path) == right


def test_a_file_of_the_index_under_anothers_name_is_not_mistaken_for_it(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    right = contents(path)
    folder = tmp_path / "run" / "rollouts_index"
    stored = sorted(folder.rglob("*.json"))
    assert len(stored) > 2
    for target in stored:
        for source in stored:
            target.write_bytes(source.read_bytes())
            assert contents(path) == right, (source.name, target.name)


def test_the_parts_are_named_by_their_rows_and_lie_flat(tmp_path: Path) -> None:
    make_run(tmp_path)
    contents(tmp_path)
    names = sorted(file.name for file in (tmp_path / "rollouts_index" / "rollouts").glob("*.parquet"))
    assert len(names) > 2 and all(name.split("-")[0].isdigit() for name in names)


def plant(folder: Path) -> None:
    """An index that somebody else prepared, of another run of the same shape."""
    other = folder.parent / "planted"
    other.mkdir()
    contents(make_run(other))
    shutil.copytree(other / "rollouts_index", folder)
    shutil.rmtree(other)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir(mode=0o1777)
    return tmp_path


def test_a_linked_index_is_not_followed(home: Path) -> None:
    run, elsewhere = home / "run", home / "elsewhere"
    path = make_run(run)
    elsewhere.mkdir()
    (run / "rollouts_index").symlink_to(elsewhere)
    contents(path)
    assert not list(elsewhere.iterdir())
    private = home / "cache" / "rollforge" / "index"
    assert private.stat().st_mode & 0o077 == 0 and list(private.glob("*/rollouts/*.parquet"))


def test_an_index_that_everybody_may_write_is_not_believed(home: Path) -> None:
    path = make_run(home / "run")
    (home / "run" / "rollouts_index").mkdir()
    (home / "run" / "rollouts_index").chmod(0o777)
    contents(path)
    assert not list((home / "run" / "rollouts_index").iterdir())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_an_index_of_another_user_is_not_believed(home: Path) -> None:
    path = make_run(home / "run")
    folder = home / "run" / "rollouts_index"
    plant(folder)
    os.chown(folder, 12345, 12345)
    assert cache.trusted_folder(folder, path) != folder


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("how", ["foreign", "open", "link"])
def test_a_prepared_folder_for_temporary_files_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    prepared = home / "temporary" / f"rollforge-index-{os.getuid()}"
    if how == "link":
        (home / "target").mkdir(mode=0o700)
        prepared.symlink_to(home / "target")
    else:
        prepared.mkdir(mode=0o700)
        prepared.chmod(0o700 if how == "foreign" else 0o777)
        os.chown(prepared, 12345 if how == "foreign" else 0, 0)
    path = make_run(home / "run")
    (home / "run" / "rollouts_index").write_text("no folder")
    folder = cache.trusted_folder(home / "run" / "rollouts_index", path)
    assert prepared not in folder.parents
    assert folder.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["state.json", "build.lock", "use.lock"])
def test_a_link_inside_the_index_is_not_written_through(tmp_path: Path, name: str) -> None:
    path = make_run(tmp_path / "run")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "run" / "rollouts_index" / "rollouts"
    folder.mkdir(parents=True)
    (folder / name).symlink_to(victim)
    try:
        contents(path)
    except RollforgeError as error:
        assert "link" in str(error)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("name", ["rollouts", "views"])
def test_a_linked_folder_inside_the_index_is_not_written_into(tmp_path: Path, name: str) -> None:
    path = make_run(tmp_path / "run")
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "new-1.parquet").write_text("precious")
    (tmp_path / "run" / "rollouts_index").mkdir()
    (tmp_path / "run" / "rollouts_index" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(RollforgeError, match="not a folder"):
        contents(path)
    assert [file.name for file in (tmp_path / "victim").iterdir()] == ["new-1.parquet"]


def test_a_linked_part_is_removed_as_a_link(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    right = contents(path)
    victim = tmp_path / "victim"
    part = next((tmp_path / "run" / "rollouts_index" / "rollouts").glob("*.parquet"))
    part.rename(victim)
    part.symlink_to(victim)
    before = victim.read_bytes()
    assert contents(path) == right
    assert victim.read_bytes() == before and not part.is_symlink()


def test_an_index_folder_in_which_everybody_may_write_is_not_used(tmp_path: Path) -> None:
    rollouts, folder = tmp_path / "rollouts.jsonl", tmp_path / "rollouts_index"
    rollouts.write_bytes(b"")
    assert trusted_folder(folder, rollouts) == folder
    folder.chmod(0o777)
    assert trusted_folder(folder, rollouts) != folder
