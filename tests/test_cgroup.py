"""Control groups of sandboxed programs: where they can be made, and what the kernel then keeps."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rollforge.sandbox import Limits, Sandbox, cgroup
from rollforge.sandbox.cgroup import ControlGroup, find_parent, make_group, own_group, usable_parent


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0::/user.slice/app\n", "user.slice/app"),
        ("0::/\n", ""),
        ("12:memory:/a\n0::/b\n", "b"),
        ("12:memory:/a\n1:name=systemd:/b\n", None),
        ("", None),
    ],
)
def test_the_own_group_is_read_from_the_kernels_list(text: str, found: str | None) -> None:
    assert own_group(text) == found


def make_tree(root: Path, above: str, own: str) -> Path:
    (root / "own").mkdir()
    (root / "cgroup.subtree_control").write_text(above)
    (root / "own" / "cgroup.subtree_control").write_text(own)
    return root / "own"


@pytest.mark.parametrize(
    ("above", "own", "wanted"),
    [
        ("cpu memory pids", "", ""),
        ("cpu memory pids", "memory pids", "own"),
        ("cpu", "memory", None),
        ("", "", None),
    ],
)
def test_groups_are_made_where_both_controllers_are_handed_down(
    tmp_path: Path, above: str, own: str, wanted: str | None
) -> None:
    found = find_parent(make_tree(tmp_path, above, own))
    assert found == (None if wanted is None else tmp_path / wanted)


def test_a_group_has_the_limits_and_the_program_enters_it_before_it_runs(tmp_path: Path) -> None:
    group = make_group(memory_bytes=1 << 20, processes=7, parent=tmp_path)
    assert group is not None
    assert {path.name: path.read_text() for path in group.folder.iterdir()} == {
        "pids.max": "7", "memory.max": str(1 << 20), "memory.oom.group": "1", "memory.swap.max": "0",
    }  # fmt: skip
    command = group.entering(["/bin/sh", "-c", "echo $$; echo $0 $1", "a b", "$HOME;c"])
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    assert (group.folder / "cgroup.procs").read_text().strip() == said[0], (
        "the same process, before it became the program"
    )
    assert said[1] == "a b $HOME;c"


def test_a_program_whose_group_cannot_be_entered_does_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    command = ControlGroup(tmp_path / "gone").entering(["/bin/sh", "-c", f"touch {marker}"])
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0 and not marker.exists()


def test_where_no_group_can_be_made_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert make_group(memory_bytes=1, processes=1, parent=tmp_path / "file") is None


def test_the_sandbox_runs_programs_inside_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder stands in for the kernel's: the program enters, answers, and its group is ended."""
    monkeypatch.setattr(cgroup, "usable_parent", lambda: tmp_path)
    ended: list[Path] = []
    monkeypatch.setattr(ControlGroup, "end", lambda self: ended.append(self.folder))
    sandbox = Sandbox("off")
    with sandbox.start(compile("send(b'inside')", "<test>", "exec"), Limits(processes=5)) as program:
        assert program.wait(30.0).message == b"inside"
    folder = ended[-1]
    assert (folder / "cgroup.procs").read_text().strip().isdigit() and (
        folder / "pids.max"
    ).read_text() == "9"


@pytest.mark.skipif(usable_parent() is None, reason="no writable control groups of version 2 here")
def test_the_kernel_keeps_the_limit_over_all_processes() -> None:
    code = (
        "import os, time\npids = []\ntry:\n    while True:\n        pid = os.fork()\n        if not pid:\n"
        "            time.sleep(60)\n        pids.append(pid)\nexcept OSError:\n    send(str(len(pids)).encode())\n"
    )
    with Sandbox("off").start(compile(code, "<test>", "exec"), Limits(processes=5)) as program:
        assert int(program.wait(60.0).message or b"999") <= 9
