"""Runs and datasets in object storage, on real S3 servers: durable objects, exact resume, one writer, no store that lies."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import UsageError
from rollforge.simulate import example_tasks
from rollforge.store.objects import ObjectFolder
from tests.object_stores import Store, moto_store, rclone_store

obstore = pytest.importorskip("obstore", reason="obstore is not installed: pip install 'rollforge[cloud]'")


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """A real S3 server with one bucket, `data`."""
    with moto_store() as running:
        yield running


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_an_address_without_a_bucket_says_how_one_is_written(scheme: str) -> None:
    with pytest.raises(UsageError, match="names no bucket") as refused:
        ObjectFolder(f"{scheme}://")
    assert refused.value.hint == f"write {scheme}://BUCKET/PATH"


class Shell:
    """Runs commands with the keys of the test's store, on one of several machines (caches)."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self._store = store
        self.env = store.env(folder / "one")
        rows = example_tasks(20, 0, "math")
        (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def store(self) -> Any:
        """The bucket, as another program sees it."""
        return self._store.objects()

    def words(self, line: str) -> list[str]:
        return [sys.executable, "-m", "rollforge", *line.split()]

    def run(self, line: str, *, machine: str = "one", code: int = 0) -> subprocess.CompletedProcess[str]:
        env = {**self.env, "XDG_CACHE_HOME": str(self.folder / machine)}
        done = subprocess.run(
            self.words(line),
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert done.returncode == code, done.stderr
        return done


@pytest.fixture
def shell(tmp_path: Path, store: Store) -> Shell:
    return Shell(tmp_path, store)


COLLECT = "collect -i tasks.jsonl -m simulated --verifier exact --progress none"


def metrics(shell: Shell, run: str, machine: str) -> Any:
    found = json.loads(shell.run(f"metrics {run} --json", machine=machine).stdout)
    return found["counts"], found["fields"]["reward"], found["at_k"]


@pytest.mark.slow
def test_a_run_in_a_bucket_is_the_run_on_disk(shell: Shell) -> None:
    shell.run(f"{COLLECT} -o s3://data/a/run -k 3")
    shell.run(f"{COLLECT} -o disk -k 3")
    here = metrics(shell, "disk", "one")
    assert metrics(shell, "s3://data/a/run", "another") == here, "read on a machine that never saw it"
    assert metrics(shell, "s3://data/a/run", "one") == here, "and again on the one that made it"
    shell.run(f"{COLLECT} -o s3://data/a/run -k 4", machine="another")
    assert metrics(shell, "s3://data/a/run", "one")[0]["finished"] == 80, "a copy takes in what others added"
    for recipe in ("sft", "dpo"):
        shell.run(
            f"prepare {recipe} s3://data/a/run -o s3://data/a/{recipe} --to trl --force", machine="third"
        )
        shell.run(f"{COLLECT} -o disk -k 4")
        shell.run(f"prepare {recipe} disk -o {recipe} --to trl --force")
        there = obstore.get(shell.store(), f"a/{recipe}/train.jsonl").bytes()
        assert bytes(there) == (shell.folder / recipe / "train.jsonl").read_bytes()


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_acknowledged(shell: Shell) -> None:
    run = "s3://data/b/run"
    for _ in range(4):
        env = {**shell.env, "XDG_CACHE_HOME": str(shell.folder / "one")}
        process = subprocess.Popen(
            shell.words(f"{COLLECT} -o {run} -k 20 -c 4"),
            cwd=shell.folder,
            env=env,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(4.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(shell.folder / "one", ignore_errors=True)  # the machine is gone with all it had
        _drop_lock(shell, "b/run")
    shell.run(f"{COLLECT} -o {run} -k 20", machine="another")
    counts, _, _ = metrics(shell, run, "third")
    assert (counts["finished"], counts["duplicates"]) == (400, 0)


def _drop_lock(shell: Shell, prefix: str) -> None:
    """What a minute without renewal does: the dead process's lock goes."""
    obstore.delete(shell.store(), f"{prefix}/driver.lock")


@pytest.mark.slow
def test_index_leaves_the_index_of_a_bucket_run_for_other_machines(shell: Shell) -> None:
    run = "s3://data/indexed/run"
    shell.run(f"{COLLECT} -o {run} -k 2")
    for one in obstore.list(shell.store(), "indexed/run/").collect():
        if one["path"].endswith(".bundle"):
            obstore.delete(shell.store(), one["path"])
    built = shell.run(f"index {run}", machine="two").stdout
    assert built.startswith(f"{run}: index built: 40 rows, 0 lines rejected")
    (current,) = json.loads(shell.run(f"index {run} --json", machine="three").stdout)["runs"]
    assert (current["run"], current["index"], current["rows"]) == (run, "current", 40)


@pytest.mark.slow
def test_a_second_writer_is_refused_and_keys_reach_no_file(shell: Shell) -> None:
    obstore.put(shell.store(), "c/run/driver.lock", b"{}")
    refused = shell.run(f"{COLLECT} -o s3://data/c/run -k 1", code=2)
    assert "another process is writing" in refused.stderr
    _drop_lock(shell, "c/run")
    done = shell.run(f"{COLLECT} -o s3://data/c/run -k 1")
    assert "s3://data/c/run" in done.stderr, "messages name the bucket, not the working copy"
    files = [path for path in (shell.folder / "one").rglob("*") if path.is_file()]
    assert files
    assert not any(b"a-secret-for-tests" in path.read_bytes() for path in files)


def test_what_is_not_there_is_said(shell: Shell) -> None:
    refused = shell.run("metrics s3://no-such-bucket/run", code=2)
    assert "s3://no-such-bucket/run" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "no rollouts.jsonl" in shell.run("metrics s3://data/nothing/here", code=2).stderr
    assert "would reach the run's files" in shell.run("metrics s3://key@data/run", code=2).stderr
    for command in (
        f"{COLLECT} -o s3://no-such-bucket/run",
        f"{COLLECT} -o s3://no-such-bucket/run --shard 0/2",
    ):
        refused = shell.run(command, code=2)
        assert "there is no bucket 'no-such-bucket'" in refused.stderr and "Traceback" not in refused.stderr
    command = f"{COLLECT} -o s3://data/never".replace("tasks.jsonl", "s3://data/nothing.jsonl")
    assert "s3://data/nothing.jsonl: no such object" in shell.run(command, code=2).stderr


@pytest.mark.slow
def test_a_store_that_ignores_conditions_is_refused_before_the_first_request(tmp_path: Path) -> None:
    with rclone_store(tmp_path / "store") as lying:
        refused = Shell(tmp_path, lying).run(f"{COLLECT} -o s3://data/run -k 1", code=2)
        assert "ignores conditional writes" in refused.stderr
        assert not list((tmp_path / "store" / "data").rglob("*rollouts*"))


@pytest.mark.slow
def test_python_reads_and_writes_addresses(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    import rollforge as rf

    for name, value in shell.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(shell.folder)
    obstore.put(shell.store(), "p/tasks.jsonl", (shell.folder / "tasks.jsonl").read_bytes())
    url = "s3://data/p/run"
    run = rf.collect("s3://data/p/tasks.jsonl", out=url, model="simulated", verifier="exact", samples=2)
    assert run.outcome.ok and repr(run) == f"Run('{url}')"
    monkeypatch.setenv("XDG_CACHE_HOME", str(shell.folder / "another"))
    there = rf.open_run(url)
    assert there.metrics()["reward"].n == 40
    there.verify("exact", strict=True)
    there.prepare("sft", to="trl", out="s3://data/p/sft", force=True)
    rows = bytes(obstore.get(shell.store(), "p/sft/train.jsonl").bytes())
    shell.run("prepare sft s3://data/p/run --to trl -o here --force", machine="third")
    assert (shell.folder / "here" / "train.jsonl").read_bytes() == rows
    keys = [one["path"] for batch in obstore.list(shell.store(), "p/run/") for one in batch]
    assert any("rollouts_verdicts.jsonl.parts/" in key for key in keys), "verdicts reach the bucket"
    with pytest.raises(UsageError, match="folder on disk"):
        rf.evaluate("tasks.jsonl", model="simulated", out="s3://data/p/eval")
