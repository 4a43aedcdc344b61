"""One writer at a time, and no stale locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rollforge.errors import UsageError
from rollforge.store import RunLock
from rollforge.store.lock import is_held

HOLD = """
import sys, time
from pathlib import Path
from rollforge.store import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_and_told_who_holds_the_run(tmp_path: Path) -> None:
    with RunLock(tmp_path / "rollouts.lock"):
        assert is_held(tmp_path / "rollouts.lock")
        with pytest.raises(UsageError, match=f"process {os.getpid()}"), RunLock(tmp_path / "rollouts.lock"):
            pass
    assert not is_held(tmp_path / "rollouts.lock")


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    with pytest.raises(UsageError, match=f"process {holder.pid}"), RunLock(path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert path.exists(), "the dead process could not tidy up"
    with RunLock(path):
        pass


def test_a_lock_file_left_by_hand_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.lock"
    path.write_text('{"pid": 999999, "host": "elsewhere"}')
    with RunLock(path):
        pass
