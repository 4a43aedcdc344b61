"""Temporary directories of killed processes are removed by the next one; nobody else's are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rollforge.store import scratch

MAKER = """
import sys, time
from rollforge.store.scratch import make_scratch
print(make_scratch("program"), flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_cleaned", set())
    return tmp_path


def start_maker(place: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a directory of its own."""
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(place)},
    )
    assert maker.stdout is not None
    return maker, Path(maker.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_by_the_next_one(place: Path) -> None:
    maker, left = start_maker(place)
    (left / "work").mkdir()
    (left / "work" / "answer").write_text("x")
    (left / "work").chmod(0o500)
    mine = scratch.make_scratch("program")
    assert left.exists(), "its process lives"
    maker.kill()
    maker.wait()
    scratch._cleaned.clear()
    scratch.make_scratch("program")
    assert not left.exists()
    assert mine.exists()


def test_what_is_not_ours_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker, left = start_maker(place)
    maker.kill()
    maker.wait()
    elsewhere = place / f"rollforge-program-00000000-{left.name.split('-', 3)[3]}"
    elsewhere.mkdir()
    target = place / "target"
    target.mkdir()
    link = place / (left.name[:-8] + "12345678")
    link.symlink_to(target)
    unnamed = place / "rollforge-program-abcdefgh"
    unnamed.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert scratch.remove_orphans(place) == 0, "another user's"
    monkeypatch.undo()
    assert scratch.remove_orphans(place) == 1
    assert not left.exists()
    assert elsewhere.exists() and link.is_symlink() and target.exists() and unnamed.exists()


def test_links_inside_are_not_followed(place: Path) -> None:
    keep = place / "keep"
    keep.mkdir()
    (keep / "file").write_text("x")
    keep.chmod(0o500)
    root = scratch.make_scratch("program")
    (root / "link").symlink_to(keep)
    scratch.remove_scratch(root)
    assert not root.exists()
    assert (keep / "file").read_text() == "x" and keep.stat().st_mode & 0o777 == 0o500


@pytest.mark.parametrize("is_there", [True, False])
def test_removal_leaves_the_parents_permissions_alone(
    place: Path, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may remove the same directory first; /tmp stays everybody's."""
    place.chmod(0o1777)
    root = place / "rollforge-program-0-0-0-x"
    if is_there:
        root.mkdir()
        monkeypatch.setattr(os, "rmdir", refuse)
    scratch.remove_scratch(root)
    assert place.stat().st_mode & 0o7777 == 0o1777


def refuse(*words: object, **options: object) -> None:
    raise PermissionError("not yours")
