"""The digest of a run's file: taken with the pass that reads it, and never that of another state of the file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from rollforge.index import open_index
from rollforge.index.digests import digest_of
from tests.builders import make_rollout, write_rows


def kept_digest(folder: Path) -> dict[str, str]:
    return msgspec.json.decode((folder / "digest-rollouts.jsonl.json").read_bytes(), type=dict[str, str])


@pytest.mark.parametrize("workers", [1, 2])
def test_the_pass_takes_the_digest(tmp_path: Path, workers: int) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(task, 0, reward=1.0) for task in range(5)])
    open_index(path, workers=workers).close()
    assert list(kept_digest(tmp_path / "rollouts_index").values()) == [
        hashlib.sha256(path.read_bytes()).hexdigest()
    ]


def test_a_file_that_grew_has_another_digest(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=1.0)])
    open_index(path).close()
    with path.open("ab") as file:
        file.write(path.read_bytes().replace(b'"_ng_task_index":0', b'"_ng_task_index":1'))
    open_index(path).close()
    assert digest_of(path, tmp_path / "rollouts_index") == hashlib.sha256(path.read_bytes()).hexdigest()
    assert list(kept_digest(tmp_path / "rollouts_index").values()) == [
        hashlib.sha256(path.read_bytes()).hexdigest()
    ]


def test_a_damaged_note_is_made_anew(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rollouts.jsonl", [make_rollout(0, 0, reward=1.0)])
    open_index(path).close()
    note = tmp_path / "rollouts_index" / "digest-rollouts.jsonl.json"
    note.write_bytes(b"{")
    assert digest_of(path, note.parent) == hashlib.sha256(path.read_bytes()).hexdigest()
