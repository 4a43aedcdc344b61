"""What a program may use, and when a run of programs is given up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollforge.agents.recorded_programs.program_endings import ENOUGH, Endings
from rollforge.errors import UsageError
from rollforge.sandbox.programs import find_program_bubblewrap
from rollforge.sandbox.usage import descendants, memory_exceeds, resident_bytes
from tests.programs.running import collected

MODES = [
    "off",
    pytest.param(
        "require",
        marks=pytest.mark.skipif(
            find_program_bubblewrap()[0] is None, reason="bubblewrap does not work here"
        ),
    ),
]

GREEDY = """
ask(user("hi"))
kind = json.load(open(os.environ["ROLLFORGE_TASK"]))["kind"]
import time
if kind == "children":  # no process is large, all together are
    for _ in range(4):
        if os.fork() == 0:
            kept = bytearray(os.urandom(1 << 20) * 60)
            time.sleep(600)
elif kind == "memory":
    kept = bytearray(os.urandom(1 << 20) * 400)
elif kind == "forks":
    for _ in range(60):
        if os.fork() == 0:
            time.sleep(600)
if kind != "fine":
    time.sleep(600)
"""


@pytest.mark.parametrize("sandbox", MODES)
async def test_a_program_that_uses_too_much_is_ended_and_is_a_failure(tmp_path: Path, sandbox: str) -> None:
    ran = await collected(
        tmp_path,
        GREEDY,
        tasks=[{"kind": kind} for kind in ("memory", "children", "forks", "fine")],
        sandbox=sandbox,
        max_memory_bytes=200 << 20,
        max_processes=20,
        max_failures="100%",
    )
    said = {row["_ng_task_index"]: row["message"] for row in ran.failures}
    assert set(said) == {0, 1, 2} and [row["_ng_task_index"] for row in ran.rows] == [3]
    assert "200 MiB of memory (--max-memory-bytes)" in said[0]
    assert "200 MiB of memory (--max-memory-bytes)" in said[1]
    assert "20 processes (--max-processes)" in said[2]
    assert {row["class"] for row in ran.failures} == {"agent"}
    assert all(row["response"]["output"] for row in ran.failures), "what was generated is kept"


def test_pages_that_forks_share_are_counted_once() -> None:
    source = (
        "import os, sys, time\nkept = bytearray(os.urandom(1 << 20) * 50)\n"
        "for _ in range(5):\n    if os.fork() == 0:\n        time.sleep(60)\n        os._exit(0)\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end = time.monotonic() + 20
        while len(descendants(process.pid)) < 6 and time.monotonic() < end:
            time.sleep(0.02)
        pids = descendants(process.pid)
        try:
            assert len(pids) == 6
            assert sum(map(resident_bytes, pids)) > 200 << 20
            assert not memory_exceeds(pids, 200 << 20) and memory_exceeds(pids, 40 << 20)
        finally:
            os.killpg(process.pid, 9)


async def test_a_run_in_which_every_program_dies_the_same_way_stops_early_and_shows_why(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError) as raised:
        await collected(
            tmp_path,
            'import time\nraise SystemExit("no module called x, at " + str(time.time()))',
            tasks=[{"prompt": f"task {number}"} for number in range(200)],
            sandbox="off",
            concurrency="4",
            attempts=3,
            max_failures="100%",
        )
    said = str(raised.value)
    assert "programs ended the same way: the program ended with exit code 1: no module called x" in said
    assert "  | no module called x" in said
    failures = (tmp_path / "run" / "rollouts_failures.jsonl").read_text().splitlines()
    assert ENOUGH <= len(failures) < 2 * ENOUGH, "200 rollouts were not tried three times each"
    assert not any(json.loads(line)["_ng_failure_terminal"] for line in failures), "a resumed run tries again"


def test_programs_that_die_now_and_then_do_not_stop_a_run() -> None:
    endings = Endings()
    for number in range(400):
        if number % 10 == 0:
            endings.survived()
        else:
            assert endings.died(f"exit code 1: worker {number} at 0x{number:x}", "") is None, (
                "one in ten lives"
            )


def test_deaths_of_different_causes_do_not_add_up() -> None:
    endings = Endings()
    causes = ["exit code 1: KeyError", "exit code 2: no such file", "the program made no model call"]
    assert all(endings.died(causes[number % 3], "") is None for number in range(300))


def test_the_same_cause_with_other_numbers_is_the_same() -> None:
    endings = Endings()
    said = [
        endings.died(f"exit code 1: port {number} is taken", f"line\nport {number}")
        for number in range(ENOUGH)
    ]
    assert said[:-1] == [None] * (ENOUGH - 1)
    assert said[-1] == (
        f"{ENOUGH} of {ENOUGH} programs ended the same way: exit code 1: port {ENOUGH - 1} is taken\n  | line\n  | port 0"
    )
