"""Reading begins before numpy and Arrow are there, where several read at once, and ends in the same index."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

READS = "rollforge.index.opening, rollforge.index.parallel, rollforge.index.scan"


def run_python(code: str, *words: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_reads_text_loads_neither_numpy_nor_arrow() -> None:
    code = f"import sys, {READS}; print(sorted({{'numpy', 'pyarrow'}} & sys.modules.keys()))"
    assert run_python(code) == "[]"


COUNT = """
import sys, threading
from rollforge.index import opening
begun = []
open_cache = opening.Cache.open
def watched(cache, workers=None, room=None):
    begun.append((threading.current_thread().name, "rollforge.index.view" in sys.modules))
    return open_cache(cache, workers, room)
opening.Cache.open = watched
with opening.open_index(sys.argv[1], workers=int(sys.argv[2])) as index:
    print(len(index), begun[0][0])
"""


@pytest.mark.parametrize(("workers", "thread"), [("1", "MainThread"), ("2", "rollforge-reading")])
def test_several_readers_begin_beside_the_loading(workers: str, thread: str, tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"reward": 1}\n{"reward": 0}\n')
    assert run_python(COUNT, str(path), workers) == f"2 {thread}"


def test_what_stops_the_early_reading_is_told_when_the_index_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"reward": 1}\n')
    code = """
import sys
from rollforge.index import cache, opening
def broken(self, workers=None, room=None):
    raise OSError(5, "Input/output error", str(self.path))
cache.Cache.open = broken
try:
    opening.open_index(sys.argv[1], workers=2)
except OSError as error:
    print(error.strerror)
"""
    assert run_python(code, str(path)) == "Input/output error"
