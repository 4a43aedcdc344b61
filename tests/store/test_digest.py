"""The digest of a file is that of its bytes now, taken once."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from rollforge.store import digest
from rollforge.store.digest import Digests, digest_of


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_file(folder: Path, content: bytes = b"some bytes\n") -> Path:
    path = folder / "rollouts.jsonl"
    path.write_bytes(content)
    return path


def note_of(path: Path) -> Path:
    return path.parent / f"digest-{path.name}.json"


def test_a_digest_taken_beside_other_work_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_file(tmp_path)
    with Digests() as digests:
        digests.begin([(path, tmp_path)])
    monkeypatch.setattr(digest, "_sha256", lambda *_: pytest.fail("it is known"))
    assert digest_of(path, tmp_path) == sha256(path)


def test_a_file_that_grew_has_another_digest(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    before = digest_of(path, tmp_path)
    with path.open("ab") as file:
        file.write(b"{}\n")
    assert before != digest_of(path, tmp_path) == sha256(path)


def test_a_file_rewritten_at_its_old_time_has_another_digest(tmp_path: Path) -> None:
    path = make_file(tmp_path, b"a")
    before, first = path.stat(), digest_of(path, tmp_path)
    path.write_bytes(b"b")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert first != digest_of(path, tmp_path) == sha256(path)


def test_a_damaged_note_is_not_believed(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    right = digest_of(path, tmp_path)
    note = note_of(path).read_bytes()
    for place in range(0, len(note), 7):
        note_of(path).write_bytes(note[:place] + bytes([note[place] ^ 1]) + note[place + 1 :])
        assert digest_of(path, tmp_path) == right
    note_of(path).write_bytes(b"\xff{")
    assert digest_of(path, tmp_path) == right


def test_without_a_folder_nothing_is_remembered(tmp_path: Path) -> None:
    path = make_file(tmp_path)
    assert digest_of(path, tmp_path / "none") == digest_of(path) == sha256(path)
    assert [path.name for path in tmp_path.iterdir()] == [path.name]


def test_two_who_need_a_digest_at_once_take_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_file(tmp_path)
    is_taking, may_go_on, taken = threading.Event(), threading.Event(), []
    take = digest._sha256

    def slowly(path: Path, stop: threading.Event | None) -> str:
        taken.append(path)
        is_taking.set()
        may_go_on.wait(10)
        return take(path, stop)

    monkeypatch.setattr(digest, "_sha256", slowly)
    with Digests() as digests:
        digests.begin([(path, tmp_path)])
        is_taking.wait(10)
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(digest_of(path, tmp_path)))
        asking.start()
        may_go_on.set()
        asking.join()
    assert found == [sha256(path)] and len(taken) == 1


def test_a_failure_does_not_wait_for_a_long_digest(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(64 << 30)  # minutes of hashing
    with pytest.raises(ZeroDivisionError), Digests() as digests:
        digests.begin([(path, tmp_path)])
        raise ZeroDivisionError
