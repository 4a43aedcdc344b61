"""A large file is read from the first moment on, and nothing is different for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.cli.early import read_early
from rollforge.index import fast, head_start, open_index
from tests.builders import make_rollout, write_rows


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.index.ranges.WORTH_A_WORKER", 1)
    monkeypatch.setattr("rollforge.index.ranges.RANGE", 4096)
    monkeypatch.setattr("rollforge.index.ranges.LEAST", 1024)
    monkeypatch.setattr(head_start, "_begun", {})


def watch_takeovers(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What is taken over from now on."""
    taken: list[object] = []
    take_over = head_start.take_over

    def watched(*words: object) -> object:
        found = take_over(*words)  # type: ignore[arg-type]
        taken.extend([found] if found else [])
        return found

    monkeypatch.setattr(head_start, "take_over", watched)
    return taken


def write_run(folder: Path, reward: float = 0.0) -> Path:
    rows = [make_rollout(task, 0, reward + task) for task in range(100)]
    return write_rows(folder / "rollouts.jsonl", rows)


def test_it_is_begun_with_nothing_loaded() -> None:
    code = "import sys, rollforge.cli; print(sorted({'msgspec', 'pathlib', 'numpy'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("words", [["--workers", "2"], ["--workers=3", "--json"]])
def test_what_was_read_early_is_taken_over(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path)
    read_early(["profile", str(tmp_path), *words])
    workers = 2 if "2" in words else 3
    assert len(head_start._begun) == workers
    taken = watch_takeovers(monkeypatch)
    with open_index(path, workers=workers) as index:
        assert index.table(["task"]).column(0).to_pylist() == list(range(100))
        assert index.table(["line"]).column(0).to_pylist() == list(range(1, 101))
    assert len(taken) == (workers if fast.IS_THERE else 0) and head_start._begun == {}


def test_a_last_line_without_a_newline_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path)
    path.write_bytes(path.read_bytes() + b'{"torn": ')
    read_early(["query", str(path), "--workers", "2"])
    taken = watch_takeovers(monkeypatch)
    with open_index(path, workers=2) as index:
        assert len(index) == 100 and index.rejected_lines == 1
    assert len(taken) == (2 if fast.IS_THERE else 0)


def test_what_nobody_takes_over_is_forgotten(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_run(tmp_path / name)
    read_early(["query", str(tmp_path / "a"), "--workers", "2"])
    open_index(tmp_path / "b").close()
    assert head_start._begun == {}


@pytest.mark.parametrize("change", ["grown", "written anew", "replaced"])
def test_a_file_that_changed_since_is_read_again(change: str, tmp_path: Path) -> None:
    path = write_run(tmp_path)
    read_early(["metrics", str(path), "--workers", "2"])
    for stretch in head_start._begun.values():
        stretch._thread.join()
    if change == "replaced":
        (tmp_path / "new").mkdir()
        write_run(tmp_path / "new", 0.5).replace(path)
    elif change == "written anew":
        write_run(tmp_path, 0.5)
    else:
        more = write_rows(tmp_path / "more.jsonl", [make_rollout(100, 0, 100.0)])
        with path.open("ab") as file:
            file.write(more.read_bytes())
    tasks, extra = (101, 0.0) if change == "grown" else (100, 0.5)
    with open_index(path, workers=2) as index:
        assert index.table(["reward"]).column(0).to_pylist() == [task + extra for task in range(tasks)]


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "{run}"],
        ["profile", "{run}", "--workers", "1"],
        ["profile", "{run}", "--workers", "many"],
        ["profile", "{run}", "--workers", "2", "--config", "run.toml"],
        ["profile", "nowhere", "--workers", "2"],
        ["profile", "--help"],
        ["profile"],
        ["show", "{run}", "--workers", "2"],
        [],
    ],
)
def test_only_what_will_be_read_by_several_is_begun(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    read_early([word.format(run=write_run(tmp_path)) for word in words])
    assert head_start._begun == {}


def test_what_has_an_index_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path)
    monkeypatch.setenv("ROLLFORGE_PROFILE_WORKERS", "1")
    read_early(["profile", str(path), "--workers", "2"])
    assert head_start._begun == {}
    monkeypatch.delenv("ROLLFORGE_PROFILE_WORKERS")
    open_index(path).close()
    read_early(["profile", str(path), "--workers", "2"])
    assert head_start._begun == {}
