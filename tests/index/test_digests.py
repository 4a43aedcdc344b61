"""The digest of a run's file: taken with the pass that reads it, or beside it, and never that of another state of the file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from rollforge.errors import DataError
from rollforge.index import open_index
from rollforge.index.digests import Digests
from rollforge.index.hashing import digest_of, key_of
from tests.builders import make_rollout, write_rows


def kept_digest(folder: Path) -> dict[str, str]:
    return msgspec.json.decode((folder / "digest-rollouts.jsonl.json").read_bytes(), type=dict[str, str])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_pass_takes_the_digest(tmp_path: Path, workers: int) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, 0, reward=1.0) for task in range(5)])
    open_index(path, workers=workers, with_digests=True).close()
    assert list(kept_digest(tmp_path / "rollouts_index").values()) == [
        hashlib.sha256(path.read_bytes()).hexdigest()
    ]


def test_a_file_that_grew_has_another_digest(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=1.0)])
    open_index(path, with_digests=True).close()
    with path.open("ab") as file:
        file.write(path.read_bytes().replace(b'"_ng_task_index": 0', b'"_ng_task_index": 1'))
    open_index(path, with_digests=True).close()
    assert digest_of(path, tmp_path / "rollouts_index") == hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(kept_digest(tmp_path / "rollouts_index").values()) == [
        hashlib.sha256(path.read_bytes()).hexdigest()
    ]


def test_a_damaged_note_is_made_anew(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=1.0)])
    open_index(path, with_digests=True).close()
    note = tmp_path / "rollouts_index" / "digest-rollouts.jsonl.json"
    note.write_bytes(b"{")
    assert digest_of(path, note.parent) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_several_files_are_taken_by_one_process(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        row = make_rollout(0, 0, reward=1.0)
        paths.append(write_rows(tmp_path / name / "rollouts.jsonl", [row]))
    open_index(paths, workers=2, with_digests=True).close()
    for path in paths:
        assert list(kept_digest(path.parent / "rollouts_index").values()) == [
            hashlib.sha256(path.read_bytes()).hexdigest()
        ]


def test_a_file_that_was_written_anew_is_taken_anew(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=1.0)])
    open_index(path, workers=2, with_digests=True).close()
    write_rows(path, [make_rollout(7, 0, reward=0.0), make_rollout(8, 0, reward=0.0)])
    open_index(path, workers=2, with_digests=True).close()
    assert list(kept_digest(tmp_path / "rollouts_index").values()) == [
        hashlib.sha256(path.read_bytes()).hexdigest()
    ]


def test_whoever_needs_a_digest_that_is_being_taken_waits_for_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=1.0)])
    found: list[str] = []
    with (tmp_path / "digest-rollouts.jsonl.lock").open("a") as taking:
        fcntl.flock(taking, fcntl.LOCK_EX)
        asking = threading.Thread(target=lambda: found.append(digest_of(path, tmp_path)))
        asking.start()
        note = {key_of(path): "taken meanwhile"}
        (tmp_path / "digest-rollouts.jsonl.json").write_text(json.dumps(note))
    asking.join()
    assert found == ["taken meanwhile"]


def test_what_fails_does_not_wait_for_a_digest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless")  # nobody ever writes to it
    with pytest.raises(ZeroDivisionError), Digests() as digests:
        digests.begin([(tmp_path / "endless", tmp_path)])
        raise ZeroDivisionError
    assert [child.returncode for child in digests._children] == [-9]


def test_without_an_interpreter_to_start_the_digest_is_left_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=1.0)])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-such-python"))
    with open_index(path, workers=2, with_digests=True) as index:
        assert index.table(["task"]).num_rows == 1
    monkeypatch.undo()
    assert digest_of(path, tmp_path / "rollouts_index") == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_that_cannot_be_opened_leaves_no_process_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Digests] = []
    begin = Digests.begin
    monkeypatch.setattr(Digests, "begin", lambda self, files: (begun.append(self), begin(self, files)))
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=1.0)])
    (tmp_path / "rollouts_run.json").write_text("{")
    with pytest.raises(DataError):
        open_index(path, workers=2, with_digests=True)
    assert [child.poll() is not None for digests in begun for child in digests._children] == [True]


def test_a_file_rewritten_at_its_old_time_has_another_digest(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=0.0)])
    before = path.stat()
    first = digest_of(path, tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"reward": 0.0', b'"reward": 1.0'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert first != digest_of(path, tmp_path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_digest_whose_asker_was_killed_is_not_taken_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(64 << 30)  # minutes of hashing
    code = f"from rollforge.index.digests import Digests; from pathlib import Path; d = Digests(); p = Path({str(path)!r})\n"
    code += "d.begin([(p, p.parent)]); print(d._children[0].pid, flush=True); input()"
    asker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert asker.stdout is not None
    child = int(asker.stdout.readline())
    asker.kill()
    asker.communicate()
    for _ in range(200):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            break
        time.sleep(0.05)
    else:
        os.kill(child, 9)
        pytest.fail("the process that hashes outlived the one that wanted the digest")
