"""`rollforge index`: what it did to the index of each run, and what the index holds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollforge.index import open_index
from tests.builders import make_rollout, write_rows
from tests.cli.test_reading_commands import Called
from tests.sharded_runs import shard_rollouts
from tests.steps.test_merge import SHARDS, made_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_rows(tmp_path / "run" / "rollouts.jsonl", [make_rollout(task, 0, 1.0) for task in range(6)])
    return tmp_path / "run"


def entries(called: Called) -> list[dict[str, object]]:
    found = called.json["runs"]
    assert isinstance(found, list)
    return found


def append(run: Path, line: bytes) -> None:
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(line)


def judged(run: Path) -> Path:
    """The run of shards with a reward in every row, each as long as it was."""
    for shard in range(SHARDS):
        text = shard_rollouts(run, shard).read_bytes()
        shard_rollouts(run, shard).write_bytes(text.replace(b'"text":"xxxxxxxxxxx', b'"reward":1,"text":"'))
    return run


def test_an_index_is_built_then_current_then_extended(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = Called(capsys, "index", run)
    assert (built.code, built.err) == (0, "")
    assert built.out.startswith(f"{run}: index built: 6 rows, 0 lines rejected, 0.0")
    states = {path: path.read_bytes() for path in (run / "rollouts_index").rglob("state.json")}
    assert states
    assert "index already current: 6 rows" in Called(capsys, "index", run).out
    assert {path: path.read_bytes() for path in states} == states
    append(run, b"{torn\n")
    append(run, write_rows(run / "more.jsonl", [make_rollout(6, 0, 0.0)]).read_bytes())
    extended = Called(capsys, "index", run)
    assert "index extended: 7 rows, 1 line rejected" in extended.out
    assert "rollouts.jsonl:7: " in extended.err and extended.code == 0


def test_a_file_that_was_rewritten_is_built_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Called(capsys, "index", run)
    write_rows(run / "rollouts.jsonl", [make_rollout(task, 0, 0.5) for task in range(3)])
    assert "index built: 3 rows" in Called(capsys, "index", run).out


def test_later_commands_use_the_index_that_was_built(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Called(capsys, "index", run)
    with open_index(run) as index:
        assert len(index) == 6
    before = (run / "rollouts_index" / "rollouts" / "state.json").stat().st_mtime_ns
    assert Called(capsys, "metrics", run).code == 0
    assert (run / "rollouts_index" / "rollouts" / "state.json").stat().st_mtime_ns == before


def test_json_is_one_object_with_the_facts_of_each_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write_rows(run.parent / "other.jsonl", [make_rollout(0, 0, 1.0)])
    Called(capsys, "index", other)
    called = Called(capsys, "index", run, other, "--json")
    first, second = entries(called)
    size = sum(path.stat().st_size for path in (run / "rollouts_index").rglob("*") if path.is_file())
    assert first == {
        "run": str(run), "index": "built", "rows": 6, "rejected_lines": 0, "files": 1, "bytes": size,
    }  # fmt: skip
    assert (second["run"], second["index"], second["rows"]) == (str(other), "current", 1)
    assert called.code == 0


@pytest.mark.parametrize("where", [(), ("--on", "processes", "--workers", "2")])
def test_a_run_of_shards_is_one_run_with_an_index_per_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], where: tuple[str, ...]
) -> None:
    run = judged(made_run(tmp_path / "run"))
    (built,) = entries(Called(capsys, "index", run, *where, "--json"))
    assert built["index"] == "built" and built["run"] == str(run)
    assert {path.name for path in (run / "index").iterdir()} == {f"{shard:05d}" for shard in range(SHARDS)}
    (current,) = entries(Called(capsys, "index", run, *where, "--json"))
    assert current == {**built, "index": "current"}
    shutil.rmtree(run / "index" / "00001")  # as it was before this shard was there
    (extended,) = entries(Called(capsys, "index", run, *where, "--json"))
    assert extended["index"] == "extended" and extended["rows"] == built["rows"]


def test_a_run_that_is_missing_is_refused_before_anything_is_built(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    called = Called(capsys, "index", run, run.parent / "nowhere.jsonl")
    assert called.code == 2 and "no such file" in called.err and not called.out
    assert not (run / "rollouts_index").exists()


def test_a_run_without_rollouts_ends_with_the_code_of_profile(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, torn = run.parent / "empty.jsonl", run.parent / "torn.jsonl"
    empty.touch()
    torn.write_bytes(b"{torn\n")
    for path, code in ((empty, 3), (torn, 2)):
        assert Called(capsys, "index", path).code == Called(capsys, "profile", path).code == code
    assert Called(capsys, "index", run, empty).code == 3
    assert Called(capsys, "index", empty, torn, run).code == 2


def test_a_file_of_tasks_gets_no_index_and_the_others_do(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"responses_create_params": {"input": f"question {n}"}} for n in range(3)]
    tasks = write_rows(run.parent / "tasks.jsonl", rows)
    called = Called(capsys, "index", tasks, run, "--json")
    assert called.code == 3 and "is this a file of tasks?" in called.err
    assert [entry["run"] for entry in entries(called)] == [str(run)]
    assert not (run.parent / "tasks_index").exists()


def test_an_index_that_cannot_be_beside_the_run_is_reported_too(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (run / "rollouts_index").mkdir()
    (run / "rollouts_index").chmod(0o777)  # others could have prepared it
    assert "index built: 6 rows" in Called(capsys, "index", run).out
    assert "index already current: 6 rows" in Called(capsys, "index", run).out
    assert not list((run / "rollouts_index").iterdir())
