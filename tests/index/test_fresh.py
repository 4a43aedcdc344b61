"""Parts that were just made are at hand, and on disk once the index is closed: what is read is the same."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from rollforge.errors import DataError
from rollforge.index import Index, fast, open_index, opening, part_tables
from rollforge.index.cache import Cache, OpenCache
from rollforge.index.grouped import ByTask
from rollforge.store import RunFiles
from tests.builders import make_rollout, write_rows

pytestmark = pytest.mark.usefixtures("few_rows_a_part")


@pytest.fixture
def few_rows_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.index.scan.CHUNK", 5)
    monkeypatch.setattr("rollforge.index.ranges.RANGE", 4096)
    monkeypatch.setattr("rollforge.index.ranges.LEAST", 1024)


def opened(runs: object, **options: Any) -> Index:
    return open_index(runs, at_hand=True, **options)  # type: ignore[arg-type]


def write_run(folder: Path, tasks: int = 40) -> Path:
    """Rollouts of unlike shapes, some of which the compiled reader leaves to Python, and a last line without a newline."""
    folder.mkdir(exist_ok=True)
    rows = [make_rollout(task, 0, task / 10, agent="one" if task % 3 else "two") for task in range(tasks)]
    for task, row in enumerate(rows):
        if task % 4 == 1:
            row |= {"style": task, "note": f"text {task}"}
        if task % 7 == 2:
            row["_ng_attempt_index"] = 1
        if task % 11 == 3:
            del row["agent_ref"]
    path = write_rows(folder / "rollouts.jsonl", rows)
    lines = path.read_bytes().splitlines()
    lines[6] = lines[6].replace(b'"reward"', b'"extra": NaN, "reward"')
    lines.insert(9, b"{torn")
    path.write_bytes(b"\n".join(lines))
    return path


def tables_of(index: Index) -> list[object]:
    names = [name for name in index.columns() if name != "file"]
    coded = index.table(["agent", "finish_reason"], may_code=True)
    return [
        index.table(names).to_pydict(),
        {name: column.to_pylist() for name, column in zip(coded.column_names, coded.columns, strict=True)},
        {name: repr(values.tolist()) for name, values in index.floats(index.numbers).items()},
        [(bad.line, bad.offset, bad.reason) for bad in index.rejects],
        list(index.read(range(len(index)))),
    ]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_what_is_at_hand_is_what_will_be_on_disk(workers: int, tmp_path: Path) -> None:
    path = write_run(tmp_path)
    with opened(path, workers=workers) as index:
        assert index.is_at_hand == (fast.IS_THERE or workers == 1)
        at_hand = tables_of(index)
        selected = index.select("SELECT task, reward, agent FROM rollouts ORDER BY task").to_pydict()
    with opened(path, workers=workers) as index:
        assert not index.is_at_hand
        assert tables_of(index) == at_hand
        assert index.select("SELECT task, reward, agent FROM rollouts ORDER BY task").to_pydict() == selected


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_that_are_too_many_are_not_held(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path)
    monkeypatch.setattr(opening, "BUDGET", 6_000)
    with opened(path, workers=workers) as index:
        assert not index.is_at_hand
        few = tables_of(index)
    monkeypatch.undo()
    (tmp_path / "again").mkdir()
    again = tmp_path / "again" / "rollouts.jsonl"
    again.write_bytes(path.read_bytes())
    with opened(again, workers=1) as index:
        assert index.is_at_hand and tables_of(index) == few


def test_the_files_of_a_run_share_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write_run(tmp_path / name) for name in ("a", "b", "c")]
    with opened(paths[0]) as index:
        size = sum(table.nbytes for table in index._sources.by_kind["rollouts"][0].tables.values())
    (tmp_path / "a" / "rollouts_index" / "rollouts" / "state.json").unlink()
    monkeypatch.setattr(opening, "BUDGET", int(2.5 * size))
    with opened(paths) as index:
        held = [len(source.tables) for source in index._sources.by_kind["rollouts"]]
    assert held[0] > 3 and held[1] > 3 and held[2] == 0


@pytest.mark.parametrize("workers", [1, 2])
def test_an_index_that_grew_is_partly_at_hand(workers: int, tmp_path: Path) -> None:
    path = write_run(tmp_path)
    opened(path, workers=workers).close()
    with path.open("ab") as file:
        file.write(b"\n" + json.dumps(make_rollout(90, 0, 1.0)).encode() + b"\n")
    with opened(path, workers=workers) as index:
        assert not index.is_at_hand and index.table(["task"]).column(0).to_pylist()[-1] == 90
        grown = tables_of(index)
    with opened(path, workers=workers) as index:
        assert tables_of(index) == grown


def test_old_parts_are_swept_though_the_new_ones_are_read(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    opened(path, workers=2).close()
    old = set((tmp_path / "rollouts_index").rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"}")
    os.utime(path, ns=(1, 1))
    with opened(path, workers=2) as index:
        assert len(index) == 40
    found = set((tmp_path / "rollouts_index").rglob("*.parquet"))
    assert found and not found & old and not list((tmp_path / "rollouts_index").rglob("new-*"))


def test_an_expression_reads_its_columns_together_though_all_are_at_hand(tmp_path: Path) -> None:
    with opened(write_run(tmp_path)) as index:
        rows = ByTask(index, "reward >= 0")
        rows.keep(["reward", "answer_chars"])
        assert index.is_at_hand and sorted(rows._kept) == ["answer_chars", "reward"]


def test_a_run_that_cannot_be_opened_lets_go_of_what_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_run(tmp_path / name) for name in ("a", "b")]
    files = [RunFiles(path) for path in paths]
    closed: list[str] = []
    close = OpenCache.close

    def watched(cache: OpenCache) -> None:
        closed.append(cache.state.build)
        close(cache)

    monkeypatch.setattr(OpenCache, "close", watched)
    paths[1].unlink()
    with pytest.raises(DataError, match="removed while it was read"):
        Index(files)
    assert len(closed) == 1


def test_nothing_is_held_unless_it_is_asked_for(tmp_path: Path) -> None:
    with open_index(write_run(tmp_path), workers=2) as index:
        assert not index.is_at_hand and len(index.table(["task"])) == 40


def test_nothing_is_held_once_the_index_is_closed(tmp_path: Path) -> None:
    index = opened(write_run(tmp_path))
    [source] = index._sources.by_kind["rollouts"]
    assert source.tables
    index.close()
    assert not source.tables and len(index.table(["task"])) == 40


def test_an_index_that_nobody_closes_is_on_disk_all_the_same(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    code = "import sys; from rollforge.index import open_index; print(len(open_index(sys.argv[1], workers=2, at_hand=True)))"
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("40\n", "")
    assert (tmp_path / "rollouts_index" / "rollouts" / "state.json").is_file()


def test_a_run_that_is_another_ones_tasks_file_is_read_as_both(tmp_path: Path) -> None:
    write_rows(tmp_path / "x.jsonl", [make_rollout(task, 0, 1.0) for task in range(3)])
    write_rows(tmp_path / "x_tasks.jsonl", [make_rollout(task, 1, 0.0) for task in range(3)])
    code = """
import sys; from rollforge.index import open_index
with open_index(sys.argv[1:], workers=2, at_hand=True) as index:
    print(index.select("select count(*) as n from rollouts").to_pylist())
"""
    words = [sys.executable, "-c", code, str(tmp_path / "x.jsonl"), str(tmp_path / "x_tasks.jsonl")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[{'n': 6}]\n", "")


def test_a_fork_neither_waits_for_the_writing_nor_keeps_others_from_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast.IS_THERE:
        pytest.skip("child processes write their parts themselves")
    path = write_run(tmp_path)
    has_forked = threading.Event()

    def slow(table: object, path: str, **options: object) -> None:
        has_forked.wait(10)
        write_table(table, path, **options)

    write_table = part_tables.pq.write_table
    monkeypatch.setattr(part_tables.pq, "write_table", slow)
    index = opened(path, workers=2)
    child = os.fork()
    if not child:
        index.close()
        time.sleep(20)
        os._exit(0)
    try:
        has_forked.set()
        index.close()
        with (tmp_path / "rollouts_index" / "rollouts" / "build.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_an_index_removed_while_it_is_written_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast.IS_THERE:
        pytest.skip("child processes write their parts themselves")

    def gone(table: object, path: str, **options: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(part_tables.pq, "write_table", gone)
    index = opened(write_run(tmp_path), workers=2)
    with pytest.raises(DataError, match="removed while it was read"):
        index.select("select 1")
    with pytest.raises(DataError, match="removed while it was read"):
        index.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_state_that_cannot_be_written_is_told(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path)

    def full(cache: Cache, state: object) -> None:
        raise OSError(28, "No space left on device", str(cache.path))

    monkeypatch.setattr(Cache, "_save", full)
    with pytest.raises(OSError, match="No space left"):
        opened(path, workers=workers).close()
    monkeypatch.undo()
    with opened(path) as index:
        assert len(index) == 40


def test_a_part_that_cannot_be_written_is_told_when_the_index_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fast.IS_THERE:
        pytest.skip("child processes write their parts themselves")
    path = write_run(tmp_path)

    def full(table: object, path: str, **options: object) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(part_tables.pq, "write_table", full)
    index = opened(path, workers=2)
    assert len(index.table(["task"])) == 40
    with pytest.raises(OSError, match="No space left"):
        index.close()
    monkeypatch.setattr(part_tables.pq, "write_table", pq.write_table)
    monkeypatch.undo()
    with opened(path) as index:
        assert len(index) == 40
