"""Worker processes: what one verdict does must end that verdict only."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollforge.errors import Failure, UsageError
from rollforge.records import Response, Task, Verdict
from rollforge.verifiers.base import load_verifier
from rollforge.verifiers.running.cores import idle_cores, usable_cores
from rollforge.verifiers.running.ready_verifier import RunningJudge, make_judge

HOSTILE = """
import ctypes, mmap, os, sys, time
from functools import lru_cache

@lru_cache
def first_time(key):
    return time.time_ns()

def recurse(n):
    return recurse(n + 1)

def verify(task, response):
    match response.text:
        case "loop":
            while True:
                pass
        case "sleep":
            time.sleep(100)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "exit":
            sys.exit(3)
        case "_exit":
            os._exit(3)
        case "memory":
            return len(bytearray(8 << 30))
        case "shared memory":
            return len(mmap.mmap(-1, 9 << 30))
        case "recursion":
            return recurse(0)
        case "fork":
            return float(os.fork() > 0)
        case "orphan":
            if os.fork() == 0:
                time.sleep(100)
            os._exit(7)
        case "print":
            print("x" * 3_000_000)
            os.write(1, b"\\0\\0\\0\\5hello")
            sys.stderr.write("y" * 3_000_000)
            return 1
        case "object":
            return {"reward": 1, "what": object()}
        case "huge":
            return {"reward": 1, "text": "x" * 5_000_000}
        case "nan":
            return float("nan")
        case "surrogate":
            return {"reward": 1, "text": "\\ud800"}
        case "close":
            os.closerange(3, 100)
        case "raise":
            raise KeyError("expected_answer")
        case "none":
            return None
    return {"reward": 1.0, "pid": os.getpid(), "first": first_time("a")}
"""


def answer(text: str) -> Response:
    part = {"type": "output_text", "text": text}
    return Response(
        {"output": [{"type": "message", "role": "assistant", "content": [part]}], "status": "completed"}
    )


def task(**fields: object) -> Task:
    return Task({"responses_create_params": {"input": "What is 1+1?"}, "expected_answer": "2", **fields})


async def wait_until(is_true: Callable[[], bool]) -> None:
    while not is_true():  # the test's own timeout ends a wait in vain
        await asyncio.sleep(0.02)


async def outcome(judge: RunningJudge, text: str) -> Verdict | str:
    try:
        return await judge.judge(task(), answer(text))
    except Failure as failure:
        assert (failure.boundary, failure.kind) == ("verifier", "verifier")
        return failure.message


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    path = tmp_path / "hostile.py"
    path.write_text(HOSTILE)
    return f"{path}:verify"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("loop", "no verdict within 2 s; it was at"),
        ("segfault", "SIGSEGV at"),
        ("abort", "SIGABRT at"),
        ("exit", "SystemExit: 3"),
        ("_exit", "exited with code 3"),
        ("memory", "MemoryError"),
        ("shared memory", "Cannot allocate memory"),
        ("recursion", "RecursionError"),
        ("orphan", "exited with code 7"),
        ("object", "what JSON cannot hold"),
        ("nan", "not finite"),
        ("surrogate", "what JSON cannot hold"),
        ("close", "the worker process"),
        ("raise", "KeyError: 'expected_answer'"),
    ],
)
async def test_what_goes_wrong_in_one_verdict_ends_that_verdict_only(
    hostile: str, text: str, said: str
) -> None:
    judge = make_judge(load_verifier(hostile), workers=1, timeout=2)
    await judge.start()
    try:
        texts = [text, *(f"good {number}" for number in range(8))]
        bad, *good = await asyncio.gather(*(outcome(judge, one) for one in texts))
    finally:
        await judge.close()
    assert isinstance(bad, str) and said in bad
    assert [one.reward for one in good if isinstance(one, Verdict)] == [1.0] * 8
    assert judge.counters.failed == 1


async def test_a_failure_names_the_line_in_the_users_code(hostile: str) -> None:
    judge = make_judge(load_verifier(hostile), workers=1, timeout=2)
    await judge.start()
    try:
        said = [await outcome(judge, text) for text in ("raise", "segfault", "sleep")]
    finally:
        await judge.close()
    lines = Path(hostile.partition(":")[0]).read_text().splitlines()
    for message, code in zip(said, ("raise KeyError", "ctypes.string_at", "time.sleep(100)"), strict=True):
        number = next(number for number, line in enumerate(lines, 1) if code in line)
        assert f"hostile.py:{number} in verify" in str(message)


@pytest.mark.parametrize("text", ["print", "huge", "fork", "none"])
async def test_noise_and_size_do_not_disturb_the_verdict(hostile: str, text: str) -> None:
    judge = make_judge(load_verifier(hostile), workers=1, timeout=20)
    await judge.start()
    try:
        verdict, after = await outcome(judge, text), await outcome(judge, "good")
    finally:
        await judge.close()
    assert isinstance(verdict, Verdict) and verdict.reward == (None if text == "none" else 1.0)
    assert isinstance(after, Verdict) and after.reward == 1.0


async def test_workers_live_long_so_that_an_lru_cache_works(hostile: str) -> None:
    judge = make_judge(load_verifier(hostile), workers=1)
    await judge.start()
    try:
        verdicts = [await judge.judge(task(), answer(f"good {number}")) for number in range(5)]
    finally:
        await judge.close()
    assert len({(verdict.numbers["pid"], verdict.numbers["first"]) for verdict in verdicts}) == 1


async def test_a_closure_runs_in_copies_of_this_process() -> None:
    expected = "yes"

    def verify(task: Task, response: Response) -> dict[str, object]:
        return {"reward": response.text == expected, "pid": os.getpid()}

    judge = make_judge(load_verifier(verify), workers=2, timeout=5)
    await judge.start()
    try:
        good, bad = await judge.judge(task(), answer("yes")), await judge.judge(task(), answer("no"))
    finally:
        await judge.close()
    assert (good.reward, bad.reward) == (1.0, 0.0)
    assert good.numbers["pid"] != os.getpid()
    assert judge.note and "copies of this process" in judge.note


async def test_a_file_that_starts_threads_gets_interpreters_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "threaded.py"
    path.write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "def verify(task, response):\n"
        "    return {'reward': 1, 'threads': threading.active_count()}\n"
    )
    judge = make_judge(load_verifier(f"{path}:verify"), workers=1, timeout=5)
    await judge.start()
    try:
        verdict = await judge.judge(task(), answer("x"))
    finally:
        await judge.close()
    assert verdict.numbers["threads"] == 2


async def test_a_verifier_that_cannot_start_leaves_no_worker_behind(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        "class Verify:\n"
        "    def setup(self):\n        raise RuntimeError('no such model')\n"
        "    def verify(self, task, response):\n        return 1\n"
    )
    before = asyncio.all_tasks()
    judge = make_judge(load_verifier(f"{path}:Verify"), workers=2)
    with pytest.raises(UsageError, match="could not start"):
        await judge.start()
    assert asyncio.all_tasks() == before
    await judge.close()


async def test_set_up_that_fails_is_told_before_anything_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text(
        "class Verify:\n"
        "    def setup(self):\n        raise RuntimeError('no such model')\n"
        "    def verify(self, task, response):\n        return 1\n"
    )
    judge = make_judge(load_verifier(f"{path}:Verify"), workers=2)
    with pytest.raises(UsageError, match="could not start: RuntimeError: no such model"):
        await judge.start()
    await judge.close()


async def test_a_class_is_set_up_once_per_worker_and_torn_down(tmp_path: Path) -> None:
    path = tmp_path / "stateful.py"
    path.write_text(
        textwrap.dedent(
            f"""
            import msgspec, pathlib
            log = pathlib.Path({str(tmp_path / "log")!r})

            class Options(msgspec.Struct):
                bonus: float = 0.0

            class Verify:
                def __init__(self, options):
                    self.bonus = options.bonus
                async def start(self):
                    log.open("a").write("start ")
                def verify(self, task, response):
                    return 1 + self.bonus
                def close(self):
                    log.open("a").write("close ")
            """
        )
    )
    judge = make_judge(load_verifier(f"{path}:Verify", {"bonus": "0.5"}), workers=1)
    await judge.start()
    rewards = [(await judge.judge(task(), answer(text))).reward for text in "ab"]
    await judge.close()
    assert rewards == [1.5, 1.5]
    assert (tmp_path / "log").read_text() == "start close "


async def test_an_endless_loop_leaves_the_other_workers_running(hostile: str) -> None:
    judge = make_judge(load_verifier(hostile), workers=2, timeout=2)
    await judge.start()
    try:
        stuck = asyncio.ensure_future(outcome(judge, "loop"))
        started = time.monotonic()
        good = [await outcome(judge, f"good {number}") for number in range(200)]
        is_stuck_still = not stuck.done() or time.monotonic() - started > 2
        await stuck
    finally:
        await judge.close()
    assert is_stuck_still
    assert all(isinstance(one, Verdict) and one.reward == 1.0 for one in good)


def test_cores_are_counted_within_what_this_process_may_use() -> None:
    idle = idle_cores()
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    assert all(0 <= next(idle) <= (os.cpu_count() or 1) for _ in range(3))


async def test_auto_adds_workers_while_verdicts_wait_and_cores_are_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "waiting.py"
    path.write_text(
        "import os, time\ndef verify(t, r):\n    time.sleep(0.1)\n    return {'reward': 1, 'pid': os.getpid()}\n"
    )
    monkeypatch.setattr("rollforge.verifiers.running.worker_pool.idle_cores", lambda: itertools.repeat(1.0))
    judge = make_judge(load_verifier(f"{path}:verify"), workers="auto", timeout=20)
    await judge.start()
    try:
        verdicts = await asyncio.gather(*(judge.judge(task(), answer(str(number))) for number in range(30)))
        size = judge.counters.workers
    finally:
        await judge.close()
    assert 1 < len({verdict.numbers["pid"] for verdict in verdicts}) <= size <= 4 * usable_cores()


@pytest.mark.parametrize("workers", [2, 6])
async def test_a_killed_template_is_replaced_and_judging_goes_on(hostile: str, workers: int) -> None:
    judge = make_judge(load_verifier(hostile), workers=workers, timeout=5)
    await judge.start()
    try:
        assert isinstance(await outcome(judge, "good"), Verdict)
        pool: Any = judge._engine
        pool._spawner._template.kill()
        after = [await outcome(judge, f"good {number}") for number in range(20)]
        await wait_until(lambda: pool.size == workers)
    finally:
        await judge.close()
    assert sum(isinstance(one, Verdict) for one in after) >= 18


async def test_workers_that_cannot_live_fail_every_verdict_instead_of_hanging(tmp_path: Path) -> None:
    path = tmp_path / "mortal.py"
    path.write_text(
        "import os, threading, time\n"
        "class Verify:\n"
        "    def start(self):\n"
        "        threading.Thread(target=lambda: (time.sleep(0.05), os._exit(1)), daemon=True).start()\n"
        "    def verify(self, task, response):\n        time.sleep(10)\n"
    )
    judge = make_judge(load_verifier(f"{path}:Verify"), workers=1, timeout=5)
    await judge.start()
    try:
        await asyncio.sleep(1)
        said = await asyncio.wait_for(outcome(judge, "x"), 10)
    finally:
        await judge.close()
    assert isinstance(said, str) and "exited with code 1" in said


def test_workers_die_with_their_parent_even_in_an_endless_loop(tmp_path: Path, hostile: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, os, sys
            from rollforge.records import Response, Task
            from rollforge.verifiers.base import load_verifier
            from rollforge.verifiers.running.ready_verifier import make_judge

            async def main():
                judge = make_judge(load_verifier({hostile!r}), workers=1, timeout=100)
                await judge.start()
                part = {{"type": "output_text", "text": "loop"}}
                stuck = asyncio.ensure_future(judge.judge(
                    Task({{}}), Response({{"output": [{{"type": "message", "content": [part]}}]}})))
                await asyncio.sleep(0.2)
                print(judge._engine._spawner._template.pid, judge._engine._workers[0].handle.pid, flush=True)
                await stuck

            asyncio.run(main())
            """
        )
    )
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in pids if is_running(pid)]


@pytest.mark.parametrize("is_importable", [True, False])
async def test_what_a_verifier_prints_is_kept_on_request(tmp_path: Path, is_importable: bool) -> None:
    source = (
        "import os, sys\n"
        "def verify(task, response):\n"
        "    print('saw', response.text)\n    print('oops', file=sys.stderr)\n    os.write(1, b'raw\\n')\n    return 1\n"
    )
    (tmp_path / "noisy.py").write_text(source)
    found: Any = f"{tmp_path / 'noisy.py'}:verify"
    if not is_importable:
        space: dict[str, Any] = {}
        exec(source, space)
        found = space["verify"]
    output = tmp_path / "printed.txt"
    judge = make_judge(load_verifier(found), workers=1, timeout=30, output=output)
    await judge.start()
    try:
        assert isinstance(await outcome(judge, "good"), Verdict)
    finally:
        await judge.close()
    assert sorted(output.read_text().splitlines()) == ["oops", "raw", "saw good"]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
