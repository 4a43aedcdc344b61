"""Runs that a crash, a power cut or a stranger left behind: they resume, or are moved aside with a message."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.errors import DataError
from rollforge.review.labels import Label, LabelFile
from rollforge.rollouts import TaskFields
from rollforge.simulate import example_tasks
from rollforge.store import RunFiles, mend_tail, reading
from rollforge.store.tail import damaged_file
from rollforge.tasks.file import TaskFile

KILLED_AT_SYNC = """
import os
calls = 0
def killer(real):
    def sync(handle):
        global calls
        calls += 1
        if calls == {number}:
            os.kill(os.getpid(), 9)
        return real(handle)
    return sync
os.fsync, os.fdatasync = killer(os.fsync), killer(os.fdatasync)
"""
ROW = b'{"_ng_task_index": 0, "_ng_rollout_index": 0}\n'


def collect(
    folder: Path, fault: str = "", *more: str, umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    tasks = folder / "tasks.jsonl"
    if not tasks.exists():
        tasks.write_text("".join(json.dumps(row) + "\n" for row in example_tasks(4, 0, "math")))
    words = ["collect", "-i", "tasks.jsonl", "-o", "run", "-m", "simulated", "--verifier", "exact", "-k", "2"]
    program = f"{fault}\nfrom rollforge.cli import main\nmain({[*words, '--progress', 'none', *more]!r})"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120, umask=umask,
    )  # fmt: skip


def rollforge(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rollforge", *map(str, words)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def assert_whole(folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "run" / "rollouts.jsonl").read_text().splitlines()]
    keys = sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows)
    assert keys == [(task, sample) for task in range(4) for sample in range(2)]


@pytest.mark.parametrize("number", range(1, 13, 1 if os.environ.get("ROLLFORGE_TORTURE") else 3))
def test_a_run_killed_at_any_sync_resumes(tmp_path: Path, number: int) -> None:
    """Also before its first manifest: the kill comes at the first, second, … call of fsync."""
    collect(tmp_path, KILLED_AT_SYNC.format(number=number))
    done = collect(tmp_path)
    assert done.returncode == 0, done.stderr
    assert_whole(tmp_path)


def test_the_manifest_is_on_disk_before_the_first_row(tmp_path: Path) -> None:
    stop = """
import os
real = os.fdatasync
def sync(handle):
    if os.readlink(f"/proc/self/fd/{handle}").endswith("/rollouts.jsonl"):
        os.kill(os.getpid(), 9)
    return real(handle)
os.fdatasync = sync
"""
    assert collect(tmp_path, stop).returncode == -9
    assert (tmp_path / "run" / "rollouts.jsonl").stat().st_size, "a row was being written"
    assert json.loads((tmp_path / "run" / "rollouts_run.json").read_text())["state"] == "running"


def test_a_run_of_ours_without_a_manifest_is_moved_aside_with_a_message(tmp_path: Path) -> None:
    assert collect(tmp_path).returncode == 0
    old = (tmp_path / "run" / "rollouts.jsonl").read_bytes()
    (tmp_path / "run" / "rollouts_run.json").unlink()
    done = collect(tmp_path, "", "--json")
    assert done.returncode == 0 and "no manifest" in done.stdout, done.stderr
    (aside,) = (
        path for path in (tmp_path / "run").iterdir() if path.is_dir() and path.name != "rollouts_index"
    )
    assert (aside / "rollouts.jsonl").read_bytes() == old
    assert_whole(tmp_path)


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        (b"\n", b""),
        (b"\n\n \t\n", b""),
        (b"\0" * 5000, b""),
        (b"\0" * 5000 + b"\n", b""),
        (b"\0" * 200_000 + b"\n\n", b""),
        (b'{"torn": "\xff\xfe', b""),
        (b'{"torn": ' + b"\0" * 100 + b"\n", b""),
        (b"[" * 100_000, b""),
        (ROW.rstrip(b"\n"), ROW),
        (ROW.rstrip(b"\n") + b"\0" * 9000, ROW),
        (b'{"torn"\n\0\0\n'[:7] + b"\0", b""),
    ],
)
def test_what_a_crash_leaves_at_the_end_is_cut_and_kept_beside(
    tmp_path: Path, tail: bytes, kept: bytes
) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(ROW + tail)
    cut = mend_tail(path)
    assert path.read_bytes() == ROW + kept
    assert mend_tail(path) == 0, "mending twice changes nothing"
    if cut:
        assert damaged_file(path) == tmp_path / "rollouts.damaged"
        assert damaged_file(path).read_bytes() == (ROW + tail)[len(ROW + tail) - cut :] + b"\n"


@pytest.mark.parametrize("tail", [b"\n", b"\0" * 100 + b"\n", b'{"torn": "\xff\xfe'])
def test_a_damaged_tail_is_named_in_the_summary_and_the_run_resumes(tmp_path: Path, tail: bytes) -> None:
    assert collect(tmp_path).returncode == 0
    rollouts = tmp_path / "run" / "rollouts.jsonl"
    lines = rollouts.read_bytes().splitlines(keepends=True)
    rollouts.write_bytes(b"".join(lines[:-1]) + tail)
    done = collect(tmp_path, "", "--json")
    assert done.returncode == 0, done.stderr
    assert any("damaged byte" in note for note in json.loads(done.stdout)["notes"])
    assert (tmp_path / "run" / "rollouts.damaged").read_bytes() == tail + b"\n"
    assert_whole(tmp_path)


@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts_failures.jsonl", "rollouts.lock"])
def test_a_symbolic_link_inside_a_run_is_not_written_through(tmp_path: Path, name: str) -> None:
    assert collect(tmp_path).returncode == 0
    precious = tmp_path / "precious.txt"
    precious.write_bytes(b"mine\n")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(precious)
    done = collect(tmp_path)
    assert done.returncode == 2 and "symbolic link" in done.stderr, done.stderr
    assert precious.read_bytes() == b"mine\n"


def test_a_linked_folder_of_verdicts_deletes_nothing_elsewhere(tmp_path: Path) -> None:
    """Workers of `verify` leave folders there, which are removed once their verdicts are in the run."""
    assert collect(tmp_path).returncode == 0
    parts = tmp_path / "run" / "rollouts_verdicts.parts"
    precious = tmp_path / "home" / "documents" / "letter.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("mine")
    parts.symlink_to(tmp_path / "home")
    words = ("verify", tmp_path / "run", "--verifier", "exact", "--workers", "2")
    done = rollforge(*words)
    assert done.returncode == 2 and "symbolic link" in done.stderr, done.stderr
    parts.unlink()
    parts.mkdir()
    (parts / "linked").symlink_to(tmp_path / "home")
    (parts / "file").write_text("of nobody")
    done = rollforge(*words)
    assert done.returncode == 0 and not parts.exists(), done.stderr
    assert precious.read_text() == "mine"


def test_later_verdicts_are_not_written_through_a_link(tmp_path: Path) -> None:
    assert collect(tmp_path).returncode == 0
    precious = tmp_path / "precious.txt"
    precious.write_bytes(b"")
    (tmp_path / "run" / "rollouts_verdicts.jsonl").symlink_to(precious)
    for more in (("--workers", "2"), ()):
        done = rollforge("verify", tmp_path / "run", "--verifier", "exact", *more)
        assert done.returncode == 2 and "symbolic link" in done.stderr, done.stderr
    assert precious.read_bytes() == b""


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("rollouts_batches", ()),
        ("rollouts_artifacts", ()),
        ("shards", ("--workers", "2")),
        ("rollouts_metrics.jsonl", ("--step-size", "2", "--sink", "jsonl")),
    ],
)
def test_nothing_is_written_where_a_link_in_a_new_run_points(
    tmp_path: Path, name: str, more: tuple[str, ...]
) -> None:
    target = tmp_path / "elsewhere"
    if not name.endswith(".jsonl"):
        target.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(target)
    done = collect(tmp_path, "", *more)
    assert done.returncode == 2 and "symbolic link" in done.stderr, done.stderr
    assert not any(target.iterdir()) if target.is_dir() else not target.exists()


def test_files_that_validate_writes_replace_links(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    (tmp_path / "tasks.jsonl").write_text('{"prompt":"a"}\nno json\n')
    for name in ("tasks.clean.jsonl", "tasks.rejects.jsonl"):
        (tmp_path / name).symlink_to(precious)
    done = rollforge("validate", tmp_path / "tasks.jsonl", "--fix")
    assert precious.read_text() == "mine", done.stderr
    assert not (tmp_path / "tasks.clean.jsonl").is_symlink(), done.stderr + done.stdout


def test_files_that_are_replaced_replace_the_link_and_not_its_target(tmp_path: Path) -> None:
    assert collect(tmp_path).returncode == 0
    precious = tmp_path / "precious.txt"
    precious.write_bytes(b"mine\n")
    manifest = tmp_path / "run" / "rollouts_run.json"
    precious.write_bytes(manifest.read_bytes())
    before = precious.read_bytes()
    manifest.unlink()
    manifest.symlink_to(precious)
    assert collect(tmp_path).returncode == 0
    assert precious.read_bytes() == before and not manifest.is_symlink()


def test_run_files_are_as_private_as_the_umask_asks(tmp_path: Path) -> None:
    assert collect(tmp_path, "", "--step-size", "2", umask=0o077).returncode == 0
    modes = {
        path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*") if path.is_file()
    }
    assert modes and set(modes.values()) == {0o600}, modes


@pytest.mark.parametrize(
    "number", ["18446744073709551616", "9" * 400, "-9223372036854775809", "1e999", "null"]
)
def test_a_task_number_that_fits_nowhere_is_a_damaged_tasks_file(tmp_path: Path, number: str) -> None:
    path = tmp_path / "rollouts_tasks.jsonl"
    rows = [f'{{"responses_create_params":{{}},"_ng_task_index":{one}}}\n' for one in ("0", number)]
    path.write_text("".join(rows))
    assert TaskFile.open(path, count=1).ids.tolist() == [0]
    with pytest.raises(DataError, match="1 of 2 tasks can be read"):
        TaskFile.open(path, count=2)
    fields = TaskFields(RunFiles(tmp_path), path)
    assert fields.indices() == ([0, 1] if number == "null" else [0])
    fields.close()


@pytest.mark.parametrize("is_pipe", [True, False], ids=["pipe", "device"])
@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts_run.json", "rollouts_verdicts.jsonl"])
def test_a_run_with_a_pipe_or_a_device_in_it_is_not_read_for_ever(
    tmp_path: Path, name: str, is_pipe: bool
) -> None:
    assert collect(tmp_path).returncode == 0
    path = tmp_path / "run" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path) if is_pipe else path.symlink_to("/dev/zero")
    for words in (["status"], ["metrics"], ["verify", "--verifier", "exact"]):
        done = rollforge(words[0], tmp_path / "run", *words[1:])
        assert done.returncode == 2, done.stderr
        assert f"{path} is a device or a pipe" in done.stderr or "there is no rollouts.jsonl" in done.stderr
    assert f"{name} is a device or a pipe" in collect(tmp_path).stderr


@pytest.mark.parametrize("place", ["rollouts_index/*/*", "shards/*", "shards/*/*", "shards/*/*/*"])
def test_a_pipe_in_the_index_or_in_a_shard_is_not_read_for_ever(tmp_path: Path, place: str) -> None:
    words = ["--shard", "0/2"] if place.startswith("shards") else []
    assert collect(tmp_path, "", *words).returncode in (0, 3)
    run = tmp_path / "run"
    rollforge("metrics", run)
    for path in sorted(path for path in run.glob(place) if path.is_file()):
        data = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        done = rollforge("metrics", run)
        assert done.returncode == 2, done.stderr
        assert f"{path} is a device or a pipe" in done.stderr or "there is no rollouts.jsonl" in done.stderr
        path.unlink()
        path.write_bytes(data)
    assert rollforge("metrics", run).returncode == 0


def test_a_manifest_that_is_no_file_has_a_message(tmp_path: Path) -> None:
    assert collect(tmp_path).returncode == 0
    path = tmp_path / "run" / "rollouts_run.json"
    path.unlink()
    path.symlink_to(path.name)
    for words in (["status"], ["metrics"], ["check"]):
        done = rollforge(words[0], tmp_path / "run")
        assert done.returncode == 2 and str(path) in done.stderr and "Traceback" not in done.stderr, (
            done.stderr
        )


def test_a_file_that_is_read_whole_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LONGEST_LINE", 1000)
    path = tmp_path / "rollouts_run.json"
    path.write_bytes(b" " * 1001)
    with pytest.raises(DataError, match="too large"):
        reading.read_json(path)
    path.unlink()
    for target in ("/dev/zero", tmp_path / "pipe"):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        if target != "/dev/zero":
            os.mkfifo(target)
        with pytest.raises(DataError, match="not a regular file"):
            reading.read_json(path)


def test_a_label_is_not_written_through_a_link(tmp_path: Path) -> None:
    files = RunFiles(tmp_path)
    files.labels.symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic links"):
        LabelFile(files).add(Label(task=0, rollout=0, label="agree"))
    assert not (tmp_path / "outside").exists()
