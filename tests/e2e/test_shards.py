"""Shards and workers: the same bytes whoever did the work, and nothing lost or doubled by kills, zombies or resumes.

Real processes, real kill -9, SIGSTOP and SIGCONT. `make torture` runs twenty random kills per way.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollforge.simulate import SimulatedProcess, SimulateOptions, example_tasks
from rollforge.steps import merge
from rollforge.store.files import RunFiles
from rollforge.store.rollout_parts import parts_of

IS_TORTURE = bool(os.environ.get("ROLLFORGE_TORTURE"))
TASKS, SAMPLES = (200, 8) if IS_TORTURE else (40, 4)
KILLS = 20 if IS_TORTURE else 3
RECIPES = ("sft", "dpo", "kto", "grpo")
LIMIT_S = 300


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with SimulatedProcess(SimulateOptions(seed=3)) as running:
        yield running.base_url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    """A folder with tasks and the run that one process made: the measure of all others."""
    folder = tmp_path_factory.mktemp("shards")
    rows = example_tasks(TASKS, 0, "math")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(collect(folder, "one", server))
    return folder


def collect(folder: Path, name: str, url: str, *more: str, c: int = 8) -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "rollforge",
            "collect",
            "-i",
            str(folder / "tasks.jsonl"),
            "-o",
            str(folder / name),
        ),
        *("-m", "simulated", "--base-url", url, "--verifier", "exact", "-k", str(SAMPLES), "-c", str(c)),
        *("--progress", "none", *more),
    ]


def run(words: list[str], *, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert code is None or done.returncode == code, done.stderr
    return done


def rollforge(*words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "rollforge", *words], code=code)


def keys(path: Path) -> Counter[tuple[int, int]]:
    """The keys of everything that counts."""
    found = Counter()
    for part in parts_of(RunFiles(path)).rollouts:
        for line in part.lines():
            row = json.loads(line)
            found[row["_ng_task_index"], row["_ng_rollout_index"]] += 1
    return found


def assert_exact(path: Path) -> None:
    assert keys(path) == {(task, sample): 1 for task in range(TASKS) for sample in range(SAMPLES)}


def datasets(folder: Path, name: str) -> dict[str, str]:
    """Recipe → digest of the rows."""
    found = {}
    for recipe in RECIPES:
        out = folder / f"{name.replace('/', '-')}-{recipe}"
        rollforge("prepare", recipe, str(folder / name), "--to", "trl", "-o", str(out), "--force")
        digest = hashlib.sha256()
        for path in sorted(out.glob("train*")):
            digest.update(path.read_bytes())
        found[recipe] = digest.hexdigest()
    return found


def numbers(folder: Path, name: str) -> list[object]:
    """Metrics and profile without names of files and measured durations."""
    metrics = json.loads(rollforge("metrics", str(folder / name), "--json").stdout)
    for key in ("run", "throughput", "facts"):
        metrics.pop(key)
    profile = json.loads(rollforge("profile", str(folder / name), "--json").stdout)
    for key in ("run", "files"):
        profile.pop(key, None)
    rows = (folder / name / "rollouts_reward_profiling.jsonl").read_bytes()
    return [metrics, profile, hashlib.sha256(rows).hexdigest()]


def wait_for(condition: object, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def rows_of(path: Path) -> int:
    return sum(
        data.count(b"\n") for data in (one.read_bytes() for one in path.glob("shards/*/e*/rollouts.jsonl"))
    )


@pytest.fixture(scope="module")
def expected(folder: Path) -> tuple[dict[str, str], list[object]]:
    return datasets(folder, "one"), numbers(folder, "one")


# -- the same bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_shards_and_their_merged_file_give_the_same_datasets_and_numbers(
    folder: Path, server: str, expected: tuple[dict[str, str], list[object]]
) -> None:
    for shard in (2, 0, 1):
        run(collect(folder, "three", server, "--shard", f"{shard}/3"))
    assert_exact(folder / "three")
    assert (datasets(folder, "three"), numbers(folder, "three")) == expected
    rollforge("merge", str(folder / "three"), "-o", str(folder / "merged" / "rollouts.jsonl"))
    lines = (folder / "merged" / "rollouts.jsonl").read_bytes().splitlines()
    merged = [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in map(json.loads, lines)]
    assert merged == sorted(merged) and len(merged) == TASKS * SAMPLES
    assert datasets(folder, "merged") == expected[0]


@pytest.mark.slow
def test_queries_and_experiences_of_shards_are_those_of_one_file(folder: Path, server: str) -> None:
    for shard in (1, 0):
        run(collect(folder, "asked", server, "--shard", f"{shard}/2"))
    sql = "select task, rollout, reward, answer_chars from rollouts order by 1, 2"
    answers = [rollforge("query", str(folder / name), sql, "--json").stdout for name in ("one", "asked")]
    assert answers[0] == answers[1]
    made = []
    for name in ("one", "asked"):
        rollforge("experiences", str(folder / name), "-o", str(folder / f"{name}.experiences.jsonl"))
        rows = map(json.loads, (folder / f"{name}.experiences.jsonl").read_bytes().splitlines())
        made.append([{key: row[key] for key in ("reward", "messages") if key in row} for row in rows])
    assert made[0] == made[1] and len(made[0]) >= TASKS * SAMPLES


def test_shards_that_nobody_has_begun_are_idle_not_interrupted(folder: Path, server: str) -> None:
    run(collect(folder, "idle", server, "--shard", "0/2"))
    status = json.loads(rollforge("status", str(folder / "idle"), "--json").stdout)
    assert status["state"] == "idle" and status["shards"]["array"] == "1"
    assert "--shard 1/2" in rollforge("status", str(folder / "idle")).stdout


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same_datasets_and_numbers(
    folder: Path, server: str, expected: tuple[dict[str, str], list[object]], workers: int
) -> None:
    name = f"workers{workers}"
    run(collect(folder, name, server, "--workers", str(workers)))
    assert_exact(folder / name)
    assert (datasets(folder, name), numbers(folder, name)) == expected


# -- kills ----------------------------------------------------------------------------------------------------------------


def start(words: list[str], said: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a command; what it says on stderr is added to `said`."""
    with (said or Path(os.devnull)).open("ab") as stderr:
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=stderr)


@pytest.mark.slow
def test_torture_a_killed_shard_resumes_with_what_is_owed(
    folder: Path, server: str, expected: tuple[dict[str, str], list[object]]
) -> None:
    chance, path = random.Random(5), folder / "killed"
    run(collect(folder, "killed", server, "--shard", "0/2"))
    for _ in range(KILLS):
        before = rows_of(path)
        process = start(collect(folder, "killed", server, "--shard", "1/2", c=2))
        wait_for(lambda before=before, process=process: rows_of(path) > before or process.poll() is not None)
        time.sleep(chance.random() * 0.3)
        process.kill()
        process.wait()
    acknowledged = keys(path)
    run(collect(folder, "killed", server, "--shard", "1/2"))
    assert_exact(path)
    assert not acknowledged - keys(path)
    assert datasets(folder, "killed") == expected[0]


@pytest.mark.slow
def test_a_stopped_owner_that_wakes_up_later_harms_nothing(folder: Path, server: str) -> None:
    path = folder / "zombie"
    zombie = start(collect(folder, "zombie", server, "--shard", "0/1", c=2))
    try:
        wait_for(lambda: rows_of(path) > 3)
        zombie.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        shown = rollforge("status", str(path)).stdout
        assert "00000  open" in shown and "None" not in shown
        for name in ("e1.beat", "e1.owner"):
            old = time.time() - 200
            os.utime(path / "shards/00000" / name, (old, old))
        before = keys(path)
        assert rollforge("status", str(path), "--owed").stdout == "0\n"
        successor = start(collect(folder, "zombie", server, "--shard", "0/1", c=2))
        wait_for(lambda: (path / "shards/00000/e2/rollouts.jsonl").exists())
        zombie.send_signal(signal.SIGCONT)
        assert zombie.wait(LIMIT_S) == 3
        assert successor.wait(LIMIT_S) == 0
    finally:
        zombie.kill()
    assert_exact(path)
    assert not before - keys(path)
    assert json.loads((path / "shards/00000/e1.end").read_bytes())["state"] == "taken over"


@pytest.mark.slow
def test_torture_killed_workers_are_replaced_and_nothing_is_lost(
    folder: Path, server: str, expected: tuple[dict[str, str], list[object]]
) -> None:
    chance, path = random.Random(7), folder / "replaced"
    driver = start(collect(folder, "replaced", server, "--workers", "2", c=4))
    killed = 0
    while driver.poll() is None and killed < min(KILLS, 5):
        time.sleep(0.2 + chance.random() * 0.3)
        workers = children(driver.pid)
        if rows_of(path) and workers:
            os.kill(chance.choice(workers), signal.SIGKILL)
            killed += 1
    assert driver.wait(LIMIT_S) == 0
    assert_exact(path)
    assert datasets(folder, "replaced") == expected[0]


@pytest.mark.slow
def test_torture_a_killed_driver_takes_its_workers_along_and_the_same_command_resumes(
    folder: Path, server: str, expected: tuple[dict[str, str], list[object]]
) -> None:
    chance, path = random.Random(9), folder / "driver"
    for _ in range(KILLS):
        before = rows_of(path)
        driver = start(collect(folder, "driver", server, "--workers", "2", c=4))
        wait_for(lambda before=before, driver=driver: rows_of(path) > before or driver.poll() is not None)
        workers = children(driver.pid)
        time.sleep(chance.random() * 0.3)
        driver.kill()
        driver.wait()
        wait_for(lambda workers=workers: not any(is_running(pid) for pid in workers))
    acknowledged = keys(path)
    run(collect(folder, "driver", server, "--on", "local"))
    assert_exact(path)
    assert not acknowledged - keys(path)
    assert datasets(folder, "driver") == expected[0]


def children(pid: int) -> list[int]:
    """The worker processes of a driver."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    found = []
    for child in map(int, text.split()):
        try:
            words = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        if b"process_worker" in words:
            found.append(child)
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


# -- refusals and words ---------------------------------------------------------------------------------------------------


def test_other_settings_another_count_and_a_single_file_are_refused(folder: Path, server: str) -> None:
    run(collect(folder, "fixed", server, "--shard", "0/2"))
    assert "2 shards, not 4" in run(collect(folder, "fixed", server, "--shard", "1/4"), code=7).stderr
    assert (
        "temperature"
        in run(collect(folder, "fixed", server, "--shard", "1/2", "--temperature", "1"), code=7).stderr
    )
    assert "single file" in run(collect(folder, "one", server, "--workers", "2"), code=7).stderr
    assert "no shard 2" in run(collect(folder, "fixed", server, "--shard", "2/2"), code=2).stderr


def test_merge_names_gaps_and_exits_with_3(folder: Path, server: str) -> None:
    first = run(collect(folder, "half", server, "--shard", "0/2"))
    assert f"rollforge status {folder / 'half'}" in first.stdout + first.stderr
    output = json.loads(rollforge("merge", str(folder / "half"), "--json", code=3).stdout)
    assert output["written"] == output["missing"] == TASKS * SAMPLES // 2
    assert output["gaps"][0] == {"task": TASKS // 2, "rollout": 0, "shard": 1}
    assert output["owed_shards"] == "1"
    assert "missing" in rollforge("merge", str(folder / "half"), code=3).stdout
    status = json.loads(rollforge("status", str(folder / "half"), "--json").stdout)
    assert (status["shards"]["finished"], status["shards"]["owed"], status["shards"]["array"]) == (1, 1, "1")
    assert "--shard 1/2" in rollforge("status", str(folder / "half")).stdout


def test_a_merge_whose_early_sync_fails_writes_nothing(
    folder: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a failed write once: the sync at the end would not see it again."""

    def fail(handle: int) -> None:
        raise OSError(5, "Input/output error")

    run(collect(folder, "failing", server, "--workers", "2"))
    out = folder / "failing_merged" / "rollouts.jsonl"
    monkeypatch.setattr(merge, "SYNCED_BYTES", 1)
    monkeypatch.setattr(merge, "sync_file", fail)
    with pytest.raises(OSError, match="Input/output error"):
        merge.merge_run(folder / "failing", out)
    assert not out.exists()


def test_merge_never_writes_over_another_run(folder: Path, server: str) -> None:
    run(collect(folder, "other", server))
    other = folder / "other" / "rollouts.jsonl"
    before = other.read_bytes()
    run(collect(folder, "shards", server, "--shard", "0/2"))
    assert "is no merge of" in rollforge("merge", str(folder / "shards"), "-o", str(other), code=2).stderr
    assert other.read_bytes() == before
    again = folder / "merged_twice" / "rollouts.jsonl"
    for _ in range(2):
        rollforge("merge", str(folder / "shards"), "-o", str(again), code=3)


def test_merge_names_doubles_and_refuses_the_shards_of_another_run(folder: Path, server: str) -> None:
    for shard in range(2):
        run(collect(folder, "doubled", server, "--shard", f"{shard}/2"))
    path = folder / "doubled" / "shards" / "00000"
    end = json.loads((path / "e1.end").read_bytes())
    rows = path / "e1" / "rollouts.jsonl"
    rows.write_bytes(rows.read_bytes() + rows.read_bytes().splitlines(keepends=True)[0])
    end["files"]["rollouts"]["length"] = rows.stat().st_size
    (path / "e1.end").write_bytes(json.dumps(end).encode())
    output = json.loads(rollforge("merge", str(folder / "doubled"), "--json").stdout)
    assert (
        output["doubled"] == 1 and output["written"] == TASKS * SAMPLES and output["doubles"][0]["shard"] == 0
    )
    owner = json.loads((path / "e1.owner").read_bytes()) | {"plan": "0123456789abcdef"}
    (path / "e1.owner").write_bytes(json.dumps(owner).encode())
    for command in ("merge", "profile", "metrics"):
        assert "another plan" in rollforge(command, str(folder / "doubled"), code=7).stderr
