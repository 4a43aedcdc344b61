"""Where a data set goes: whole under its name or not at all, whatever stood there and whenever the process is killed."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.errors import UsageError
from rollforge.index import open_index
from rollforge.steps.prepare import prepare, read_manifest
from tests.prepare_runs import mixed_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_run(tmp_path_factory.mktemp("run"), tasks=6)


def write(run: Path, out: Path, seed: int = 0) -> None:
    prepare("sft", run, to="trl", out=out, min_reward=0.1, split=(0.5, 0.5), seed=seed)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_earlier_data_set_is_replaced_whole(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "data [1]"
    prepare("sft", run, to="trl", out=out, min_reward=0.5, shards=2)
    out.chmod(0o700)
    prepare("sft", run, to="trl", out=f"{out}/", min_reward=0.5)
    assert sorted(path.name for path in out.glob("train*")) == ["train.jsonl"]
    assert out.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == [out]


def test_files_of_others_are_neither_mixed_with_a_data_set_nor_lost_with_one(
    run: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep me")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        write(run, mine)
    write(run, tmp_path / "data")
    (tmp_path / "data" / "test.jsonl").write_text("{}\n")
    before = contents(tmp_path / "data")
    with pytest.raises(UsageError, match=r"\(test\.jsonl\)"):
        write(run, tmp_path / "data", seed=7)
    assert contents(tmp_path / "data") == before


def test_an_index_of_the_old_rows_goes_with_them(run: Path, tmp_path: Path) -> None:
    write(run, tmp_path / "data")
    open_index(tmp_path / "data" / "train.jsonl").close()
    assert (tmp_path / "data" / "train_index").is_dir()
    write(run, tmp_path / "data", seed=7)
    assert not (tmp_path / "data" / "train_index").exists()


def test_a_link_goes_on_pointing_to_the_data_set(run: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    for seed in (0, 7):
        write(run, link, seed)
        assert link.is_symlink() and read_manifest(tmp_path / "elsewhere").seed == seed


def test_the_folder_one_stands_in_is_not_replaced(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="where you stand"):
        write(run, Path())


CAN_EXCHANGE = hasattr(ctypes.CDLL(None), "renameat2")

KILLED = """
import os, pathlib, shutil, signal, sys
from rollforge.steps.prepare import output_folder, prepare

run, out, count, can_exchange = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"

def counted(act):
    def wrapped(*args, **kwargs):
        global count
        if str(args[0]).startswith(os.path.dirname(out)):
            count -= 1
            if count < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return act(*args, **kwargs)
    return wrapped

os.rename, os.replace, os.unlink = counted(os.rename), counted(os.replace), counted(os.unlink)
shutil.rmtree = counted(shutil.rmtree)
output_folder._exchange = counted(output_folder._exchange) if can_exchange else lambda one, other: False
prepare("sft", run, to="trl", out=out, min_reward=0.1, split=(0.5, 0.5), seed=7)
"""


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_kill_at_any_step_of_replacing_leaves_the_old_or_the_new_and_never_both(
    can_exchange: bool, run: Path, tmp_path: Path
) -> None:
    for name, seed in (("old", 0), ("new", 7)):
        write(run, tmp_path / name, seed)
    old, new = contents(tmp_path / "old"), contents(tmp_path / "new")
    for steps in range(20):
        out = tmp_path / str(steps) / "data"
        write(run, out)
        words = [sys.executable, "-c", KILLED, str(run), str(out), str(steps), str(can_exchange)]
        was_killed = subprocess.run(words, check=False).returncode != 0
        is_there = out.exists()
        assert is_there or not (can_exchange and CAN_EXCHANGE)
        assert not is_there or contents(out) in (old, new)
        with pytest.raises(UsageError, match="no example"):
            prepare("sft", run, to="trl", out=out, where="false")
        assert contents(out) in (old, new) and list(out.parent.iterdir()) == [out]
        if not was_killed:
            break
    assert steps > (1 if can_exchange else 2) and contents(out) == new
