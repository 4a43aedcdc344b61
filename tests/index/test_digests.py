"""The digest of a run's file: taken beside other work, and never that of another state of the file."""

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

from rollforge.index import open_index
from rollforge.index.digests import Digests
from rollforge.index.hashing import digest_of, key_of
from tests.builders import make_rollout, write_rows


def kept_digest(folder: Path) -> dict[str, str]:
    return msgspec.json.decode((folder / "digest-rollouts.jsonl.json").read_bytes(), type=dict[str, str])


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(autouse=True)
def every_file_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollforge.index.digests.readers", lambda size, workers: 2)


def make_run(folder: Path) -> Path:
    path = write_rows(folder / "rollouts.jsonl", [make_rollout(task, 0, reward=1.0) for task in range(5)])
    open_index(path).close()
    return path


def take_beside(*paths: Path) -> None:
    with Digests() as digests:
        digests.begin([(path, path.parent / "rollouts_index") for path in paths])


def test_reading_a_run_takes_no_digest(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert not list((tmp_path / "rollouts_index").glob("digest-*"))


def test_the_digest_is_taken_beside_other_work_and_remembered(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    take_beside(path)
    assert list(kept_digest(tmp_path / "rollouts_index").values()) == [sha256(path)]


def test_a_digest_that_is_known_is_not_taken_again(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    assert digest_of(path, tmp_path / "rollouts_index") == sha256(path)
    with Digests() as digests:
        digests.begin([(path, tmp_path / "rollouts_index")])
        assert digests._child is None


def test_a_file_that_grew_has_another_digest(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    take_beside(path)
    before = sha256(path)
    with path.open("ab") as file:
        file.write(b"{}\n")
    take_beside(path)
    assert list(kept_digest(tmp_path / "rollouts_index").values()) == [sha256(path)] != [before]


def test_a_damaged_note_is_made_anew(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    take_beside(path)
    note = tmp_path / "rollouts_index" / "digest-rollouts.jsonl.json"
    note.write_bytes(b"{")
    assert digest_of(path, note.parent) == sha256(path)


def test_several_files_are_taken_by_one_process(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in ("a", "b")]
    take_beside(*paths)
    for path in paths:
        assert list(kept_digest(path.parent / "rollouts_index").values()) == [sha256(path)]


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
    assert digests._child is not None and digests._child.returncode == -9


def test_without_an_interpreter_to_start_the_digest_is_left_to_whoever_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-such-python"))
    take_beside(path)
    assert digest_of(path, tmp_path / "rollouts_index") == sha256(path)


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
    code = f"from rollforge.index import digests; from pathlib import Path; d = digests.Digests(); p = Path({str(path)!r})\n"
    code += "digests.readers = lambda size, workers: 2; d.begin([(p, p.parent)]); print(d._child.pid, flush=True); input()"
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
