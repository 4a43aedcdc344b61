"""A line of any size costs bounded memory, packed or not: beyond the limit it is skipped and listed."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.index import jsonl, open_index
from tests.builders import make_rollout

LIMIT = 1 << 16


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "MAX_LINE", LIMIT)
    monkeypatch.setattr(jsonl, "BLOCK", 1 << 12)


def lines_with(long: bytes) -> bytes:
    rows = [json.dumps(make_rollout(n, 0, n / 2)).encode() for n in range(3)]
    return b"\n".join([rows[0], long, rows[1], rows[2]]) + b"\n"


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("end", [b'"}', b""])
def test_a_line_beyond_the_limit_is_skipped_and_listed(
    small_limit: None, tmp_path: Path, ending: str, end: bytes
) -> None:
    text = lines_with(b'{"reward":1,"t":"' + b"x" * (3 * LIMIT) + end)
    path = tmp_path / f"rollouts.jsonl{ending}"
    path.write_bytes(gzip.compress(text) if ending else text)
    with open_index(path) as index:
        assert index.table(["task", "line"]).to_pylist() == [
            {"task": 0, "line": 1}, {"task": 1, "line": 3}, {"task": 2, "line": 4},
        ]  # fmt: skip
        [bad] = index.rejects
    assert bad.line == 2 and "longer than" in bad.reason and not bad.is_kept


def test_a_last_line_beyond_the_limit_is_listed_once(small_limit: None, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_bytes(lines_with(b"{}") + b'{"t":"' + b"x" * (3 * LIMIT))
    with open_index(path) as index:
        assert len(index) == 4 and [bad.line for bad in index.rejects] == [5]


def test_a_bomb_costs_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(json.dumps(make_rollout(0, 0, 1.0)).encode() + b'\n{"t":"')
        for _ in range(256):
            file.write(b"x" * (4 << 20))
        file.write(b'"}\n')
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))\n"
        "from rollforge.index import open_index\n"
        "with open_index(sys.argv[1]) as index: print(len(index), index.rejected_lines, index.rejects[0].reason)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    first, peak = done.stdout.splitlines()
    assert first == "1 1 the line is longer than 256 MB; skipped"
    assert int(peak) < 900 << 10
