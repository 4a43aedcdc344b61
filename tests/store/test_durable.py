"""Appends survive: whole lines, acknowledged only when on disk, a torn tail cut, a full disk reported."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.store import DurableFile, mend_tail, write_atomically

ROWS = [{"_ng_task_index": number, "text": "é" * 5} for number in range(3)]
WHOLE = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


async def test_acknowledged_lines_are_on_disk_in_the_order_of_appending(tmp_path: Path) -> None:
    file = DurableFile(tmp_path / "lines.jsonl")
    await file.start()
    futures = [file.append(b"%d" % number) for number in range(1000)]
    await futures[-1]
    assert (tmp_path / "lines.jsonl").read_bytes() == b"".join(b"%d\n" % number for number in range(1000))
    await file.close()
    assert file.commits < 20, "lines are committed together"


async def test_closing_commits_what_is_queued(tmp_path: Path) -> None:
    file = DurableFile(tmp_path / "lines.jsonl", delay_s=10)
    await file.start()
    file.append(b"{}")
    await file.close()
    assert (tmp_path / "lines.jsonl").read_bytes() == b"{}\n"


async def test_one_who_no_longer_waits_keeps_no_line_from_the_disk(tmp_path: Path) -> None:
    file = DurableFile(tmp_path / "lines.jsonl")
    await file.start()
    file.append(b"1").cancel()
    await asyncio.sleep(0.1)
    await file.append(b"2")
    await file.close()
    assert (tmp_path / "lines.jsonl").read_bytes() == b"1\n2\n"


@pytest.mark.parametrize("size", range(len(WHOLE) + 1))
def test_a_file_cut_at_any_byte_keeps_its_whole_lines_and_no_more(tmp_path: Path, size: int) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(WHOLE[:size])
    mend_tail(path)
    left = path.read_bytes()
    whole = WHOLE[:size].count(b"\n")
    is_only_missing_the_newline = size < len(WHOLE) and WHOLE[size : size + 1] == b"\n"
    assert left.count(b"\n") == whole + is_only_missing_the_newline
    assert WHOLE.startswith(left)
    assert not left or left.endswith(b"\n")
    for line in left.splitlines():
        json.loads(line)


def test_zero_bytes_left_by_a_power_cut_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(WHOLE + b"\0" * 100_000)
    assert mend_tail(path) == 100_000
    assert path.read_bytes() == WHOLE


def test_a_torn_line_is_kept_whole_and_a_hole_only_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollforge.store.tail._MOST_BLANKS", 10)
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": "' + b"x" * 500 + b"\0" * 300)
    assert mend_tail(path) == 807
    assert path.read_bytes() == b'{"a": 1}\n'
    assert (tmp_path / "rollouts.damaged").read_bytes() == b'{"b": "' + b"x" * 500 + b"\0" * 10 + b"\n"


async def test_appending_after_a_torn_tail_never_glues_to_it(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(WHOLE + b'{"torn": ')
    file = DurableFile(path)
    await file.start()
    await file.append(b'{"new": 1}')
    await file.close()
    assert path.read_bytes() == WHOLE + b'{"new": 1}\n'


def test_a_disk_that_fills_up_is_reported_and_leaves_whole_lines(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: the write fails in the middle of a line."""
    program = f"""
import asyncio, resource, signal
from pathlib import Path
from rollforge.errors import IncompleteError
from rollforge.store import DurableFile
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
async def main():
    file = DurableFile(Path({str(tmp_path / "full.jsonl")!r}))
    await file.start()
    kept = 0
    try:
        for number in range(100):
            await file.append(b'{{"n": %d, "pad": "' % number + b"x" * 150 + b'"}}')
            kept += 1
    except IncompleteError as error:
        print(kept, error, "|", error.hint)
    try:
        await file.close()
    except IncompleteError:
        pass
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    kept, _, message = done.stdout.partition(" ")
    lines = (tmp_path / "full.jsonl").read_bytes().splitlines(keepends=True)
    assert "cannot write: File too large" in message and "run the same command again" in message
    assert len(lines) == int(kept) > 10
    assert all(json.loads(line) and line.endswith(b"\n") for line in lines)


def test_an_atomic_write_leaves_no_debris(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", b"1")
    write_atomically(tmp_path / "a.json", b"2")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_bytes() == b"2"
